"""With a condition on the key, MySQL reads only that range; chosen columns have the same values as in full rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_cdc.core.filters.evaluator import holds
from airflow_provider_cdc.core.filters.parser import parse
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

ROWS = 20_000


def test_one_percent_of_a_table_is_read_where_one_percent_is_copied(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, day DATE, note VARCHAR(40))")
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET cte_max_recursion_depth = 100000")
        cursor.execute(
            f"INSERT INTO t WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS}) "
            "SELECT i, DATE '2020-01-01' + INTERVAL i DAY, REPEAT('x', 40) FROM n"
        )
        cursor.execute("ANALYZE TABLE t")
    source = MysqlSource(settings_of(mysql))
    plans = source.preflight([f"{schema}.t"])
    (whole,) = source.tables_of(plans)

    def read(condition: str) -> tuple[int, int]:
        """The rows that the server sends, and the rows that it reads."""
        table = replace(whole, selection=Selection(parse(condition)))
        chunks = source.plan_chunks(whole, 1000)
        assert len(chunks) > 10
        with source.reader(table, "watermark", LockPolicy()) as reader:
            before = looked_at()
            sent = sum(batch.num_rows for chunk in chunks for batch in reader.read(chunk))
            return sent, looked_at() - before

    def looked_at() -> int:
        return int(mysql.query("SHOW GLOBAL STATUS LIKE 'Innodb_rows_read'")[0][1])

    sent, seen = read("id > 19800 AND note LIKE 'x%'")
    assert sent == 200
    assert seen < 2 * 200
    sent, seen = read("day < '2020-01-11' OR id = 20000")
    assert sent == 10
    assert seen >= ROWS


def filled(mysql: MysqlServer, schema: str, columns: str, expressions: str, rows: int) -> tuple[MysqlSource, Table]:
    """A table of this many rows, n = 1, 2, …"""
    mysql.query(f"CREATE TABLE {schema}.t ({columns})")
    with mysql.connect(database=schema, sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute("SET cte_max_recursion_depth = 100000, time_zone = '+00:00'")
        cursor.execute(
            f"INSERT INTO t WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {rows}) "
            f"SELECT {expressions} FROM c"
        )
        cursor.execute("ANALYZE TABLE t")
    source = MysqlSource(settings_of(mysql))
    (table,) = source.tables_of(source.preflight([f"{schema}.t"]))
    return source, table


RANGES = {
    "up to 2^64-1": ("k BIGINT UNSIGNED", "18446744073709545615 + n", "k > 18446744073709551515", 100),
    "up to 2^63-1": ("k BIGINT", "9223372036854769807 + n", "k >= 9223372036854775758 AND k < 9223372036854775807", 49),
    "from -2^63": ("k BIGINT", "-9223372036854775809 + n", "k < -9223372036854775709", 99),
    "decimal": ("k DECIMAL(7,3)", "(CAST(n AS SIGNED) - 3000) * 3.333", "k BETWEEN -100 AND 99.999", 61),
    "the greatest decimal": ("k DECIMAL(5,1)", "10000 - n * 0.1", "k > 9989.9 AND k <= 9999.9", 100),
    "wide decimal": ("k DECIMAL(38,2)", "n * 1000000000000000000000", "k < 51000000000000000000000.01", 51),
    "date": ("k DATE", "'2000-01-01' + INTERVAL n DAY", "k >= '2016-03-01' AND k <> '2016-03-02'", None),
    "the last day": ("k DATE", "DATE '9999-12-31' - INTERVAL n - 1 DAY", "k > '9999-09-30' AND k <= '9999-12-31'", 92),
    "the first day": ("k DATE", "DATE '0001-01-01' + INTERVAL n - 1 DAY", "k >= '0001-01-01' AND k < '0001-02-01'", 31),
    "zero dates": ("k DATE", "IF(n = 1, '0000-00-00', '2000-01-01' + INTERVAL n DAY)", "k <= '2000-02-01'", None),
    "datetime(6)": (
        "k DATETIME(6)",
        "'2026-01-01 00:00:00.999999' + INTERVAL n HOUR",
        "k BETWEEN '2026-02-01' AND '2026-02-03 23:00:00.999999'",
        72,
    ),
    "timestamp(3)": (
        "k TIMESTAMP(3)",
        "'2026-01-01 00:00:00.125' + INTERVAL n HOUR",
        "k >= '2026-02-01 00:00:00Z' AND k < '2026-02-04 01:00:00.125+01:00'",
        72,
    ),
    "the first times": (
        "k TIMESTAMP",
        "FROM_UNIXTIME(n * 3600)",
        "k <= '1970-01-05 04:00:00Z' AND k > '0001-01-01 00:00:00Z'",
        100,
    ),
    "nothing": ("k INT", "n", "k > 100 AND k < 50", 0),
    "one key": ("k INT", "n", "k = 77", 1),
}


@pytest.mark.long
@pytest.mark.parametrize("name", RANGES)
def test_a_plan_of_a_range_of_the_key_has_all_of_it_and_little_else(name: str, mysql: MysqlServer, schema: str) -> None:
    column, expression, where, count = RANGES[name]
    columns = f"{column} NOT NULL, filler VARCHAR(200), PRIMARY KEY (k)"
    source, whole = filled(mysql, schema, columns, f"{expression}, REPEAT('x', 200)", 6000)
    whole = replace(whole, options=replace(whole.options, unrepresentable="null" if name != "zero dates" else "string"))
    every = source.plan_chunks(whole, 20)
    assert len(every) > 150
    term = parse(where)
    if name == "zero dates":
        # Dates are then texts, and no condition on them is sent.
        assert source.plan_chunks(replace(whole, selection=Selection(term)), 20) == every
        return
    table = replace(whole, selection=Selection(term))
    chunks = source.plan_chunks(table, 20)
    assert [chunk.lower is None for chunk in chunks] == [number == 0 for number in range(len(chunks))]
    assert chunks[-1].upper is None
    with source.reader(table, "watermark", LockPolicy()) as reader:
        found = [batch.filter(holds(term, batch)) for chunk in chunks for batch in reader.read(chunk)]
    keys = [key for batch in found for key in batch["k"].to_pylist()]
    with source.reader(whole, "watermark", LockPolicy()) as reader:
        (batch,) = reader.read(Chunk(0))
    wanted = batch.filter(holds(term, batch))["k"].to_pylist()
    assert sorted(keys) == sorted(wanted)
    assert count is None or len(wanted) == count
    assert len(wanted) / 60 <= len(chunks) <= 2 + len(wanted) / 5


@pytest.mark.long
def test_one_value_of_the_first_key_column_is_cut_along_the_next(mysql: MysqlServer, schema: str) -> None:
    columns = "tenant INT NOT NULL, id INT NOT NULL, filler VARCHAR(200), PRIMARY KEY (tenant, id)"
    source, whole = filled(mysql, schema, columns, "IF(n % 2, 5, n % 50), n, REPEAT('x', 200)", 6000)
    table = replace(whole, selection=Selection(parse("tenant = 5 AND filler LIKE 'x%'")))
    chunks = source.plan_chunks(table, 200)
    assert 12 <= len(chunks) <= 35
    with source.reader(table, "watermark", LockPolicy()) as reader:
        sizes = [sum(batch.num_rows for batch in reader.read(chunk)) for chunk in chunks]
    assert sum(sizes) == 3000
    assert max(sizes) < 600


def test_no_smaller_index_stands_in_for_the_rows(mysql: MysqlServer, schema: str) -> None:
    """It would give them in its own order, in which no statistics rule out any file."""
    columns = "id INT PRIMARY KEY, kind INT, note VARCHAR(200), KEY (kind)"
    source, whole = filled(mysql, schema, columns, "n, n % 7, REPEAT('x', 200)", 2000)
    mysql.query(f"CREATE TABLE {schema}.k (kind INT, note VARCHAR(200), KEY (kind))")
    mysql.query(f"INSERT INTO {schema}.k SELECT kind, note FROM {schema}.t ORDER BY id")
    (keyless,) = source.tables_of(source.preflight([f"{schema}.k"]))
    for table, consistency in ((whole, "watermark"), (keyless, "lock")):
        part = replace(table, selection=Selection(None, ("kind",)))
        with source.reader(part, consistency, LockPolicy()) as reader:
            (batch,) = reader.read(Chunk(0))
        assert batch["kind"].to_pylist() == [n % 7 for n in range(1, 2001)]
