"""Chunks must hold every row exactly once, whatever the key, and should be of even size.

The oracle for the first is a read of the whole table in the same transaction, in some tests with concurrent writers.
The tables are as difficult as real ones: holes, skew, values that fill a column, all types, collations in which texts
are equal.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.chunk import Bound, Chunk, partition
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.chunking import chunks
from airflow_provider_cdc.sources.mysql.chunking.axes import axis_of
from airflow_provider_cdc.sources.mysql.chunking.chunks import increasing
from airflow_provider_cdc.sources.mysql.server.session import query, session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.seeds import SOAK_SEED

ROWS = 3_000
CHUNK_ROWS = 150

# name: (columns, key, expressions of n = 1 … ROWS, one for each column)
TABLES = {
    "dense": ("k INT", "k", "n"),
    "hole of 10^12": ("k BIGINT", "k", f"IF(n <= {ROWS // 2}, n, 1000000000000 + n)"),
    "up to 2^64-1": ("k BIGINT UNSIGNED", "k", f"IF(n <= {ROWS // 2}, n, 18446744073709551615 - {ROWS} + n)"),
    "90 % in 1 %": ("k BIGINT", "k", f"IF(n % 10, {ROWS * 50000} + n * 7, n * 100000)"),
    "negative": ("k SMALLINT", "k", f"CAST(n AS SIGNED) - {ROWS // 2}"),
    "one value fills the first column": ("a INT; b INT", "a, b", "IF(n % 10, 500, n % 1000); n"),
    "few values in the first column": ("a YEAR; b INT", "a, b", "1990 + n % 5; n"),
    "three columns": (
        "t VARCHAR(20) COLLATE utf8mb4_bin; d DATE; i BIGINT",
        "t, d, i",
        "IF(n % 20, 'big', CONCAT('t', n % 50)); '2020-01-01' + INTERVAL IF(n % 3, 0, n % 365) DAY; n",
    ),
    "decimal": ("k DECIMAL(20,6)", "k", f"(CAST(n AS SIGNED) - {ROWS // 2}) * 1.000001 + n * n * 0.001"),
    "decimal without fraction": ("k DECIMAL(30,0)", "k", f"(CAST(n AS SIGNED) - {ROWS // 2}) * 1e15"),
    "date and text": ("d DATE; o VARCHAR(20)", "d, o", "'2019-12-28' + INTERVAL n % 30 DAY; CONCAT('o', n)"),
    "impossible dates": (
        "d DATE; i INT",
        "d, i",
        "ELT(1 + n % 4, '0000-00-00', '2024-02-31', '2024-00-07', '2024-03-01'); n",
    ),
    "datetime(6)": ("k DATETIME(6); i INT", "k, i", "'0999-12-31 23:59:58.999999' + INTERVAL n DIV 3 SECOND; n"),
    "timestamp(3)": ("k TIMESTAMP(3); i INT", "k, i", "'2037-01-01' + INTERVAL n * 377.001 SECOND; n"),
    "timestamp zero": (
        "k TIMESTAMP; i INT",
        "k, i",
        "IF(n % 3, '2001-01-01' + INTERVAL n * 86000 SECOND, '0000-00-00'); n",
    ),
    "time(3)": ("k TIME(3); i INT", "k, i", f"SEC_TO_TIME((CAST(n AS SIGNED) - {ROWS // 2}) * 190.001); n"),
    "bit(64)": ("k BIT(64)", "k", "n * n * 100000000000"),
    "binary(16)": ("k BINARY(16)", "k", "UNHEX(LEFT(SHA2(n, 224), 32))"),
    "binary with zeros": ("k BINARY(6)", "k", "UNHEX(CONCAT(LPAD(HEX(n * 64), 8, '0'), '0000'))"),
    "varbinary": ("k VARBINARY(64)", "k", "CONCAT('session:', SHA2(n, 224))"),
    "uuid text": ("k CHAR(36)", "k", "INSERT(INSERT(LEFT(SHA2(n, 224), 36), 9, 1, '-'), 14, 1, '-')"),
    "padded digits": ("k VARCHAR(40)", "k", "CONCAT('customer-', LPAD(n, 9, '0'))"),
    "digits": ("k VARCHAR(40)", "k", "CONCAT('customer-', n * 7)"),
    "words": (
        "k VARCHAR(60)",
        "k",
        "CONCAT(ELT(1 + n % 7, 'apple', 'Apricot', 'banana', 'Birne', 'Äpfel', 'Zebra', 'étoile'), ' ', SHA2(n, 224))",
    ),
    "Chinese": (
        "k VARCHAR(60)",
        "k",
        "CONCAT(CONVERT(CHAR(0x4E00 + n * 7919 % 20000 USING ucs2) USING utf8mb4), n)",
    ),
    "long prefix": (
        "k VARCHAR(255) CHARACTER SET latin1",
        "k",
        "CONCAT('https://www.example.com/shop/', n % 13, '/product/', SHA2(n, 224))",
    ),
    "enum after int": ("a INT; e ENUM('z','a','m')", "a, e", "n DIV 3; 1 + n % 3"),
    "descending index": ("a INT; b INT", "a DESC, b DESC", "n DIV 100; n"),
    "mixed directions": ("a INT; b INT", "a DESC, b", "n DIV 100; n"),
    "only a unique index": ("x INT NULL; k VARCHAR(20)", "", "n % 7; CONCAT('k', n)"),
    "odd names": ("`a?%s``` INT; `b{}` INT", "`a?%s```, `b{}`", "n DIV 100; n"),
}
UNEVEN = {"mixed directions": CHUNK_ROWS * 3}
WRITTEN = {"dense", "three columns", "only a unique index"}
"""The tables that are written to while they are read. The view of a reader does not depend on the key."""

COLLATIONS = """
    utf8mb4_0900_ai_ci utf8mb4_0900_as_cs utf8mb4_0900_bin utf8mb4_general_ci utf8mb4_bin utf8mb4_unicode_ci
    utf8mb4_danish_ci utf8mb4_hungarian_ci utf8mb4_zh_0900_as_cs utf8mb4_ja_0900_as_cs_ks utf8mb3_general_ci
    latin1_swedish_ci latin1_german2_ci latin1_bin cp1250_czech_cs latin2_czech_cs tis620_thai_ci koi8r_general_ci
    ucs2_general_ci utf16_unicode_ci utf16le_general_ci utf32_general_ci gbk_chinese_ci big5_chinese_ci sjis_japanese_ci
    gb18030_unicode_520_ci euckr_korean_ci
""".split()
LETTERS = "aAáÁàbBßsSzZéEcChHdD \t\x00~-_'\"%\\?019æÆøåĳœ漢字ひびビﾋกเแไж😀"


@pytest.fixture(scope="module")
def source(mysql: MysqlServer) -> MysqlSource:
    return MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))


@pytest.mark.parametrize("name", TABLES)
def test_every_row_once_and_even(name: str, source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    columns, key, expressions = TABLES[name]
    declared = [f"{column.strip()} NOT NULL".replace("NULL NOT NULL", "NULL") for column in columns.split(";")]
    with mysql.connect(database=schema, sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE t ({', '.join(declared)}, filler VARCHAR(250) NOT NULL, "
            + (f"PRIMARY KEY ({key}))" if key else "UNIQUE (k))")
        )
        cursor.execute(f"SET cte_max_recursion_depth = {ROWS}")
        cursor.execute(
            f"INSERT INTO t WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {ROWS}) "
            f"SELECT {expressions.replace(';', ',')}, REPEAT('x', 200) FROM c"
        )
    table = tables_of(source, schema)
    plan = source.plan_chunks(table, CHUNK_ROWS)
    if "impossible dates" in name or "zero" in name:
        sizes = count(source, table, plan)
    else:
        with writers(source, table) if name in WRITTEN else nullcontext():
            sizes = check(source, table, plan)
    assert len(plan) == 1 or max(sizes) <= UNEVEN.get(name, 3 * CHUNK_ROWS), sorted(sizes)[-5:]
    assert len(plan) >= ROWS / CHUNK_ROWS / 2, "hardly cut at all"


def test_a_chunk_is_read_as_a_range_of_the_index(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (a INT, b VARCHAR(20), c INT, PRIMARY KEY (a, b), KEY (c))")
    insert(mysql, schema, [(n % 40, f"k{n}", n) for n in range(8000)])
    table = tables_of(source, schema)
    with session(source.settings) as connection:
        for chunk in source.plan_chunks(table, 500)[1:-1]:
            condition, params = chunks.where(table, chunk)
            literal = condition.replace("?", "%s")
            (plan,) = query(connection, f"EXPLAIN FORMAT=TRADITIONAL SELECT * FROM {schema}.t WHERE {literal}", params)
            assert plan[4] == "range"
            assert plan[6] == "PRIMARY"


@pytest.mark.parametrize(
    ("kind", "collation"),
    [
        *(("VARCHAR", collation) for collation in COLLATIONS),
        *(pytest.param("CHAR", collation, marks=pytest.mark.long) for collation in COLLATIONS[::4]),
    ],
)
def test_texts_that_are_equal_to_the_server(
    collation: str, kind: str, source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    seed = SOAK_SEED or 0
    print(f"seed {seed}")
    dice = random.Random(seed)
    mysql.query(
        f"CREATE TABLE {schema}.t "
        f"(k {kind}(9) CHARACTER SET {collation.split('_')[0]} COLLATE {collation}, n INT, PRIMARY KEY (k))"
    )
    # The server converts a backslash to the second of two codes of sjis, which stops a run in a key.
    letters = LETTERS.replace("\\", "") if collation.startswith("sjis") else LETTERS
    texts = ["".join(dice.choices(letters, k=dice.randrange(8))) for _ in range(500)]
    insert(mysql, schema, [(text, n) for n, text in enumerate(texts)], ignore=True)
    table = tables_of(source, schema)
    sizes = check(source, table, source.plan_chunks(table, 15))
    assert len(sizes) > 10

    # Any other bounds will do as well, whether they are keys or not, if the server finds them increasing.
    given: list[Bound] = [
        (text.rstrip(" "),)
        for (text,) in mysql.query(
            "SELECT LEFT(CONVERT(k USING utf8mb4), 1 + RAND() * 8) "
            f"FROM (SELECT k FROM {schema}.t ORDER BY RAND() LIMIT 60) AS some ORDER BY k"
        )
    ]
    bounds = proved(source, table, given)
    assert len(bounds) > 10
    check(source, table, partition(bounds))


def test_bounds_that_do_not_increase_are_dropped(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (a INT, d DATE, k VARCHAR(9), PRIMARY KEY (a, d, k))")
    (table,) = [tables_of(source, schema)]
    good: list[Bound] = [(1,), (1, "2024-01-01"), (1, "2024-01-01", "B"), (1, "2024-01-02", "a"), (3, "2000-01-01")]
    assert proved(source, table, good) == good
    assert proved(source, table, [good[0], good[0], *good[1:]]) == good
    assert proved(source, table, [*good[:3], (1, "2024-01-01", "b"), *good[3:]]) == good  # equal to 'B'
    assert proved(source, table, [*good[:2], (2, "no date"), *good[2:]]) == good  # NULL to the server
    assert proved(source, table, [*good, (0,), (2,)]) == good
    assert proved(source, table, [(1, "no date"), (2,)]) == [(2,)]


def test_bounds_that_the_server_takes_for_other_values_are_dropped(source: MysqlSource) -> None:
    """Even if it would find them increasing: it must understand each as the value that is meant."""
    with session(source.settings) as connection:
        year = axis_of(Column("k", "year", False))
        time = axis_of(Column("k", "time(3)", False))
        assert year is not None
        assert time is not None
        assert increasing(connection, [year], [(0,), (5,), (70,), (1875,), (1901,), (2155,), (2156,)]) == [0, 4, 5]
        times: list[Bound] = [("-08:12:27.000",), ("08:12:27.000",), ("08:12:28.5",), ("838:59:59.000",)]
        assert increasing(connection, [time], times) == [0, 1, 3]
        # Read as a date's time of day, the second is 00:00:00, which is greater than the first. The others are no date.
        assert increasing(connection, [replace(time, bound="CAST({} AS TIME(3))")], times) == [0, 3]


def test_planning_costs_little_and_touches_no_rows(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (a INT, b INT, k VARCHAR(40), PRIMARY KEY (a, b))")
    insert(mysql, schema, [(5 if n % 10 else n, n, "x") for n in range(20_000)])
    table = tables_of(source, schema)
    with session(source.settings) as connection:
        query(connection, "FLUSH STATUS")
        # The CPU time of this thread, which is independent of the load of the machine.
        before = time.thread_time()
        plan = chunks.plan_chunks(connection, table, 1000)
        seconds = time.thread_time() - before
        read = dict(query(connection, "SHOW SESSION STATUS LIKE 'Handler_read_%'"))
        statements = int(dict(query(connection, "SHOW SESSION STATUS LIKE 'Questions'"))["Questions"])
    assert len(plan) >= 10
    # Most of these are rows of the statements' own temporary tables.
    assert sum(map(int, read.values())) < 1000, read
    assert statements < 30
    assert seconds < 2


def test_a_table_of_one_chunk_asks_nothing(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k INT PRIMARY KEY)")
    table = tables_of(source, schema)
    with session(source.settings) as connection:
        connection.close()
        assert chunks.plan_chunks(connection, table, 1000) == [Chunk(0, None, None, 0)]
    assert chunks.where(table, Chunk(0)) == ("", [])


@pytest.mark.parametrize(
    "key", ["k FLOAT PRIMARY KEY", "k ENUM('b','a') PRIMARY KEY", "k TEXT NOT NULL, PRIMARY KEY (k(3))", "k INT"]
)
def test_keys_that_cannot_be_cut_are_read_in_one(
    key: str, source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t ({key}, n INT)")
    insert(mysql, schema, [(1 + n % 2 if "ENUM" in key else n, n) for n in range(3000)], ignore=True)
    table = tables_of(source, schema)
    table = Table(table.name, table.columns, table.key, table.key_index, rows=3000, bytes=10**6)
    plan = source.plan_chunks(table, 100)
    assert [(chunk.lower, chunk.upper) for chunk in plan] == [(None, None)]


@pytest.mark.parametrize("kind", ["VARCHAR(3000) CHARACTER SET latin1", "VARBINARY(3000)"])
def test_long_keys_are_cut_by_statements_that_the_server_takes(
    kind: str, source: MysqlSource, mysql: MysqlServer, schema: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k {kind} PRIMARY KEY, n INT)")
    insert(mysql, schema, [(f"{'x' * 1500}{n * 7919 % 400:05}", n) for n in range(400)])
    packet = mysql.query("SELECT @@global.max_allowed_packet")[0][0]
    try:
        for allowed in (1 << 16, 1 << 14):
            mysql.query(f"SET GLOBAL max_allowed_packet = {allowed}")
            table = tables_of(source, schema)
            plan = source.plan_chunks(table, 20)
            sizes = check(source, table, plan)
            # Where there is hardly room for one key, a table is not cut.
            assert len(plan) >= 10 and max(sizes) <= 60 if allowed > 1 << 14 else len(plan) == 1, sorted(sizes)
    finally:
        mysql.query(f"SET GLOBAL max_allowed_packet = {packet}")


def test_wrong_estimates_only_make_chunks_uneven(source: MysqlSource, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k INT PRIMARY KEY)")
    insert(mysql, schema, [(n * n,) for n in range(3000)])
    table = tables_of(source, schema)
    for rows in (1, 200, 1_000_000):
        wrong = Table(table.name, table.columns, table.key, table.key_index, rows=rows, bytes=10**6)
        check(source, wrong, source.plan_chunks(wrong, 100))


def tables_of(source: MysqlSource, schema: str) -> Table:
    with session(source.settings) as connection:
        query(connection, f"ANALYZE NO_WRITE_TO_BINLOG TABLE {schema}.t")
        (table,) = read_tables(connection, [TableName(schema, "t")])
    return table


def insert(mysql: MysqlServer, schema: str, rows: Sequence[tuple[Any, ...]], *, ignore: bool = False) -> None:
    marks = ", ".join(["%s"] * len(rows[0]))
    with mysql.connect(database=schema, sql_mode="") as connection, connection.cursor() as cursor:
        cursor.executemany(f"INSERT {'IGNORE ' if ignore else ''}INTO t VALUES ({marks})", rows)


def proved(source: MysqlSource, table: Table, bounds: Sequence[Bound]) -> list[Bound]:
    axes = [axis for name in table.key if (axis := axis_of(table.column(name)))]
    with session(source.settings) as connection:
        return [bounds[index] for index in increasing(connection, axes, bounds)]


def check(source: MysqlSource, table: Table, plan: Sequence[Chunk]) -> list[int]:
    """Assert that the chunks hold each row of the table once; returns the rows of each."""
    with source.reader(table, "lock", LockPolicy()) as reader:
        whole = keys(reader.read(Chunk(0)), table)
        parts = [keys(reader.read(chunk), table) for chunk in plan]
    assert sorted(key for part in parts for key in part) == sorted(whole)
    return list(map(len, parts))


def keys(batches: Iterable[pa.RecordBatch], table: Table) -> list[str]:
    columns = list(table.key)
    return [repr(tuple(row.values())) for batch in batches for row in batch.select(columns).to_pylist()]


def count(source: MysqlSource, table: Table, plan: Sequence[Chunk]) -> list[int]:
    """Do as `check`, but count rows, because the table has values that no Arrow type holds."""
    with session(source.settings) as connection:
        query(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        conditions = [chunks.where(table, chunk) for chunk in plan]
        sizes = [
            int(
                query(connection, f"SELECT COUNT(*) FROM {table.name} WHERE {condition.replace('?', '%s')}", params)[0][
                    0
                ]
            )
            for condition, params in conditions
        ]
        every = " + ".join(f"({condition.replace('?', '%s')})" for condition, _ in conditions)
        params = [value for _, values in conditions for value in values]
        assert query(connection, f"SELECT COUNT(*), SUM({every} <> 1) FROM {table.name}", params) == [(sum(sizes), 0)]
        return sizes


@contextmanager
def writers(source: MysqlSource, table: Table) -> Iterator[None]:
    """Keep deleting and re-inserting rows, so that no two reads see the same."""
    stop = threading.Event()
    name = str(table.name)

    def write() -> None:
        columns = ", ".join(f"`{column.name.replace('`', '``')}`" for column in table.columns)
        with pymysql.connect(
            host=source.settings.host,
            port=source.settings.port,
            user="root",
            database=table.name.schema,
            autocommit=True,
            sql_mode="",
        ) as connection:
            query(connection, f"CREATE TEMPORARY TABLE moved LIKE {name}")
            while not stop.is_set():
                query(
                    connection,
                    f"INSERT INTO moved SELECT {columns} FROM {name} ORDER BY RAND() LIMIT 20",
                )
                query(connection, f"DELETE t FROM {name} AS t NATURAL JOIN moved")
                time.sleep(0.002)
                query(connection, f"INSERT IGNORE INTO {name} SELECT * FROM moved")
                query(connection, "DELETE FROM moved")

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        try:
            yield
        finally:
            stop.set()
        written.result()
