"""The table of types: what it derives from the catalog, what it rejects, and rows of any types."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, column_types, unmapped
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.server.session_variables import SESSION_SETTINGS
from airflow_provider_cdc.sources.postgres.source import reading
from harness.postgres_server import PostgresServer
from tests.seeds import examples
from tests.sources.postgres.backends import wait_for
from tests.sources.postgres.catalog_reading import read_tables
from tests.sources.postgres.decode.reading import assert_same, describe, select
from tests.sources.postgres.decode.test_images import create
from tests.sources.postgres.log.messages import changes, peek
from tests.sources.postgres.log.reading import settings
from tests.sources.postgres.values import CASES, SETUP


@pytest.fixture(scope="module")
def typed(postgres: PostgresServer) -> Iterator[str]:
    name = "typed_rows"
    postgres.query(f"CREATE DATABASE {name}")
    postgres.query(SETUP, database=name)
    postgres.query("CREATE PUBLICATION log FOR ALL TABLES", database=name)
    yield name
    postgres.drop_database(name)


ARROW = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    "numeric": pa.utf8(),
    "numeric(10)": pa.decimal128(10, 0),
    "numeric(38,38)": pa.decimal128(38, 38),
    "numeric(39,2)": pa.utf8(),
    "numeric(5,-2)": pa.utf8(),
    "numeric(2,5)": pa.utf8(),
    "text": pa.utf8(),
    "char(3)": pa.utf8(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp(3)": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time(0)": pa.time64("us"),
    "timetz": pa.utf8(),
    "interval": pa.utf8(),
    "uuid": pa.utf8(),
    "jsonb": pa.utf8(),
    "mood": pa.utf8(),
    "age": pa.int32(),
    "fair": pa.decimal128(12, 3),
    "birth": pa.date32(),
    "ages": pa.utf8(),
    "int4[]": pa.utf8(),
    "pair": pa.utf8(),
    "oid": pa.utf8(),
}


def listed(types: Iterable[str]) -> str:
    return ", ".join(f"c{number} {declared}" for number, declared in enumerate(types))


def test_the_arrow_types(postgres: PostgresServer, typed: str) -> None:
    create(postgres, typed, "types", listed(ARROW))
    assert arrow_schema(describe(postgres, typed, "types")).types == list(ARROW.values())
    texts = arrow_schema(describe(postgres, typed, "types", policy="string"))
    expected = [
        pa.utf8() if pa.types.is_temporal(arrow) or pa.types.is_decimal(arrow) else arrow for arrow in ARROW.values()
    ]
    assert texts.types == expected


@pytest.mark.slow
def test_the_catalog_is_read_alike(postgres: PostgresServer, typed: str) -> None:
    """How the tests describe tables, and how the product does."""
    create(postgres, typed, "types", listed(CASES))
    with session(settings(postgres, typed)) as connection:
        (mine,) = read_tables(connection, [TableName("public", "types")])
    theirs = describe(postgres, typed, "types")
    for column, other in zip(mine.columns, theirs.columns, strict=True):
        # One takes a domain over an array for an array, the other for a domain; both select lists are tried here.
        assert {**column.details, "kind": ""} | {**other.details, "kind": ""} == {**column.details, "kind": ""}
    assert arrow_schema(mine) == arrow_schema(theirs)
    postgres.query("INSERT INTO types (c0) VALUES (NULL)", database=typed)
    for number, (declared, values) in enumerate(CASES.items()):
        postgres.query(f"UPDATE types SET c{number} = ({values[-1]})::{declared}", database=typed)
    assert_same(select(postgres, typed, mine), select(postgres, typed, theirs))


def test_types_whose_text_is_the_name_of_something(postgres: PostgresServer, typed: str) -> None:
    """Renaming an object changes the text of references to it, and no row change is logged."""
    named = {
        name
        for (name,) in postgres.query(
            "SELECT typname FROM pg_type WHERE typtype = 'b' AND typname ~ '^_?(reg.*|aclitem)$' AND oid < 16384"
        )
    }
    create(
        postgres, typed, "types", ", ".join(f"c{number} {declared}" for number, declared in enumerate(sorted(named)))
    )
    table = describe(postgres, typed, "types")
    assert len(table.columns) >= 24
    for column in table.columns:
        assert unmapped(column) is not None, column
        with pytest.raises(ConfigurationError, match="printed as the present name of an object"):
            column_types(Table(table.name, (column,)))


def test_every_other_type_of_the_server_is_mapped(postgres: PostgresServer, typed: str) -> None:
    create(postgres, typed, "types", listed(CASES))
    assert [column for column in describe(postgres, typed, "types").columns if unmapped(column)] == []


def test_a_column_of_an_unknown_base_is_text() -> None:
    """A domain whose base type was not recorded."""
    column = Column("c", "d", True, {"oid": 99999, "typmod": -1, "kind": "domain"})
    (found,) = column_types(Table(TableName("s", "t"), (column,)))
    assert found.arrow == pa.utf8()
    assert "format('%s', \"c\")" in found.select


def test_no_setting_of_a_user_changes_what_is_printed(postgres: PostgresServer, typed: str) -> None:
    """Every session inherits the settings of its role and database. Ours override them."""
    odd = {
        "DateStyle": "German, DMY",
        "IntervalStyle": "sql_standard",
        "TimeZone": "Asia/Kolkata",
        "bytea_output": "escape",
        "extra_float_digits": "-5",
        "xmlbinary": "hex",
        "search_path": "public",
        # Since PostgreSQL 19, it is always on.
        "standard_conforming_strings": "off" if postgres.binaries.major < 19 else "on",
        "row_security": "on",
    }
    assert odd.keys() | {"client_encoding"} == SESSION_SETTINGS.keys()
    for name, setting in odd.items():
        postgres.query(f"ALTER DATABASE {typed} SET {name} = {setting!r}")
    try:
        with session(settings(postgres, typed)) as connection:
            for name, setting in SESSION_SETTINGS.items():
                shown = connection.execute("SELECT current_setting(%s)", (name,)).fetchone()
                assert shown == (setting,)
    finally:
        for name in odd:
            postgres.query(f"ALTER DATABASE {typed} RESET {name}")


@pytest.mark.slow
def test_deciding_types_takes_no_kernels() -> None:
    """The steps that only plan and record do without Numba, which takes a second to load."""
    code = "import sys; import airflow_provider_cdc.sources.postgres.catalog.types; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


DRAWN = (
    "int2 int4 int8 float4 float8 bool numeric(5,2) numeric(38,18) numeric text varchar(9) char(4) bytea date time "
    "uuid timestamp timestamptz interval jsonb mood fair int4[] text[] pair pair[] nest tstzrange int8multirange inet "
    "varbit money point tsvector"
).split()

INTEGERS = {"int2": 15, "int4": 31, "int8": 63}
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def values_of(declared: str) -> st.SearchStrategy[str]:
    """SQL expressions of a type: hard values, random ones where that is easy, and NULL."""
    hard = st.sampled_from([*CASES[declared], "NULL"])
    if declared in INTEGERS:
        bits = INTEGERS[declared]
        return hard | st.integers(-(2**bits), 2**bits - 1).map(lambda number: f"'{number}'")
    if declared in ("float4", "float8"):
        drawn = st.floats(width=32) if declared == "float4" else st.floats(width=64)
        return hard | drawn.map(lambda number: f"'{number!r}'")
    if declared == "numeric(38,18)":
        return hard | st.decimals(-(10**19), 10**19, places=18).map(lambda number: f"'{number:f}'")
    if declared == "numeric":
        return hard | st.decimals(allow_nan=False).map(lambda number: f"'{number}'")
    if declared == "text":
        return hard | TEXTS.map(literal)
    if declared == "text[]":
        return hard | st.lists(TEXTS | st.none(), max_size=3).map(
            lambda texts: "ARRAY[" + ", ".join("NULL" if one is None else literal(one) for one in texts) + "]::text[]"
        )
    if declared == "bytea":
        return hard | st.binary(max_size=40).map(lambda data: f"'\\x{data.hex()}'")
    if declared == "date":
        return hard | st.integers(-2_451_545, 2_145_031_948).map(lambda days: f"date '2000-01-01' + {days}")
    if declared in ("timestamp", "timestamptz"):
        span = st.integers(-211_813_488_000, 9_222_424_352_054)
        return hard | st.tuples(span, st.integers(0, 999_999)).map(
            lambda when: f"to_timestamp(946684800 + {when[0]}::numeric) + '{when[1]} us'"
        )
    if declared == "time":
        return hard | st.integers(0, 86_399_999_999).map(lambda micros: f"time '0:0' + '{micros} us'::interval")
    if declared == "uuid":
        return hard | st.uuids().map(lambda one: f"'{one}'")
    if declared == "interval":
        part = st.integers(-(2**31), 2**31 - 1)
        return hard | st.tuples(part, part, st.integers(-(2**62), 2**62)).map(
            lambda parts: f"make_interval(months => {parts[0]}, days => {parts[1]}) + '{parts[2]} us'::interval"
        )
    return hard


@st.composite
def tables(draw: Any) -> tuple[list[str], list[list[str]]]:
    """Declared types of some columns, and rows."""
    declared = draw(st.lists(st.sampled_from(DRAWN), min_size=1, max_size=8))
    rows = draw(st.lists(st.tuples(*map(values_of, declared)).map(list), min_size=1, max_size=6))
    return declared, rows


@pytest.fixture(scope="module")
def slot(postgres: PostgresServer, typed: str) -> Iterator[str]:
    name = "typed_rows"
    postgres.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,), database=typed)
    yield name
    postgres.query("SELECT pg_drop_replication_slot(%s)", (name,), database=typed)


@pytest.mark.long
@given(tables())
@given_settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_row_of_any_types_is_the_same_in_all_ways(
    postgres: PostgresServer, typed: str, slot: str, drawn: tuple[list[str], list[list[str]]]
) -> None:
    """Rows are inserted, updated to NULLs and back, and deleted: each image holds what a SELECT reads."""
    declared, rows = drawn
    names = [f"c{number}" for number in range(len(declared))]
    create(postgres, typed, "v", f"id int PRIMARY KEY, {listed(declared)}")
    with postgres.connect(database=typed) as connection:
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (slot,))
        connection.execute("SET TimeZone = 'UTC'")
        for number, row in enumerate(rows):
            values = ", ".join(f"({value})::{kind}" for value, kind in zip(row, declared, strict=True))
            connection.execute(f"INSERT INTO v VALUES ({number}, {values})".encode())
        table = describe(postgres, typed, "v")
        read = select(postgres, typed, table, "ORDER BY id")
        connection.execute("CREATE TEMP TABLE aside (LIKE v)")
        columns, nothing = ", ".join(names), ", ".join(["NULL"] * len(names))
        for number in range(len(rows)):
            for statement in (
                f"INSERT INTO aside SELECT * FROM v WHERE id = {number}",
                f"UPDATE v SET ({columns}) = ROW({nothing}) WHERE id = {number}",
                f"UPDATE v SET ({columns}) = (SELECT {columns} FROM aside WHERE id = {number}) WHERE id = {number}",
                f"DELETE FROM v WHERE id = {number}",
            ):
                connection.execute(statement.encode())
    relation = table.columns[0].details["relation"]
    found = [one for one in changes(peek(postgres, typed, slot, "log")) if one.relation == relation]
    inserted = [one.new for one in found if one.kind == "I"]
    updates = [one for one in found if one.kind == "U"]
    deleted = [one.old for one in found if one.kind == "D"]
    emptied, restored = [one.old for one in updates[::2]], [one.new for one in updates[1::2]]
    for images in (inserted, emptied, restored, deleted):
        assert_same(decode_images(table, pa.array(images, pa.binary())), read)


def test_an_idle_session_that_alters_a_type_has_no_run_wait_for_the_statements_of_others(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_ALTERED_SECONDS", 0.5)
    postgres.query("CREATE TYPE mood AS ENUM ('glad'); CREATE TABLE a (id int PRIMARY KEY, m mood)", database=database)
    postgres.query("CREATE TABLE other (id int)", database=database)
    here = settings(postgres, database)
    with session(here) as connection:
        tables = read_tables(connection, [TableName("public", "a")])
    with (
        ThreadPoolExecutor(1) as pool,
        postgres.connect(database=database) as altering,
        postgres.connect(database=database) as busy,
    ):
        altering.execute("BEGIN; ALTER TYPE mood RENAME VALUE 'glad' TO 'happy'")
        pid = busy.info.backend_pid
        written = pool.submit(busy.execute, "INSERT INTO other VALUES (1); SELECT pg_sleep(3600)")
        wait_for(postgres, f"wait_event = 'PgSleep' AND pid = {pid}")
        try:
            PostgresSource(here).check_tables(tables)
        finally:
            postgres.query(f"SELECT pg_cancel_backend({pid})")
            written.exception()
