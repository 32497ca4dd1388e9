"""Rows by prepared statements: streaming, its limits, and the state of the session after an error."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.kernels import bytes_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    DecodeError,
    SchemaChanged,
    SourceUnavailable,
    TransientError,
    ValueNotRepresentable,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.decode import stream as packets
from airflow_provider_cdc.sources.mysql.decode.cells import Located
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader, row_cells
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from airflow_provider_cdc.sources.mysql.tables.types import column_types
from harness.mysql_server import MysqlServer
from tests.seeds import SOAK_SEED
from tests.sources.guarded import guarded
from tests.sources.mysql.decode.row_images import describe, settings
from tests.sources.mysql.values import CASES, UNREPRESENTABLE, Case, create_table, rows_of

NUMBERS = "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT"
DEEP = "SET SESSION cte_max_recursion_depth = 1000000, sql_log_bin = 0"


@contextmanager
def reading(server: MysqlServer, table: Table, **tls: str) -> Iterator[tuple[Connection, StatementReader]]:
    with (
        session(settings(server, **tls), reading=True) as connection,
        StatementReader(connection, table) as reader,
    ):
        yield connection, reader


def rows(reader: StatementReader, where: str = "", params: tuple[int | str | bytes, ...] = ()) -> pa.Table:
    return pa.Table.from_batches(reader.read(where, params), reader.schema)


def thread(connection: Connection) -> int:
    return int(value(connection, "CONNECTION_ID()"))


def fill(server: MysqlServer, sql: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(DEEP)
        cursor.execute(sql)


@pytest.fixture(scope="module")
def large(mysql: MysqlServer) -> Iterator[Table]:
    """A table of a million rows, more than any buffer holds."""
    schema = "rows_large"
    mysql.query(f"CREATE DATABASE {schema}")
    mysql.query(f"CREATE TABLE {schema}.large (id bigint PRIMARY KEY, v varchar(40), n decimal(20,3), d datetime(6))")
    fill(
        mysql,
        f"INSERT INTO {schema}.large {NUMBERS} a.i * 1000 + b.i - 1001, IF(b.i % 7, CONCAT('value ', b.i), NULL), "
        "a.i + b.i / 1000, '2024-01-01' + INTERVAL a.i MINUTE FROM n a, n b",
    )
    yield describe(mysql, schema, "large")
    mysql.query(f"DROP DATABASE {schema}")


@pytest.mark.slow
def test_a_million_rows_in_bounded_memory(mysql: MysqlServer, large: Table) -> None:
    with reading(mysql, large) as (_, reader):
        before = pa.total_allocated_bytes()
        count = total = most = 0
        for batch in reader.read("", ()):
            most = max(most, pa.total_allocated_bytes() - before)
            count += batch.num_rows
            total += int(np.asarray(batch["id"]).sum())
            batch.validate(full=True)
            del batch
    assert (count, total) == (1_000_000, 999_999 * 500_000)
    assert most < 32 << 20


def test_tls(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v longtext)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, REPEAT('x', 300000)), (2, 'y')")
    with reading(mysql, describe(mysql, schema, "t"), mode="required") as (connection, reader):
        with connection.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            assert cursor.fetchone()[1]
        assert rows(reader).to_pydict() == {"id": [1, 2], "v": ["x" * 300_000, "y"]}


@pytest.mark.slow
def test_payloads_around_the_packet_limit(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, b longblob)")
    limit = 2**24 - 1
    # A row's payload: zero byte, bitmap, id, a length of 4 (or 9) bytes, the value.
    sizes = [limit - 10 - 1, limit - 10, limit - 10 + 1, 2 * limit - 15, 2 * limit - 15 + 1, 40_000_000, 3]
    for number, size in enumerate(sizes):
        fill(mysql, f"INSERT INTO {schema}.t VALUES ({number}, CONCAT(REPEAT('a', {size} - 2), 'bc'))")
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        seen = []
        for batch in reader.read("", ()):
            for value in batch["b"]:
                seen.append(len(value.as_buffer()))
                assert value.as_buffer().to_pybytes() == b"a" * (seen[-1] - 2) + b"bc"
    assert seen == sizes


def test_more_columns_than_a_batch_has_rows(mysql: MysqlServer, schema: str) -> None:
    columns = ", ".join(f"c{number} tinyint" for number in range(1016))
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {columns})")
    fill(mysql, f"INSERT INTO {schema}.t (id, c0, c1015) {NUMBERS} i, i % 100, IF(i % 2, 7, NULL) FROM n")
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        found = rows(reader)
    assert found["id"].to_pylist() == list(range(1, 1001))
    assert found["c0"].to_pylist() == [i % 100 for i in range(1, 1001)]
    assert found["c500"].null_count == 1000
    assert found["c1015"].to_pylist() == [7 if i % 2 else None for i in range(1, 1001)]


def test_an_empty_table_and_no_matching_row(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v enum('a'), w set('b'), x text, y date)")
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        assert list(reader.read("", ())) == []
        mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'a', 'b', 'c', '2024-01-01')")
        assert rows(reader).num_rows == 1
        assert rows(reader, "`id` > ?", (1,)).num_rows == 0


def test_names_that_need_quoting(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.`a``b c` (`select` int PRIMARY KEY, `x``y` enum('ü'))")
    mysql.query(f"INSERT INTO {schema}.`a``b c` VALUES (1, 'ü')")
    with reading(mysql, describe(mysql, schema, "a`b c")) as (_, reader):
        assert rows(reader).to_pydict() == {"select": [1], "x`y": ["ü"]}


@pytest.mark.parametrize(
    ("declaration", "bounds"),
    [
        ("bigint", [-(2**63), -1, 0, 2**63 - 1]),
        ("bigint unsigned", [0, 2**63 - 1, 2**63, 2**64 - 1]),
        ("decimal(30,5)", ["-1234567890123456789012345.12345", "0.00001", "1234567890123456789012345.12345"]),
        ("varchar(300) COLLATE utf8mb4_bin", ["", "a'b\\c", "x" * 255, "ü", "😀"]),
        ("varbinary(300)", [b"", b"\0\xff", b"a" * 251, b"a" * 300, b"\xff"]),
        ("datetime(6)", ["2024-01-01 00:00:00.000001", "2024-01-01 00:00:00.000002"]),
    ],
)
def test_parameters_of_every_kind(
    mysql: MysqlServer, schema: str, declaration: str, bounds: list[int | str | bytes]
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k {declaration} PRIMARY KEY)")
    with mysql.connect() as connection, connection.cursor() as cursor:
        for value in bounds:
            cursor.execute(f"INSERT INTO {schema}.t VALUES (%s)", (value,))
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        keys = rows(reader)["k"].to_pylist()
        assert len(keys) == len(bounds)
        for lower in bounds:
            below = rows(reader, "`k` < ?", (lower,)).num_rows
            assert rows(reader, "`k` = ?", (lower,)).num_rows == 1
            assert below + rows(reader, "`k` >= ?", (lower,)).num_rows == len(bounds)
            for upper in bounds:
                between = rows(reader, "`k` >= ? AND `k` < ?", (lower, upper)).num_rows
                assert between == max(0, rows(reader, "`k` < ?", (upper,)).num_rows - below)


def test_an_integer_of_more_than_64_bits_is_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k int PRIMARY KEY)")
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        with pytest.raises(ValueError, match="64 bits"):
            list(reader.read("`k` = ?", (2**64,)))
        assert rows(reader, "`k` = ?", (1,)).num_rows == 0


def test_a_session_that_translates_text_is_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k int PRIMARY KEY)")
    table = describe(mysql, schema, "t")
    with session(settings(mysql)) as connection, pytest.raises(ConfigurationError, match="character_set_results"):
        StatementReader(connection, table)
    with session(settings(mysql), reading=True) as connection:
        connection.cursor().execute("SET time_zone = '+01:00'")
        with pytest.raises(ConfigurationError, match="time_zone"):
            StatementReader(connection, table)


@pytest.mark.slow
def test_a_read_that_is_abandoned_closes_the_session(mysql: MysqlServer, large: Table) -> None:
    with reading(mysql, large) as (connection, reader):
        batches = reader.read("", ())
        next(batches)
        cast(Generator[pa.RecordBatch, None, None], batches).close()
        assert not connection.open


def test_a_value_without_an_arrow_type_closes_the_session(mysql: MysqlServer, schema: str) -> None:
    # In a key it stops the read at once.
    key = "id int AUTO_INCREMENT, d datetime, PRIMARY KEY (id, d)"
    mysql.query(f"CREATE TABLE {schema}.t ({key}, filler varchar(1000))")
    ten_thousand = f"{NUMBERS} REPEAT('x', 1000), '2024-01-01' FROM n, (SELECT 1 FROM n LIMIT 10) ten"
    fill(mysql, f"INSERT INTO {schema}.t (filler, d) {ten_thousand}")
    with mysql.connect() as writer, writer.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"UPDATE {schema}.t SET d = 0 WHERE id = 10")
    with reading(mysql, describe(mysql, schema, "t")) as (connection, reader):
        with pytest.raises(ValueNotRepresentable, match="0000-00-00 00:00:00"):
            rows(reader)
        assert not connection.open


def test_an_error_halfway_leaves_the_session_usable(mysql: MysqlServer, large: Table) -> None:
    with reading(mysql, large) as (connection, reader):
        victim = thread(connection)
        batches = reader.read("", ())
        next(batches)
        mysql.query(f"KILL QUERY {victim}")
        with pytest.raises(TransientError, match="interrupted"):
            list(batches)
        assert rows(reader, "`id` < ?", (3,)).num_rows == 3


def test_a_killed_session_is_unavailable(mysql: MysqlServer, large: Table) -> None:
    with reading(mysql, large) as (connection, reader):
        victim = thread(connection)
        batches = reader.read("", ())
        next(batches)
        mysql.query(f"KILL {victim}")
        with pytest.raises(SourceUnavailable):
            list(batches)


def test_a_condition_that_the_server_refuses_leaves_the_session_usable(mysql: MysqlServer, large: Table) -> None:
    with reading(mysql, large) as (_, reader):
        with pytest.raises(CdcError, match="SQL syntax"):
            list(reader.read("`id` <", ()))
        assert rows(reader, "`id` < ?", (3,)).num_rows == 3


@pytest.mark.parametrize(
    "change", ["MODIFY v bigint", "MODIFY v int unsigned", "DROP COLUMN v", "RENAME COLUMN v TO w", "MODIFY v text"]
)
def test_a_changed_column_is_noticed(mysql: MysqlServer, schema: str, change: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, v int)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 2)")
    with reading(mysql, describe(mysql, schema, "t")) as (_, reader):
        assert rows(reader).num_rows == 1
        mysql.query(f"ALTER TABLE {schema}.t {change}")
        with pytest.raises(SchemaChanged):
            list(reader.read("", ()))


@pytest.mark.slow
def test_reading_imports_no_pandas(mysql: MysqlServer, schema: str) -> None:
    """It would take longer than reading a small table."""
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, e enum('a'), s set('b'), d datetime, v text)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'a', 'b', '2024-01-01', 'x')")
    code = (
        "import sys; from tests.sources.mysql.decode.test_rows import read_once;"
        f"read_once({mysql.port}, {schema!r}); sys.exit('pandas' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )


def read_once(port: int, schema: str) -> None:
    source = ConnectionSettings("mysql", "127.0.0.1", port, "root")
    with session(source, reading=True) as connection:
        (table,) = read_tables(connection, [TableName(schema, "t")])
        with StatementReader(connection, table) as reader:
            assert rows(reader).num_rows == 1


def _payload(row: bytes, sequence: int) -> bytes:
    return len(row).to_bytes(3, "little") + bytes([sequence & 0xFF]) + row


MIXED = CASES[:12] + CASES[60:75] + tuple(case for case in CASES if "(64)" in case.declaration)
SPATIAL = tuple(case for case in CASES if case.declaration.startswith(("geom", "point", "vector(3", "json", "set")))


@pytest.mark.parametrize(
    ("cases", "policy"),
    [(MIXED, "error"), (SPATIAL, "error"), (UNREPRESENTABLE, "string"), (UNREPRESENTABLE, "null")],
    ids=["mixed", "spatial", "string", "null"],
)
def test_a_damaged_row_is_refused_and_nothing_after_it_is_read(
    mysql: MysqlServer, schema: str, cases: tuple[Case, ...], policy: str
) -> None:
    mysql.query(create_table(f"{schema}.t", cases))
    values = ", ".join(f"({number}, {', '.join(row)})" for number, row in enumerate(rows_of(cases)[1:4]))
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"INSERT INTO {schema}.t VALUES {values}")
    table = replace(describe(mysql, schema, "t"), options=TableOptions(unrepresentable=policy))
    columns = column_types(table)
    with reading(mysql, table) as (_, reader):
        (batch,) = reader.read("", ())
        stream = reader._stream
        state = stream.state
        received = stream.buffer[: state[packets.STATE_FILLED]].tobytes()
    packets_seen, position = [], 0
    while position < len(received):
        size = int.from_bytes(received[position : position + 3], "little")
        packets_seen.append(received[position + 4 : position + 4 + size])
        position += 4 + size
    good = [packet for packet in packets_seen if packet[:1] == b"\0"]
    assert len(good) == batch.num_rows == 3

    seed = SOAK_SEED or 0
    print(f"seed {seed}")
    chance = random.Random(seed)
    widths = np.array([column.row_width for column in columns], np.int32)
    outcomes = {True: 0, False: 0}
    for round_ in range(400):
        row = bytearray(chance.choice(good))
        if round_ % 2:
            del row[chance.randrange(1, len(row)) :]
        for _ in range(chance.randrange(1, 4)):
            row[chance.randrange(len(row))] ^= 1 << chance.randrange(8)
        row[0] = 0
        with guarded(_payload(bytes(row), 1)) as buffer:
            data = bytes_of(buffer)
            places = np.empty((2, len(columns), 4), np.int32)
            nulls, totals = np.zeros((2, len(columns)), np.int64)
            state = np.array([0, len(data), 1, 0], np.int64)
            code = packets.locate_rows(data, state, widths, places[0], places[1], nulls, totals)
            if code == packets.BAD_ROW:
                outcomes[False] += 1
                continue
            assert (code, state[packets.STATE_ROWS]) == (packets.NEEDS_BYTES, 1)
            located = Located(data, places[0], places[1], nulls, totals, 1)
            try:
                for index, column in enumerate(columns):
                    finish("t", column, row_cells(located, index, column)).validate(full=True)
                outcomes[True] += 1
            except (DecodeError, ValueNotRepresentable):
                outcomes[False] += 1
    assert outcomes[False] > 190
    assert outcomes[True] > 10


LIES = [
    *(bytes([length]) for length in (3, 100, 250, 251, 255)),
    *(b"\xfc" + length.to_bytes(2, "little") for length in (3, 2**15, 2**16 - 1)),
    *(b"\xfd" + length.to_bytes(3, "little") for length in (3, 2**23, 2**24 - 1)),
    *(
        b"\xfe" + length.to_bytes(8, "little")
        for length in (20, 2**31, 2**32, 2**63 - 20, 2**63, 2**64 - 20, 2**64 - 1)
    ),
    *(b"\xfc", b"\xfc\0", b"\xfd\0\0", b"\xfe", b"\xfe" + bytes(7)),
]


@pytest.mark.parametrize("length", LIES, ids=bytes.hex)
def test_a_length_that_lies_is_refused(length: bytes) -> None:
    negated = (-int.from_bytes(length[1:], "little") % 2**64).to_bytes(8, "little")
    # What follows might bring the sum of all lengths back to what it should be.
    for rest in (b"", b"x", b"\xfe" + negated) if len(length) in (1, 3, 4, 9) else (b"",):
        row = b"\0\0" + length + rest
        with guarded(_payload(row, 1)) as buffer:
            data, state = bytes_of(buffer), np.array([0, len(row) + 4, 1, 0], np.int64)
            places, sums = np.empty((2, 2, 4), np.int32), np.zeros((2, 2), np.int64)
            code = packets.locate_rows(data, state, np.zeros(2, np.int32), places[0], places[1], sums[0], sums[1])
        assert code == packets.BAD_ROW


@pytest.mark.slow
def test_a_packet_out_of_sequence_is_refused() -> None:
    data = np.frombuffer(_payload(b"\0\0\0\0\0\0", 1) + _payload(b"\0\0\0\0\0\0", 3), np.uint8)
    places, sums = np.empty((2, 1, 9), np.int32), np.zeros((2, 1), np.int64)
    state = np.array([0, len(data), 1, 0], np.int64)
    assert (
        packets.locate_rows(data, state, np.array([4], np.int32), places[0], places[1], sums[0], sums[1])
        == packets.BAD_SEQUENCE
    )
    assert state[packets.STATE_ROWS] == 1


@pytest.mark.slow
def test_packets_in_any_pieces() -> None:
    rows_sent = b"".join(_payload(b"\0\0" + number.to_bytes(4, "little"), number) for number in range(300))
    for step in (1, 3, 7, 1000):
        data, state = np.frombuffer(rows_sent, np.uint8), np.zeros(4, np.int64)
        places, sums = np.empty((2, 1, 400), np.int32), np.zeros((2, 1), np.int64)
        for filled in [*range(0, len(data), step), len(data)]:
            state[packets.STATE_FILLED] = filled
            code = packets.locate_rows(data, state, np.array([4], np.int32), places[0], places[1], sums[0], sums[1])
            assert code == packets.NEEDS_BYTES
        assert state[packets.STATE_ROWS] == 300
        assert [int(data[start]) | int(data[start + 1]) << 8 for start in places[0, 0, :300]] == list(range(300))
