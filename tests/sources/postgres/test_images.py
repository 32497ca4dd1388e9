"""Decoding row images: equal to what a SELECT reads, for every type and its hard values, and never past the bytes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core import row_bytes
from airflow_provider_cdc.sources.postgres.images import decode_images
from harness.postgres_server import PostgresServer
from tests.sources.postgres.messages import changes, peek
from tests.sources.postgres.tables import describe, select
from tests.sources.postgres.values import CASES, OPTIONAL, SETUP


@pytest.fixture(scope="module")
def typed(postgres: PostgresServer) -> Iterator[str]:
    """A database with the types of ``values.SETUP``, all optional ones that the server has, and a slot ``log``."""
    name = "typed_values"
    postgres.query(f"CREATE DATABASE {name}")
    postgres.query(SETUP, database=name)
    for extension, _, _ in OPTIONAL.values():
        if extension:
            try:
                postgres.query(f"CREATE EXTENSION {extension}", database=name)
            except psycopg.errors.FeatureNotSupported:
                continue
            except psycopg.errors.UndefinedFile:
                continue
    postgres.query("CREATE PUBLICATION log FOR ALL TABLES", database=name)
    yield name
    postgres.query(f"DROP DATABASE {name} WITH (FORCE)")


class Log:
    """What happens to a table from now on, as raw images."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database
        server.query("SELECT pg_create_logical_replication_slot('images', 'pgoutput')", database=database)

    def images(self) -> tuple[list[bytes], list[bytes]]:
        """The before images and the after images."""
        found = changes(peek(self.server, self.database, "images", "log"))
        return [change.old for change in found if change.old], [change.new for change in found if change.new]

    def close(self) -> None:
        self.server.query("SELECT pg_drop_replication_slot('images')", database=self.database)


@pytest.fixture
def log(postgres: PostgresServer, typed: str) -> Iterator[Log]:
    found = Log(postgres, typed)
    yield found
    found.close()


def assert_same(actual: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    """Bit for bit: `equals` would take -0.0 for 0.0 and tell NaN from NaN."""
    actual.validate(full=True)
    expected.validate(full=True)
    assert actual.schema == expected.schema
    names = expected.schema.names
    assert actual.num_rows == expected.num_rows
    for name in names:
        mine, theirs = actual.column(name), expected.column(name)
        same = row_bytes.encode(actual, [name]).to_pylist() == row_bytes.encode(expected, [name]).to_pylist()
        assert same, f"{name}: {mine.to_pylist()} is not {theirs.to_pylist()}"


def create(server: PostgresServer, database: str, name: str, columns: str) -> None:
    server.query(f"DROP TABLE IF EXISTS {name}", database=database)
    server.query(f"CREATE TABLE {name} ({columns})", database=database)
    server.query(f"ALTER TABLE {name} REPLICA IDENTITY FULL", database=database)


def available(server: PostgresServer, database: str, declared: str) -> list[str]:
    """The values of an optional type; skips the test if the server does not have it."""
    extension, probe, values = OPTIONAL[declared]
    if extension:
        found = server.query("SELECT 1 FROM pg_extension WHERE extname = %s", (extension,), database=database)
        if not found:
            pytest.skip(f"the server has no extension {extension}")
    if probe:
        try:
            server.query(probe, database=database)
        except psycopg.Error:
            pytest.skip(f"the server was built without {declared}")
    return values


def check_values(server: PostgresServer, database: str, log: Log, declared: str, values: list[str]) -> None:
    create(server, database, "v", f"id int PRIMARY KEY, v {declared}")
    for number, value in enumerate(values):
        server.query(f"INSERT INTO v VALUES ({number}, {value})", database=database)
    server.query(f"INSERT INTO v VALUES ({len(values)}, NULL)", database=database)
    table = describe(server, database, "v")
    rows = select(server, database, table, "ORDER BY id")
    assert rows.column("v").null_count == 1
    with server.connect(database=database) as connection:
        for number in range(len(values) + 1):
            connection.execute("DELETE FROM v WHERE id = %s", (number,))
    before, after = log.images()
    assert_same(decode_images(table, pa.array(before, pa.binary())), rows)
    assert_same(decode_images(table, pa.array(after, pa.binary())), rows)


@pytest.mark.parametrize("declared", CASES)
def test_hard_values_are_the_same_by_select_and_from_the_log(
    postgres: PostgresServer, typed: str, log: Log, declared: str
) -> None:
    check_values(postgres, typed, log, declared, CASES[declared])


@pytest.mark.parametrize("declared", OPTIONAL)
def test_hard_values_of_optional_types(postgres: PostgresServer, typed: str, log: Log, declared: str) -> None:
    check_values(postgres, typed, log, declared, available(postgres, typed, declared))
