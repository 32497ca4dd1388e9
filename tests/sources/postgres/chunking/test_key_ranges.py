"""PostgreSQL reads only the range of the key that a condition allows: each row once, whatever the key."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.chunking.chunks import place
from airflow_provider_cdc.sources.postgres.server.session import query, session
from harness.postgres_server import PostgresServer
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.log.reading import Run
from tests.sources.postgres.log.reading import settings as settings_of

ROWS, CHUNK = 20_000, 50


@pytest.fixture
def source(postgres: PostgresServer, database: str) -> PostgresSource:
    return PostgresSource(settings_of(postgres, database))


# name: (column, expression of n = 1 … ROWS, condition, rows, chunks at least and at most)
RANGES = {
    "integer": ("k int", "n", "k BETWEEN 1000 AND 1199", 200, 3, 8),
    "without an end": ("k int", "n", "k > 19800", 200, 3, 8),
    "without a beginning": ("k int", "n", "k < 201", 200, 3, 8),
    "few": ("k int", "n", "k IN (5, 7, 9) AND w = 'x'", 3, 1, 1),
    "none": ("k int", "n", "k < 0", 0, 1, 1),
    "the least smallint": ("k smallint", "n - 32769", "k < -32568", 200, 3, 8),
    "the greatest bigint": ("k bigint", "9223372036854755807 + n", "k > 9223372036854775607", 200, 2, 8),
    "a hole": ("k bigint", "CASE WHEN n < 100 THEN n ELSE 1000000000000 + n END", "k < 1000000000200", 199, 2, 12),
    "date": ("k date", "date '2000-01-01' + n", "k BETWEEN '2030-01-01' AND '2030-07-19'", 200, 3, 8),
    "the last day": ("k date", "date '9999-12-31' - n + 1", "k > '9999-06-14'", 200, 3, 8),
    "timestamp": (
        "k timestamp",
        "timestamp '2026-01-01 00:00:00.999999' + n * interval '1 hour'",
        "k BETWEEN '2026-02-01' AND '2026-02-09 07:00:00.999999'",
        200,
        3,
        8,
    ),
    "timestamptz": (
        "k timestamptz",
        "timestamptz '2026-01-01 00:00:00.999999+00' + n * interval '1 hour'",
        "k >= '2026-02-01 02:00:00+02:00' AND k < '2026-02-09 08:00:00Z'",
        200,
        3,
        8,
    ),
    "decimal": ("k numeric(12,3)", "n * 1.001", "k < 30.05", 30, 1, 1),
    "another column": ("k int", "n", "v BETWEEN 1000 AND 1029", 30, 1, 1),
    "another column, and many": ("k int", "n", "v BETWEEN 1000 AND 1399", 400, 100, 200),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RANGES)
def test_a_range_of_the_key_is_cut_and_nothing_else(run: Run, source: PostgresSource, name: str) -> None:
    column, expression, where, count, fewest, most = RANGES[name]
    table = filled(run, source, f"CREATE TABLE a ({column} PRIMARY KEY, v int, w text)", expression)
    assert len(source.plan_chunks(table, CHUNK)) > 100
    part = replace(table, selection=Selection(parse(where)))
    chunks = source.plan_chunks(part, CHUNK)
    assert fewest <= len(chunks) <= most
    found = keys(source, part, CHUNK)
    assert found == keys(source, part, 10**9)
    assert len(found) == len({*found}) == count


@pytest.mark.long
@pytest.mark.parametrize("where", ["k < '2000-07-10'", "k > '2027-01-01'", "k BETWEEN '2001-01-01' AND '2001-04-01'"])
def test_rows_beyond_all_days_are_in_one_chunk_as_well(run: Run, source: PostgresSource, where: str) -> None:
    table = filled(
        run, source, "CREATE TABLE a (k date, v int, w text, PRIMARY KEY (k, v))", "date '2000-01-01' + n / 2"
    )
    run("INSERT INTO a VALUES ('infinity', 1, 'x'), ('-infinity', 2, 'x'), ('0044-03-15 BC', 3, 'x')", "ANALYZE a")
    part = replace(table, selection=Selection(parse(where)))
    chunks = source.plan_chunks(part, CHUNK)
    assert len(chunks) > 2
    pushed = source.pushed_condition(part)
    with session(source.settings) as connection:
        ((wanted,),) = query(connection, f"SELECT count(*) FROM public.a WHERE {pushed}")
        counts = [
            query(connection, f"SELECT count(*) FROM public.a WHERE {place(part, chunk)[1]} AND ({pushed})")[0][0]
            for chunk in chunks
        ]
    assert sum(counts) == wanted


@pytest.mark.long
def test_estimates_of_a_table_that_was_never_analyzed_do_not_make_one_chunk_of_all_rows(
    run: Run, source: PostgresSource
) -> None:
    create = "CREATE TABLE a (k int PRIMARY KEY, v int, w text) WITH (autovacuum_enabled = off)"
    table = filled(run, source, create, "n", analyze=False)
    for where in (f"k BETWEEN 1 AND {ROWS}", f"k >= 1 AND k < {ROWS + 1} AND w = 'x'"):
        part = replace(table, selection=Selection(parse(where)))
        assert len(source.plan_chunks(part, CHUNK)) > 100
        run("ANALYZE a (v)")
        assert len(source.plan_chunks(part, CHUNK)) > 100
    assert keys(source, part, CHUNK) == list(range(1, ROWS + 1))
    run("ANALYZE a (k)")
    part = replace(table, selection=Selection(parse("k BETWEEN 1000 AND 1199 AND w = 'x'")))
    assert len(source.plan_chunks(part, CHUNK)) < 10


@pytest.mark.long
def test_each_partition_is_cut_by_itself(run: Run, source: PostgresSource) -> None:
    table = filled(
        run,
        source,
        "CREATE TABLE a (k int PRIMARY KEY, v int, w text) PARTITION BY RANGE (k);"
        "CREATE TABLE a_low PARTITION OF a FOR VALUES FROM (0) TO (10000);"
        "CREATE TABLE a_high (w text, k int NOT NULL, v int); "
        "ALTER TABLE a ATTACH PARTITION a_high FOR VALUES FROM (10000) TO (100000)",
        "n",
    )
    part = replace(table, selection=Selection(parse("k BETWEEN 9800 AND 10099 AND w = 'x'"), ("v",)))
    assert 5 <= len(source.plan_chunks(part, CHUNK)) <= 14
    assert keys(source, part, CHUNK) == list(range(9800, 10100))


def filled(run: Run, source: PostgresSource, create: str, expression: str, analyze: bool = True) -> Table:
    run(*create.split(";"))
    run(f"INSERT INTO a (k, v, w) SELECT {expression}, n, 'x' FROM generate_series(1, {ROWS}) n")
    run("CREATE INDEX ON a (v)", *(["ANALYZE a"] if analyze else []))
    with session(source.settings) as connection:
        (table,) = read_tables(connection, [TableName("public", "a")])
    return replace(table, options=TableOptions())


def keys(source: PostgresSource, table: Table, chunk_rows: int) -> list[object]:
    """Those of the rows that are copied, sorted."""
    chunks = source.plan_chunks(table, chunk_rows)
    assert table.selection.where is not None
    with source.reader(table, "watermark", LockPolicy()) as reader:
        batches = [batch for chunk in chunks for batch in reader.read(chunk)]
    found = [batch.filter(holds(table.selection.where, batch)) for batch in batches]
    return sorted(key for batch in found for key in batch["k"].to_pylist())
