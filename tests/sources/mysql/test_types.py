"""The table of types: what it takes from declarations, what it refuses, and any row of any types."""

from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.table import Column
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.mysql.types import VECTOR, ColumnType, arrow_schema, unsupported, unsupported_key
from harness.mysql_server import MysqlServer
from tests.sources.mysql.row_images import describe, logged_by
from tests.sources.mysql.test_images import decode, same, select, split
from tests.sources.mysql.values import same_bits


@pytest.mark.parametrize(
    ("declaration", "arrow"),
    [
        ("tinyint(1)", pa.int8()),
        ("mediumint unsigned", pa.uint32()),
        ("bigint(20) unsigned zerofill", pa.uint64()),
        ("float(7,3)", pa.float32()),
        ("decimal(10)", pa.decimal128(10, 0)),
        ("decimal(38,30)", pa.decimal128(38, 30)),
        ("bit(1)", pa.bool_()),
        ("bit(2)", pa.uint64()),
        ("year", pa.int16()),
        ("date", pa.date32()),
        ("datetime(6)", pa.timestamp("us")),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("time(3)", pa.duration("us")),
        ("enum('a')", pa.dictionary(pa.int16(), pa.utf8())),
        ("set('a')", pa.utf8()),
        ("json", pa.utf8()),
        ("char(3)", pa.utf8()),
        ("longtext", pa.utf8()),
        ("binary(3)", pa.binary()),
        ("mediumblob", pa.binary()),
        ("geometry", pa.binary()),
        ("geomcollection", pa.binary()),
        ("multipolygon", pa.binary()),
        ("vector(3)", VECTOR),
    ],
)
def test_the_arrow_type(declaration: str, arrow: pa.DataType) -> None:
    column = Column("c", declaration, True, {"charset": "utf8mb4"})
    assert unsupported(column) is None
    assert ColumnType.of(column).arrow == arrow


@pytest.mark.parametrize(
    ("declaration", "charset", "reason"),
    [
        ("raster", "", "raster is not supported"),
        ("decimal(39,2)", "", "38 digits"),
        ("varchar(10)", "eucjpms", "character set eucjpms"),
        ("char(10)", "", "character set"),
        ("enum('a')", "binary", "not text"),
    ],
)
def test_what_is_refused_and_why(declaration: str, charset: str, reason: str) -> None:
    column = Column("c", declaration, True, {"charset": charset} if charset else {})
    with pytest.raises(ConfigurationError, match=reason):
        ColumnType.of(column)


def test_key_columns_whose_text_does_not_tell_values_apart_are_refused() -> None:
    def reason(declaration: str, charset: str = "utf8mb4") -> str | None:
        return unsupported_key(Column("c", declaration, False, {"charset": charset}))

    assert reason("varchar(9)") is None
    assert reason("enum('a')") is None
    assert "cp932" in str(reason("varchar(9)", "cp932"))
    assert "''" in str(reason("enum('a','')"))


LABELS = [
    "plain",
    "it's",
    "back\\slash",
    "two''quotes",
    "new\nline",
    "tab\t",
    "nul\0",
    "ü漢",
    "a b",
    '"',
    "%s",
    "?",
    "\\n",
    "\\'",
]


def test_labels_as_the_server_holds_them(mysql: MysqlServer, schema: str) -> None:
    with mysql.connect(database=schema) as connection, connection.cursor() as cursor:
        quoted = ", ".join(connection.literal(label) for label in LABELS)
        cursor.execute(f"CREATE TABLE t (e enum({quoted}) NOT NULL, s set({quoted}) NOT NULL) CHARACTER SET utf8mb3")
        for label in LABELS:
            cursor.execute("INSERT INTO t VALUES (%s, %s)", (label, label))
    table = describe(mysql, schema, "t")
    assert ColumnType.of(table.columns[0]).labels == ColumnType.of(table.columns[1]).labels == tuple(LABELS)
    assert select(mysql, table).to_pydict() == {"e": LABELS, "s": LABELS}


def test_a_member_that_the_server_does_not_show_is_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (e enum('a', 'b😀') CHARACTER SET utf8mb4)")
    (column,) = describe(mysql, schema, "t").columns
    assert column.type == "enum('a','b?')"
    assert "'?'" in str(unsupported(column))


def test_nullability_is_in_the_schema(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (a int NOT NULL, b int)")
    assert [field.nullable for field in arrow_schema(describe(mysql, schema, "t"))] == [False, True]


def test_the_table_of_types_needs_no_compiler() -> None:
    code = "import sys, airflow_provider_cdc.sources.mysql.types; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Any row of any types: the value goes in as a parameter of the driver, and comes back by three ways.

_MICRO = datetime.timedelta(microseconds=1)
_TIMES = st.integers(-(838 * 3600 + 3599) * 10**6, (838 * 3600 + 3599) * 10**6).map(lambda micros: micros * _MICRO)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**precision - 1
    context = decimal.Context(prec=40)
    return st.integers(-most, most).map(lambda number: decimal.Decimal(number).scaleb(-scale, context))


ANY: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "smallint unsigned": st.integers(0, 2**16 - 1),
    "mediumint": st.integers(-(2**23), 2**23 - 1),
    "mediumint unsigned": st.integers(0, 2**24 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "bigint unsigned": st.integers(0, 2**64 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "decimal(5,2)": _decimals(5, 2),
    "decimal(18,9)": _decimals(18, 9),
    "decimal(19,0)": _decimals(19, 0),
    "decimal(38,10)": _decimals(38, 10),
    "char(40)": _TEXTS.map(lambda text: text.rstrip(" ")),
    "varchar(40)": _TEXTS,
    "text": _TEXTS.map(lambda text: text * 9),
    "binary(8)": st.binary(min_size=8, max_size=8),
    "varbinary(300)": st.binary(max_size=300),
    "longblob": st.binary(max_size=70),
    "date": st.dates(),
    "datetime(6)": st.datetimes(),
    "datetime": st.datetimes().map(lambda moment: moment.replace(microsecond=0)),
    "timestamp(6) null": st.datetimes(datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(2038, 1, 19)),
    "time(6)": _TIMES,
    "year": st.one_of(st.just(0), st.integers(1901, 2155)),
    "bit(13)": st.integers(0, 2**13 - 1),
    "enum('a','b','c')": st.sampled_from("abc"),
    "set('a','b','c')": st.sampled_from(["", "a", "b", "a,c", "a,b,c"]),
}  # fmt: skip
ROWS = st.lists(st.tuples(*(st.none() | values for values in ANY.values())), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def any_types(mysql: MysqlServer) -> str:
    schema = "any_types"
    columns = ", ".join(f"c{number} {declaration}" for number, declaration in enumerate(ANY))
    mysql.query(f"CREATE DATABASE {schema}")
    mysql.query(f"CREATE TABLE {schema}.t (id int PRIMARY KEY, {columns}) CHARACTER SET utf8mb4")
    return schema


@given(rows=ROWS)
@given_settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
def test_any_row_is_the_same_by_select_and_in_the_log(mysql: MysqlServer, any_types: str, rows: list[Any]) -> None:
    table = describe(mysql, any_types, "t")
    marks = ", ".join(["%s"] * (len(ANY) + 1))

    def insert(session: Any) -> None:
        with session.cursor() as cursor:
            for number, row in enumerate(rows):
                # The driver writes a double with too few digits; text keeps it.
                texts = [repr(item) if isinstance(item, float) else item for item in row]
                cursor.execute(f"INSERT INTO t VALUES ({marks})", (number, *texts))

    def change(session: Any) -> None:
        with session.cursor() as cursor:
            cursor.execute("UPDATE t SET id = id + 1000 ORDER BY id DESC")
            cursor.execute("DELETE FROM t")

    inserted = [image for event in logged_by(mysql, any_types, insert) for image in split(table, event.body)]
    selected = select(mysql, table)
    updated, deleted = (split(table, event.body) for event in logged_by(mysql, any_types, change))
    assert same(decode(table, inserted), selected)
    assert same(decode(table, updated[::2][::-1]), selected)
    assert same(decode(table, updated[1::2][::-1]).drop_columns("id"), selected.drop_columns("id"))
    assert same(decode(table, deleted).drop_columns("id"), selected.drop_columns("id"))
    for number, row in enumerate(rows):
        for declaration, ours, given_value in zip(
            ANY, list(selected.slice(number, 1).to_pylist()[0].values())[1:], row, strict=True
        ):
            if isinstance(ours, datetime.datetime):
                ours = ours.replace(tzinfo=None)
            assert same_bits(ours, given_value), declaration
