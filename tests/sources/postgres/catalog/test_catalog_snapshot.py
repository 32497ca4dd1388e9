"""DDL between two statements of the run: each look at the catalog is one moment, and a position is tried again."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, PreflightError, SchemaChanged, TransientError
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import read_catalog
from airflow_provider_cdc.sources.postgres.catalog.schema import read_tables
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, session
from harness.postgres_server import PostgresServer
from harness.proxy import Proxy
from tests.seeds import SOAK_SEED
from tests.sources.postgres.log.reading import settings as settings_of

RENAME = ("ALTER TABLE t RENAME q TO r", "ALTER TABLE t RENAME r TO s", "ALTER TABLE t RENAME s TO q")
TYPE = ("ALTER TABLE t ALTER e TYPE text; DROP TYPE mood", "CREATE TYPE mood AS ENUM ('so', 'la')",
        "ALTER TABLE t ALTER e TYPE mood USING e::mood")  # fmt: skip
PARTITION = ("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)", "DROP TABLE p2")
COLUMN = ("ALTER TABLE t ADD a int", "ALTER TABLE t DROP a")
SWAP = """
    CREATE TABLE new_t (LIKE t INCLUDING ALL); ALTER TABLE new_t REPLICA IDENTITY FULL; ALTER TABLE t RENAME TO old_t;
    ALTER TABLE new_t RENAME TO t; DROP TABLE old_t
"""
TABLES = ["public.t", "public.p"]


@pytest.fixture
def tables(postgres: PostgresServer, database: str) -> None:
    postgres.query(
        """
        CREATE TYPE mood AS ENUM ('so', 'la'); CREATE TABLE t (id int PRIMARY KEY, q text, e mood);
        ALTER TABLE t REPLICA IDENTITY FULL;
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id); ALTER TABLE p REPLICA IDENTITY FULL;
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10); ALTER TABLE p1 REPLICA IDENTITY FULL
        """,
        database=database,
    )


class Ddl:
    """A session that executes one statement after the other, from the beginning again after the last one."""

    def __init__(self, connection: psycopg.Connection, statements: Sequence[str]) -> None:
        self.done = 0
        self._connection = connection
        self._statements = statements

    def act(self, condition: bool = True) -> None:
        """Execute the next statement, unless a lock of another session is in its way."""
        with suppress(psycopg.errors.LockNotAvailable):
            if condition:
                self._connection.execute(self._statements[self.done % len(self._statements)])
                self.done += 1

    def complete(self) -> None:
        while self.done % len(self._statements):
            self.act()


@contextmanager
def proxied(postgres: PostgresServer, database: str, *statements: str) -> Iterator[tuple[PostgresSource, Proxy, Ddl]]:
    """A source behind a proxy, and a session for DDL that does not wait for the locks of the source."""
    with Proxy(postgres.port) as proxy, postgres.connect(database=database) as other:
        other.execute("SET lock_timeout = '20ms'")
        settings = dataclasses.replace(settings_of(postgres, database), host=proxy.host, port=proxy.port)
        yield PostgresSource(settings), proxy, Ddl(other, statements)
        proxy.meanwhile = None


def read(connection: Connection, *names: str) -> tuple[Table, ...]:
    return read_catalog(connection, lambda catalog: read_tables(catalog, [TableName("public", name) for name in names]))


@pytest.mark.parametrize("statements", [RENAME, COLUMN, PARTITION], ids=["rename", "column", "partition"])
def test_queries_of_one_look_see_one_moment(
    statements: tuple[str, ...], postgres: PostgresServer, database: str, tables: None
) -> None:
    with proxied(postgres, database, *statements) as (source, proxy, ddl), session(source.settings) as connection:
        proxy.meanwhile = ddl.act
        for _ in range(6):
            found, plain = read(connection, "t", "p")
            assert [column.name for column in found.columns[:3]] in [["id", name, "e"] for name in "qrs"]
            assert len(plain.details["leaves"]) == len(plain.details["tree"])
        assert ddl.done > 50


def test_a_type_that_is_dropped_between_two_statements_is_looked_up_again(
    postgres: PostgresServer, database: str, tables: None
) -> None:
    """The server's functions describe the present types in every snapshot."""
    with proxied(postgres, database, *TYPE) as (source, proxy, ddl), session(source.settings) as connection:
        for first in range(1, 14):
            number = count()
            proxy.meanwhile = lambda: ddl.act(next(number) >= first and ddl.done % len(TYPE) < 2)  # noqa: B023
            (found,) = read(connection, "t")
            assert found.columns[2].type in ("text", "public.mood")
            proxy.meanwhile = None
            ddl.complete()
        assert ddl.done > 20


def test_a_catalog_that_never_holds_still_is_given_up(postgres: PostgresServer, database: str) -> None:
    with (
        session(settings_of(postgres, database)) as connection,
        pytest.raises(TransientError, match=r"definitions were changed while they were read.*does not exist"),
    ):
        read_catalog(connection, lambda catalog: query(catalog, "SELECT 'no_such_type'::regtype"))


@pytest.mark.slow
@pytest.mark.parametrize("statements", [RENAME, COLUMN, PARTITION], ids=["rename", "column", "partition"])
def test_preflight_beside_ddl_between_all_its_statements(
    statements: tuple[str, ...], postgres: PostgresServer, database: str, tables: None
) -> None:
    with proxied(postgres, database, *statements) as (source, proxy, ddl):
        proxy.meanwhile = ddl.act
        plans = source.preflight(TABLES)
        assert [str(plan.table) for plan in plans] == sorted(TABLES)
        assert not source.sample(plans)
        (found,) = source.tables_of([plan for plan in plans if plan.table.name == "t"])
        assert found.columns[1].name in ("q", "r", "s")


@pytest.mark.slow
@pytest.mark.parametrize("statement", [RENAME[0], SWAP], ids=["rename", "swap"])
def test_one_change_while_the_position_is_fixed_leads_to_another_try(
    statement: str, postgres: PostgresServer, database: str, tables: None
) -> None:
    """The change comes before each of the statements, and after the last one."""
    plans = PostgresSource(settings_of(postgres, database)).preflight(TABLES)
    moments = 0
    while True:
        with proxied(postgres, database, statement) as (source, proxy, ddl):
            number = count()
            proxy.meanwhile = lambda: ddl.act(next(number) >= moments and not ddl.done)  # noqa: B023
            point = source.record_initial(plans, LockPolicy(), "changed")
            proxy.meanwhile = None
            came = bool(ddl.done)
            (now,) = source.tables_of([plan for plan in plans if plan.table.name == "t"])
            (recorded,) = [table for table in point.tables if table.name.name == "t"]
            if [column.name for column in recorded.columns] == [column.name for column in now.columns]:
                source.check_tables([recorded] if recorded.details["oid"] == now.details["oid"] else [])
            else:
                # The change came after the last look at the table, so the log has its position before the change.
                with pytest.raises(SchemaChanged):
                    source.check_tables([recorded])
            source.discard(point.identity)
        if came and statement == RENAME[0]:
            postgres.query("ALTER TABLE t RENAME r TO q", database=database)
        if not came:
            break
        moments += 3
    assert moments > 20
    assert postgres.query("SELECT pubname FROM pg_publication", database=database) == []


@pytest.mark.long
def test_random_ddl_between_statements_leads_to_an_error_of_the_package_at_most(
    postgres: PostgresServer, database: str, tables: None
) -> None:
    chance = random.Random(SOAK_SEED or 1)
    statements = [*RENAME, *COLUMN, *PARTITION, *TYPE, SWAP, "GRANT SELECT ON t TO PUBLIC", "TRUNCATE p"]
    fixed = 0
    for number in range(60):
        with proxied(postgres, database) as (source, proxy, _), postgres.connect(database=database) as other:
            other.execute("SET lock_timeout = '20ms'")
            rate = chance.choice([0.02, 0.1, 0.5])

            def act() -> None:
                if chance.random() < rate:  # noqa: B023
                    with suppress(psycopg.Error):
                        other.execute(chance.choice(statements))

            proxy.meanwhile = act
            try:
                plans = source.preflight(TABLES)
                source.sample(plans)
                point = source.record_initial(plans, LockPolicy(), f"random_{number}")
            except CdcError:
                continue
            proxy.meanwhile = None
            source.discard(point.identity)
            fixed += 1
    assert fixed > 5
    assert postgres.query("SELECT pubname FROM pg_publication", database=database) == []


@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE p1 SET UNLOGGED", "CREATE UNLOGGED TABLE u PARTITION OF p FOR VALUES FROM (10) TO (20)"],
    ids=["altered", "created"],
)
def test_a_partition_that_cannot_be_published_is_named_as_by_preflight(
    statement: str, postgres: PostgresServer, database: str, tables: None
) -> None:
    source = PostgresSource(settings_of(postgres, database))
    plans = source.preflight(TABLES)
    postgres.query(statement, database=database)
    with pytest.raises(PreflightError) as refused:
        source.record_initial(plans, LockPolicy(), "unlogged")
    with pytest.raises(PreflightError) as before:
        source.preflight(TABLES)
    (problem,) = refused.value.problems
    assert problem in before.value.problems
    assert (problem.table, "unlogged" in problem.what) == ("public.p", True)
    assert postgres.query("SELECT pubname FROM pg_publication", database=database) == []
