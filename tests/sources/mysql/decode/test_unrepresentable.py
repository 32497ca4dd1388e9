"""Values that no Arrow type holds never become wrong values or unreported nulls, and never make two rows one."""

from __future__ import annotations

import datetime
import decimal
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import bytes_of
from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.tables.row_bytes import encode
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import ConfigurationError, DecodeError, PreflightError, ValueNotRepresentable
from airflow_provider_cdc.sources.log.netting import Located
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.decode.columns import finish
from airflow_provider_cdc.sources.mysql.decode.images import expected_table_map
from airflow_provider_cdc.sources.mysql.decode.rows import row_cells
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, arrow_schema
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from tests.seeds import some
from tests.sources.guarded import guarded
from tests.sources.mysql.decode.policies import decode, holds, select
from tests.sources.mysql.decode.reading import same, split
from tests.sources.mysql.decode.row_images import UPDATE_ROWS, describe, logged, settings
from tests.sources.mysql.values import UNREPRESENTABLE as CASES
from tests.sources.mysql.values import create_table, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def policed(server: MysqlServer, schema: str, policy: str) -> Table:
    return replace(describe(server, schema, "t"), options=TableOptions(unrepresentable=policy))


def fill(server: MysqlServer, schema: str) -> list[bytes]:
    """A table of all cases; returns its images. Their order is that of ``id``."""
    server.query(create_table(f"{schema}.t", CASES))
    rows = rows_of(CASES)
    events = logged(
        server, schema, [f"INSERT INTO t VALUES ({number}, {', '.join(row)})" for number, row in enumerate(rows)]
    )
    table = describe(server, schema, "t")
    assert all(
        (event.types, event.metadata)
        == expected_table_map(replace(table, options=TableOptions(unrepresentable="string")))
        for event in events
    )
    return [event.body for event in events]


def printed(server: MysqlServer, schema: str) -> list[tuple[str | None, ...]]:
    """What the server itself prints of each case's column."""
    columns = ", ".join(f"CONCAT(c{number})" for number in range(len(CASES)))
    found: list[tuple[str | None, ...]] = server.query(f"SELECT {columns} FROM {schema}.t ORDER BY id")
    return found


def test_as_text_every_value_is_what_the_server_prints(mysql: MysqlServer, schema: str) -> None:
    images = fill(mysql, schema)
    table = policed(mysql, schema, "string")
    selected, nulled = select(mysql, table)
    assert [field.type for field in selected.schema][1:] == [pa.utf8()] * len(CASES)
    columns = [column.to_pylist() for column in selected.columns[1:]]
    assert list(zip(*columns, strict=True)) == printed(mysql, schema)
    decoded, also_nulled = decode(table, images)
    assert same(decoded, selected)
    updated = logged(mysql, schema, ["UPDATE t SET id = id + 1000 ORDER BY id DESC"])
    both = [image for event in updated if event.kind == UPDATE_ROWS for image in split(table, event.body)][::-1]
    assert same(decode(table, both[1::2])[0], selected)
    assert same(decode(table, both[::2])[0].drop_columns("id"), selected.drop_columns("id"))
    assert nulled == also_nulled == {}


def test_as_null_only_what_arrow_cannot_hold_is_lost_and_all_of_it_is_counted(mysql: MysqlServer, schema: str) -> None:
    images = fill(mysql, schema)
    table = policed(mysql, schema, "null")
    selected, nulled = select(mysql, table)
    decoded, also_nulled = decode(table, images)
    assert same(decoded, selected)
    assert nulled == also_nulled
    texts = printed(mysql, schema)
    total = 0
    for index, case in enumerate(CASES):
        name = f"c{index}"
        column = selected[name]
        lost = 0
        for ours, row in zip(column.to_pylist(), texts, strict=True):
            expected = holds(column.type, row[index])
            if isinstance(ours, datetime.datetime):
                ours = ours.replace(tzinfo=None)
            assert (type(ours), ours) == (type(expected), expected), case.declaration
            lost += expected is None and row[index] is not None
        assert nulled.get(name, 0) == lost
        total += lost
    assert total == sum(nulled.values()) > 100


def test_the_year_0_is_a_year(mysql: MysqlServer, schema: str) -> None:
    """The calendar and Arrow have it; Python's dates begin a year later."""
    mysql.query(f"CREATE TABLE {schema}.t (d date PRIMARY KEY, m datetime(6) NOT NULL)")
    days = [f"0000-{month:02}-{day:02}" for month in range(1, 13) for day in (1, 27, 28, 29)] + ["0000-12-31"]
    rows = ", ".join(f"('{day}', '{day} 12:34:56.789012')" for day in days)
    (event,) = logged(mysql, schema, ["SET sql_mode = 'ALLOW_INVALID_DATES'", f"INSERT INTO t VALUES {rows}"])
    table = describe(mysql, schema, "t")
    dates = np.array(days, "datetime64[D]").astype(np.int32)
    moments = np.array([f"{day}T12:34:56.789012" for day in days], "datetime64[us]").astype(np.int64)
    for read, _ in (select(mysql, table), decode(table, split(table, event.body))):
        read = read.combine_chunks()
        assert read["d"].chunk(0).view(pa.int32()).to_pylist() == dates.tolist()
        assert read["m"].chunk(0).view(pa.int64()).to_pylist() == moments.tolist()
    for day in ("0000-00-00", "0000-04-31", "0000-05-00", "0000-00-05"):
        with mysql.connect(database=schema, sql_mode="ALLOW_INVALID_DATES") as connection:
            connection.query("DELETE FROM t")
            connection.query(f"INSERT INTO t VALUES ('{day}', '2024-01-01')")
        with pytest.raises(ValueNotRepresentable, match=day):
            select(mysql, table)


def test_a_not_null_column_may_hold_nulls_with_the_policy_null(mysql: MysqlServer, schema: str) -> None:
    mysql.query(
        f"CREATE TABLE {schema}.t (id int PRIMARY KEY, d date NOT NULL, n decimal(50,1) NOT NULL, i int NOT NULL)"
    )
    (event,) = logged(mysql, schema, [f"INSERT INTO t VALUES (1, 0, {'9' * 49}, 2)"])
    table = policed(mysql, schema, "null")
    assert [field.nullable for field in arrow_schema(table)] == [False, True, True, False]
    expected = {"id": [1], "d": [None], "n": [None], "i": [2]}
    for rows, nulled in (select(mysql, table), decode(table, [event.body])):
        assert rows.to_pydict() == expected
        assert nulled == {"d": 1, "n": 1}
    assert [field.nullable for field in arrow_schema(policed(mysql, schema, "string"))] == [False] * 4


def test_values_without_an_arrow_type_among_many_rows(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, d date, n decimal(50,1))")
    mysql.query(
        f"INSERT INTO {schema}.t WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 999) "
        f"SELECT i, IF(i % 3, '2024-01-01', NULL), IF(i % 5, i, -{'9' * 45}) FROM n"
    )
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute("UPDATE t SET d = 0 WHERE id % 7 = 0")
    rows, nulled = select(mysql, policed(mysql, schema, "null"))
    assert nulled == {"d": 999 // 7, "n": 999 // 5}
    for number, day, amount in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        assert day == (None if number % 7 == 0 or number % 3 == 0 else datetime.date(2024, 1, 1))
        assert amount == (None if number % 5 == 0 else decimal.Decimal(f"{number}.0"))


@pytest.mark.parametrize("key", ["PRIMARY KEY (d, n)", "INDEX (n)"], ids=["key", "keyless"])
@pytest.mark.parametrize("kind", ["date", "datetime(6)", "timestamp"])
def test_null_never_makes_two_rows_one(mysql: MysqlServer, schema: str, kind: str, key: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (d {kind} NOT NULL, n int NOT NULL, {key})")
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES ('2024-01-01', 1), (0, 2)"])
    table = policed(mysql, schema, "null")
    with pytest.raises(ValueNotRepresentable, match="0000-00-00") as caught:
        select(mysql, table)
    assert caught.value.where == f"{schema}.t.d"
    assert "string" in caught.value.hint
    with pytest.raises(ValueNotRepresentable, match="0000-00-00"):
        decode(table, split(table, event.body))


@pytest.mark.parametrize("key", ["PRIMARY KEY (d, e, n)", "INDEX (n)"], ids=["key", "keyless"])
def test_text_keeps_keys_apart(mysql: MysqlServer, schema: str, key: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (d date NOT NULL, e datetime(3) NOT NULL, n decimal(65,30) NOT NULL, {key})")
    days, times = ("'0000-00-00'", "'2024-02-31'", "'2024-03-02'"), ("'2024-02-31 00:00:00.001'", "'2024-03-02'")
    numbers = (f"1{'0' * 34}.{'0' * 29}1", f"1{'0' * 34}", f"-1{'0' * 34}", "0", f"-0.{'0' * 29}1")
    values = [f"({day}, {time}, {number})" for day in days for time in times for number in numbers]
    (event,) = logged(mysql, schema, [f"INSERT INTO t VALUES {', '.join(values)}"])
    table = policed(mysql, schema, "string")
    (selected, _), (decoded, _) = select(mysql, table), decode(table, split(table, event.body))
    keys = []
    for rows in (selected, decoded):
        batch = rows.combine_chunks().to_batches()[0]
        keys.append(set(encode(batch, batch.schema.names).to_pylist()))
    assert keys[0] == keys[1]
    assert len(keys[0]) == len(values)


class TestPreflight:
    def problems(self, server: MysqlServer, schema: str, policy: str) -> dict[str, tuple[str, str]]:
        try:
            plans = MysqlSource(settings(server)).preflight([f"{schema}.*"], TableOptions(unrepresentable=policy))
            assert {plan.unrepresentable for plan in plans} == {policy}
        except PreflightError as error:
            return {problem.where.partition(".")[2]: (problem.what, problem.hint) for problem in error.problems}
        return {}

    def test_a_decimal_beyond_38_digits_needs_a_choice(self, mysql: MysqlServer, schema: str) -> None:
        mysql.query(f"CREATE TABLE {schema}.a (id decimal(39) PRIMARY KEY, v decimal(65,2), w decimal(38,2), d date)")
        mysql.query(f"CREATE TABLE {schema}.b (v decimal(40))")
        mysql.query(f"CREATE TABLE {schema}.c (id int PRIMARY KEY, v decimal(40))")
        found = self.problems(mysql, schema, "error")
        assert set(found) == {"a.id", "a.v", "b.v", "c.v"}
        assert all("38 digits" in what and "unrepresentable" in hint for what, hint in found.values())
        assert "null" in found["c.v"][1]
        assert "null" not in found["b.v"][1]
        found = self.problems(mysql, schema, "null")
        assert set(found) == {"a.id", "b.v"}
        assert all("identify rows" in what and "string" in hint for what, hint in found.values())
        assert self.problems(mysql, schema, "string") == {}

    def test_the_plan_says_which_columns_the_policy_changes(self, mysql: MysqlServer, schema: str) -> None:
        mysql.query(f"CREATE TABLE {schema}.a (d date PRIMARY KEY, e datetime, n decimal(65), i int)")
        mysql.query(f"CREATE TABLE {schema}.b (i int PRIMARY KEY, v text)")
        for policy, said in (
            ("string", "; published as text: d, e, n"),
            ("null", "; null where no Arrow type holds the value: e, n"),
        ):
            plans = MysqlSource(settings(mysql)).preflight([f"{schema}.*"], TableOptions(unrepresentable=policy))
            assert [plan.reason.partition("needs no lock")[2] for plan in plans] == [said, ""]

    def test_an_unknown_policy_is_named(self, mysql: MysqlServer, schema: str) -> None:
        mysql.query(f"CREATE TABLE {schema}.a (id int PRIMARY KEY)")
        with pytest.raises(PreflightError, match="'ignore' is not valid"):
            MysqlSource(settings(mysql)).preflight([f"{schema}.*"], TableOptions(unrepresentable="ignore"))


def test_a_policy_changes_no_other_type() -> None:
    kinds = ("decimal(38,2)", "time(3)", "year", "int", "varchar(9)", "json", "double")
    for kind in kinds:
        column = Column("c", kind, False, {"charset": "utf8mb4"})
        assert ColumnType.of(column, policy="string") == ColumnType.of(column)


def test_a_wide_decimal_without_a_policy_is_refused() -> None:
    column = Column("c", "decimal(39,2)", True)
    assert ColumnType.of(column, policy="null").arrow == pa.decimal128(38, 2)
    for identifies, policy in ((False, "error"), (True, "null")):
        with pytest.raises(ConfigurationError, match="38 digits"):
            ColumnType.of(column, identifies, policy)


def test_damaged_groups_of_digits_are_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (n decimal(65,30))")
    (event,) = logged(mysql, schema, ["INSERT INTO t VALUES (12.5)"])
    table = policed(mysql, schema, "string")
    assert decode(table, [event.body])[0].to_pydict() == {"n": ["12.5" + "0" * 29]}
    damaged = bytearray(event.body)
    damaged[10:14] = b"\xff" * 4
    with pytest.raises(DecodeError, match=r"decimal\(65,30\)"):
        decode(table, [bytes(damaged)])


_NEARLY = st.from_regex(r"-?0{0,3}[0-9]{0,42}\.[0-9]{5}", fullmatch=True)


@given(text=(st.text("-.01239", max_size=50) | _NEARLY).map(str.encode), policy=st.sampled_from(["null", "string"]))
@example(text=b"-.00000", policy="string")
@example(text=b"-", policy="string")
@example(text=b".", policy="null")
@example(text=b"-000000000000000000000000000000000000000001.00000", policy="null")
def test_a_text_is_read_as_the_number_that_it_is_or_refused(text: bytes, policy: str) -> None:
    column = ColumnType.of(Column("n", "decimal(45,5)", False), policy=policy)
    with guarded(text) as buffer:
        located = Located(
            bytes_of(buffer),
            np.zeros((1, 1), np.int32),
            np.full((1, 1), len(text), np.int32),
            np.zeros(1, np.int64),
            np.full(1, len(text), np.int64),
            1,
        )
        is_number = re.fullmatch(rb"-?0*[0-9]{0,40}\.[0-9]{5}", text) is not None
        try:
            array = finish("t", column, row_cells(located, 0, column))
        except DecodeError:
            assert not is_number
            return
    array.validate(full=True)
    assert is_number
    value = array[0].as_py()
    number = decimal.Decimal(text.decode())
    if policy == "string":
        assert re.fullmatch(r"-?[0-9]{1,40}\.[0-9]{5}", value)
        assert decimal.Decimal(value) == number
        assert value.startswith("-") == (number < 0)
    else:
        assert value == (number if abs(number) < 10**33 else None)


@pytest.mark.slow
@pytest.mark.parametrize("policy", some("null", "string"))
def test_a_run_counts_what_it_reads_and_what_it_puts_back(
    mysql: MysqlServer,
    schema: str,
    spark: SparkSession,
    tmp_path: Path,
    policy: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, d date, n decimal(50,1))")
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(
            f"INSERT INTO t VALUES (1, 0, 1), (2, '2024-02-31', {'9' * 40}), (3, '2024-01-01', 3), (4, NULL, NULL)"
        )
        run = Pipeline(spark, settings(mysql), tmp_path.as_uri(), [f"{schema}.t"], unrepresentable=policy)
        run.record()
        cursor.execute("UPDATE t SET d = '2024-01-02' WHERE id = 1")
        cursor.execute("DELETE FROM t WHERE id = 2")
        cursor.execute("UPDATE t SET d = 0 WHERE id = 3")
        done = run.finish()
    names, rows = published(done["published"][f"{schema}.t"])
    assert names == ["id", "d", "n"]
    by_id = {row[0]: row[1:] for row in rows}
    said = capsys.readouterr().out
    if policy == "string":
        assert by_id == {
            1: ("0000-00-00", "1.0"),
            2: ("2024-02-31", "9" * 40 + ".0"),
            3: ("2024-01-01", "3.0"),
            4: (None, None),
        }
        assert run.found["snapshot"]["nulled"] == done["nulled"] == {}
        return
    assert by_id == {
        1: (None, decimal.Decimal("1.0")),
        2: (None, None),
        3: (datetime.date(2024, 1, 1), decimal.Decimal("3.0")),
        4: (None, None),
    }
    assert run.found["snapshot"]["nulled"] == {f"{schema}.t": {"d": 1}}
    assert done["nulled"] == {f"{schema}.t": {"d": 2, "n": 1}}
    assert f"values of {schema}.t: d 1" in said
    assert f"values of {schema}.t: d 2, n 1" in said


@pytest.mark.slow
@pytest.mark.parametrize("key", ["PRIMARY KEY (n, d)", "PRIMARY KEY (d, n)", "INDEX (n)"])
def test_a_run_tells_rows_apart_by_what_only_text_can_hold(
    mysql: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path, key: str
) -> None:
    """Keys that differ in the 65th digit, or in the day of a month that has no such day."""
    mysql.query(f"CREATE TABLE {schema}.t (n decimal(65,30) NOT NULL, d date NOT NULL, v int, {key})")
    numbers = [f"{sign}1{'0' * 34}.{number:030}" for sign in ("", "-") for number in range(60)]
    days = ("0000-00-00", "2024-02-30", "2024-02-31", "2024-03-01")
    rows = [f"({number}, '{day}', {at})" for at, number in enumerate(numbers) for day in days]
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(rows)}")
        cursor.execute("ANALYZE TABLE t")
        cursor.execute("SELECT CONCAT(n), CONCAT(d), v FROM t")
        expected = sorted(cursor.fetchall())
        run = Pipeline(
            spark, settings(mysql), tmp_path.as_uri(), [f"{schema}.t"], unrepresentable="string", chunk_rows=50
        )
        run.record()
        cursor.execute("DELETE FROM t WHERE d = '2024-02-31' AND v % 3 = 0")
        cursor.execute("UPDATE t SET v = v + 1000 WHERE d = 0 AND v % 2 = 0")
        run.snapshot()
        cursor.execute("UPDATE t SET n = n + 1 WHERE d = '2024-02-30' AND v % 5 = 0")
        cursor.execute("INSERT INTO t VALUES (0, 0, 0), (0, '2024-02-31', 1)")
        run.extract_delta()
        done = run.consolidate()
    names, copied = published(done["published"][f"{schema}.t"])
    assert names == ["n", "d", "v"]
    assert sorted(copied) == expected
    assert run.found["extract_delta"]["keys"][f"{schema}.t"] >= 100
    if "PRIMARY" in key:
        assert run.found["snapshot"]["tables"][f"{schema}.t"]["chunks"] > 3
