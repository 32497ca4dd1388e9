"""Tables of a real server in tests: described without the code under test, and read through ADBC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, select_list
from airflow_provider_cdc.sources.postgres.decode.columns import finish_batch
from airflow_provider_cdc.sources.postgres.decode.rows import CopyReader, open_rows
from airflow_provider_cdc.sources.postgres.server.session import quote
from airflow_provider_cdc.sources.postgres.server.session_variables import SESSION_SETTINGS
from harness.postgres_server import SUPERUSER, PostgresServer

_COLUMNS = """
    SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, a.atttypid, a.atttypmod,
           CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN 'array' ELSE
               (jsonb_build_object('b', 'base', 'e', 'enum', 'd', 'domain', 'c', 'composite', 'r', 'range',
                                   'm', 'multirange') ->> t.typtype::text) END,
           a.attrelid
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
"""
_BENEATH = """
    WITH RECURSIVE beneath(oid, typmod) AS (
        SELECT %s::oid, %s::int4
        UNION ALL
        SELECT t.typbasetype, t.typtypmod FROM beneath b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype = 'd'
    )
    SELECT b.oid, b.typmod FROM beneath b JOIN pg_type t ON t.oid = b.oid WHERE t.typtype <> 'd'
"""
_KEY = """
    SELECT a.attname FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(number, place), pg_attribute a
    WHERE i.indrelid = %s::regclass AND i.indisprimary AND a.attrelid = i.indrelid AND a.attnum = k.number
    ORDER BY k.place
"""


def describe(
    server: PostgresServer,
    database: str,
    name: str,
    schema: str = "public",
    policy: str = "error",
    arrays: str = "text",
) -> Table:
    """A table as the catalog has it. ``policy``: one of ``UNREPRESENTABLE``. ``arrays``: the option of this name."""
    columns = []
    where = f"{quote(schema)}.{quote(name)}"
    with server.connect(database=database) as connection:
        for column, declared, nullable, oid, typmod, kind, relation in connection.execute(_COLUMNS, (where,)):
            base = connection.execute(_BENEATH, (oid, typmod)).fetchone()
            assert base is not None
            details: dict[str, str | int | bool] = {"oid": oid, "typmod": typmod, "kind": kind, "relation": relation}
            details |= {"base_oid": base[0], "base_typmod": base[1]}
            columns.append(Column(column, declared, nullable, details))
        key = tuple(row[0] for row in connection.execute(_KEY, (where,)))
    return Table(
        TableName(schema, name), tuple(columns), key, options=TableOptions(unrepresentable=policy, arrays=arrays)
    )


def settings(server: PostgresServer, database: str) -> ConnectionSettings:
    """How the product reaches a database of ``server``."""
    return ConnectionSettings("postgres", server.host, server.port, SUPERUSER, database=database)


def table_sql(table: Table) -> str:
    return f"{quote(table.name.schema)}.{quote(table.name.name)}"


@contextmanager
def reading(server: PostgresServer, database: str) -> Iterator[Any]:
    """A cursor of an ADBC session with ``SESSION_SETTINGS``."""
    url = server.url.rpartition("/")[0] + f"/{database}"
    with closing(adbc.connect(url, autocommit=True)) as connection, closing(connection.cursor()) as cursor:
        for setting, value in SESSION_SETTINGS.items():
            cursor.execute(f"SET {setting} = '{value}'")
        yield cursor


def raw(cursor: Any, table: Table, rest: str = "") -> list[pa.RecordBatch]:
    """All rows, as read by ADBC."""
    cursor.execute(f"SELECT {select_list(table)} FROM ONLY {table_sql(table)} {rest}")
    return list(cursor.fetch_record_batch())


def select(
    server: PostgresServer, database: str, table: Table, rest: str = "", nulled: dict[str, int] | None = None
) -> pa.RecordBatch:
    """All rows of a table in one batch, read from the socket as the product does. ADBC must read the same."""
    with open_rows(settings(server, database), table) as reader:
        assert isinstance(reader, CopyReader)
        rows = one_batch(table, list(reader.read(f"ONLY {table_sql(table)} {rest}")))
        for name, count in reader.nulled.items():
            if nulled is not None:
                nulled[name] = nulled.get(name, 0) + count
    with reading(server, database) as cursor:
        assert_same(rows, one_batch(table, [finish_batch(table, batch) for batch in raw(cursor, table, rest)]))
    return rows


def one_batch(table: Table, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of a table's rows as one."""
    whole = pa.Table.from_batches(batches, arrow_schema(table)).combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], arrow_schema(table))


def assert_same(actual: pa.RecordBatch, expected: pa.RecordBatch) -> None:
    """Equality of bits; to `equals`, -0.0 is 0.0 and a NaN is not itself."""
    actual.validate(full=True)
    expected.validate(full=True)
    assert actual.schema == expected.schema
    names = expected.schema.names
    assert actual.num_rows == expected.num_rows
    for name in names:
        mine, theirs = actual.column(name), expected.column(name)
        if pa.types.is_list(mine.type):
            # Elements may be null or text, which have no canonical bytes. Python shows -0.0 and NaN.
            same = repr(mine.to_pylist()) == repr(theirs.to_pylist())
        else:
            same = row_bytes.encode(actual, [name]).to_pylist() == row_bytes.encode(expected, [name]).to_pylist()
        assert same, f"{name}: {mine.to_pylist()} is not {theirs.to_pylist()}"
