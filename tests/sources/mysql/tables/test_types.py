"""The table of types: what it derives from declarations, what it rejects, and rows of any types."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.errors import ConfigurationError, ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.tables.types import (
    VECTOR,
    ColumnType,
    arrow_schema,
    unsupported,
    unsupported_key,
)
from harness.mysql_server import MysqlServer
from tests.sources.mysql.decode.reading import select
from tests.sources.mysql.decode.row_images import describe


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
        ("varchar(10)", "utf8mb5", "character set utf8mb5"),
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
    for charset in ("dec8", "swe7", "geostd8", "keybcs2", "cp932", "armscii8", "ujis", "eucjpms", "sjis"):
        assert reason("varchar(9)", charset) is None
    assert "''" in str(reason("enum('a','')"))
    assert "same text" in str(reason("set('a','b','a')"))


@pytest.mark.parametrize(
    ("charset", "other"),
    [("sjis", "815f"), ("cp932", "eef9"), ("ujis", "a1c0"), ("eucjpms", "8ff4ab"), ("armscii8", "a4")],
)
def test_two_codes_of_one_character_do_not_become_one_key(
    mysql: MysqlServer, schema: str, charset: str, other: str
) -> None:
    """The server distinguishes them. Outside of keys, both are the same text."""
    text = "Ա)" if charset == "armscii8" else "表ア"
    own = f"varchar(9) CHARACTER SET {charset}"
    mysql.query(f"CREATE TABLE {schema}.t (k {own} PRIMARY KEY, v {own})")
    with mysql.connect(charset="utf8mb4", database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO t VALUES (%s, x'{other}')", (text,))
        table = describe(mysql, schema, "t")
        (shown,) = select(mysql, table).to_pylist()
        cursor.execute("SELECT k, v FROM t")
        assert (shown["k"], shown["v"]) == cursor.fetchone()
        assert shown["k"] == text
        cursor.execute(f"INSERT INTO t VALUES (x'{other}', NULL)")
    with pytest.raises(ValueNotRepresentable, match="a character that also has another code"):
        select(mysql, table)


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


@pytest.mark.parametrize("charset", ["utf8mb4", "utf16", "utf32", "gb18030"])
@pytest.mark.parametrize("mode", ["", "TRADITIONAL,NO_BACKSLASH_ESCAPES"])
def test_members_that_the_servers_catalog_does_not_show(
    mysql: MysqlServer, schema: str, charset: str, mode: str
) -> None:
    """Members with the same text in the catalog, a real '?', and numbers that no row has."""
    members = ["a?", "😀", "?", "b😁", "", "𠮷'\\\"", "né"]
    with mysql.connect(charset="utf8mb4", database=schema) as connection, connection.cursor() as cursor:
        quoted = ", ".join(connection.literal(label) for label in members)
        cursor.execute(f"CREATE TABLE t (id int, e enum({quoted}), s set({quoted})) CHARACTER SET {charset}")
        cursor.execute("SET GLOBAL sql_mode = %s", (mode,))
        try:
            table = describe(mysql, schema, "t")
        finally:
            cursor.execute("SET GLOBAL sql_mode = DEFAULT")
        cursor.execute("INSERT INTO t VALUES (1, 2, 2), (2, 4, 40), (3, 6, 127), (4, 3, 5), (5, NULL, NULL)")
        cursor.execute("SELECT e, s FROM t ORDER BY id")
        shown = list(cursor.fetchall())
    assert "?" in table.column("e").type
    assert [unsupported(column) for column in table.columns] == [None] * 3
    assert ColumnType.of(table.column("e")).labels == ColumnType.of(table.column("s")).labels == tuple(members)
    rows = select(mysql, table).sort_by("id").to_pydict()
    assert list(zip(rows["e"], rows["s"], strict=True)) == shown


def test_all_64_members_of_a_set(mysql: MysqlServer, schema: str) -> None:
    """The number of the last one fits in no signed integer."""
    members = ["?😀"[place % 2] + str(place) for place in range(64)]
    with mysql.connect(charset="utf8mb4", database=schema) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE t (s set({', '.join(map(connection.literal, members))})) CHARACTER SET utf8mb4")
        cursor.execute("INSERT INTO t VALUES (1 << 63), (~0)")
    table = describe(mysql, schema, "t")
    assert [unsupported(column) for column in table.columns] == [None]
    assert select(mysql, table).to_pydict() == {"s": [members[-1], ",".join(members)]}


def test_a_member_that_the_server_does_not_show_is_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (e enum('a', x'a6d9') CHARACTER SET gbk)")
    (column,) = describe(mysql, schema, "t").columns
    assert column.type == "enum('a','?')"
    assert "'?'" in str(unsupported(column))


def test_a_member_that_is_not_text_is_refused(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (e enum('a', x'ff') CHARACTER SET utf8mb3)")
    (column,) = describe(mysql, schema, "t").columns
    assert column.type == "enum('a',x'ff')"
    assert "is not text" in str(unsupported(column))


def test_members_that_share_a_text_cannot_be_a_key(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (k enum(')', x'a4') CHARACTER SET armscii8 PRIMARY KEY)")
    (column,) = describe(mysql, schema, "t").columns
    assert unsupported(column) is None
    assert "same text" in str(unsupported_key(column))


def test_nullability_is_in_the_schema(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (a int NOT NULL, b int)")
    assert [field.nullable for field in arrow_schema(describe(mysql, schema, "t"))] == [False, True]


def test_the_table_of_types_needs_no_compiler() -> None:
    code = "import sys, airflow_provider_cdc.sources.mysql.tables.types; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
