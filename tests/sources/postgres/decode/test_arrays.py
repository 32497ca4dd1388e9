"""Arrays as lists: the same by SELECT, from the log and by psycopg, and never a list for what is none."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema
from airflow_provider_cdc.sources.postgres.chunking.chunks import sample
from airflow_provider_cdc.sources.postgres.decode.columns import split_arrays
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.server.session import quote
from harness.postgres_server import PostgresServer
from tests.seeds import examples
from tests.sources.postgres.decode.reading import assert_same, describe, select
from tests.sources.postgres.decode.reading import settings as settings_of
from tests.sources.postgres.log.messages import changes, peek

ARRAYS: dict[str, tuple[pa.DataType, list[str]]] = {
    "int2[]": (pa.int16(), ["'{}'", "'{1,NULL,-32768}'", "'{NULL}'"]),
    "int4[]": (pa.int32(), ["'{2147483647,-2147483648}'", "'[1:2]={1,2}'", "array_fill(7, ARRAY[3000])"]),
    "int8[]": (pa.int64(), ["'{9223372036854775807,-9223372036854775808,0}'"]),
    "float4[]": (pa.float32(), ["'{NaN,Infinity,-Infinity,-0,0.1,1e-45,NULL}'"]),
    "float8[]": (pa.float64(), ["'{NaN,Infinity,-0,0.1,5e-324,1.7976931348623157e308}'"]),
    "bool[]": (pa.bool_(), ["'{t,f,NULL}'", "'{}'"]),
    "numeric(5,2)[]": (pa.decimal128(5, 2), ["'{1.1,-999.99,NULL,0}'"]),
    "numeric(38,0)[]": (pa.decimal128(38, 0), ["ARRAY[99999999999999999999999999999999999999]"]),
    "text[]": (
        pa.utf8(),
        [
            "'{}'",
            "ARRAY['', 'NULL', 'null', 'a,b', 'q\"', E'b\\\\', ' x ', NULL, 'ä😀', '{', '}', E'\\n', '[1:2]={1}']",
            "ARRAY[repeat('\"\\,{} ä', 40000)]",
            "ARRAY['{1,2}', '{{1}}']",
        ],
    ),
    "varchar(9)[]": (pa.utf8(), ["ARRAY['a', NULL]"]),
    "char(4)[]": (pa.utf8(), ["ARRAY['x', '']"]),
    "name[]": (pa.utf8(), ["ARRAY['x']::name[]"]),
    "json[]": (pa.utf8(), ["ARRAY['{\"a\" :  1, \"a\":2}', 'null', NULL]::json[]"]),
    "jsonb[]": (pa.utf8(), ['ARRAY[\'{"a": [1, "b\\""]}\', \'null\', NULL]::jsonb[]']),
    "uuid[]": (pa.utf8(), ["ARRAY['01234567-89ab-cdef-fedc-ba9876543210', NULL]::uuid[]"]),
    "bytea[]": (pa.binary(), ["ARRAY['\\x00ff5c'::bytea, '\\x', NULL]"]),
    "date[]": (pa.date32(), ["'{2024-02-29,0001-01-01,NULL}'"]),
    "time[]": (pa.time64("us"), ["'{00:00:00,23:59:59.999999,NULL}'"]),
    "timestamp[]": (pa.timestamp("us"), ["'{2024-02-29 23:59:59.999999,NULL,1969-12-31 23:59:59.999999}'"]),
    "timestamptz[]": (pa.timestamp("us", "UTC"), ["'{2024-03-31 02:30:00+02,NULL}'"]),
}
"""By declared type: the Arrow type of the elements, and values."""

NO_LISTS: dict[str, list[str]] = {
    "int4[]": ["'{{1,2},{3,4}}'", "'[0:1]={7,8}'", "'[2:3][-1:0]={{1,2},{3,4}}'", "'{{{1}}}'"],
    "text[]": ["ARRAY[['a']]", "'[2:2]={\"[1:2]={}\"}'"],
    "date[]": ["'{2024-01-01,infinity}'"],
    "numeric(5,2)[]": ["'{1,NaN,NULL}'"],
    "timestamptz[]": ["'{-infinity}'"],
    "time[]": ["'{NULL,24:00:00}'"],
}
"""Arrays that no list represents, by declared type."""

TEXTS = ("interval[]", "numeric[]", "timetz[]", "inet[]", "int4range[]", "int2vector", "oidvector", "point[]")
"""Types whose elements have no Arrow type, and types that are no arrays of the server's: these stay text."""


@pytest.fixture(scope="module")
def arrays(postgres: PostgresServer) -> Iterator[str]:
    name = f"arrays_{uuid.uuid4().hex[:8]}"
    postgres.query(f"CREATE DATABASE {name}")
    postgres.query("CREATE PUBLICATION log FOR ALL TABLES", database=name)
    postgres.query("CREATE DOMAIN ages AS int[]; CREATE DOMAIN age AS int", database=name)
    yield name
    postgres.drop_database(name)


def images_of(server: PostgresServer, database: str, columns: str, values: list[str]) -> pa.BinaryArray:
    """Make the table ``v`` with one row for each value, and return the images of these rows from the log."""
    for statement in (
        "DROP TABLE IF EXISTS v",
        f"CREATE TABLE v (id int PRIMARY KEY, {columns})",
        "ALTER TABLE v REPLICA IDENTITY FULL",
    ):
        server.query(statement, database=database)
    server.query("SELECT pg_create_logical_replication_slot('arrays', 'pgoutput')", database=database)
    try:
        for number, value in enumerate(values):
            server.query(f"INSERT INTO v VALUES ({number}, {value})", database=database)
        found = changes(peek(server, database, "arrays", "log"))
    finally:
        server.query("SELECT pg_drop_replication_slot('arrays')", database=database)
    return pa.array([change.new for change in found if change.new], pa.binary())


def by_psycopg(server: PostgresServer, database: str, declared: str, column: str = "v") -> list[Any]:
    # psycopg reads json as objects, and real as its shortest text. The result has the text, and the very number.
    others = {"json[]": "text[]", "jsonb[]": "text[]", "uuid[]": "text[]", "float4[]": "float8[]"}
    sql = f"SET TimeZone = 'UTC'; SELECT {quote(column)}::{others.get(declared, declared)} FROM v ORDER BY id DESC"
    with server.connect(database=database) as connection:
        cursor = connection.execute(sql)
        cursor.nextset()
        rows = [row[0] for row in iter(cursor.fetchone, None)]
    return rows[::-1]


@pytest.mark.slow
def test_arrays_become_lists(postgres: PostgresServer, arrays: str) -> None:
    count = max(len(values) for _, values in ARRAYS.values()) + 1
    values_of_rows = [
        ", ".join(values[number] if number < len(values) else "NULL" for _, values in ARRAYS.values())
        for number in range(count)
    ]
    images = images_of(postgres, arrays, ", ".join(f"{quote(name)} {name}" for name in ARRAYS), values_of_rows)
    table = describe(postgres, arrays, "v", arrays="list")
    rows = select(postgres, arrays, table, "ORDER BY id")
    for declared, (element, _) in ARRAYS.items():
        assert rows.schema.field(declared).type == pa.list_(pa.field("element", element))
        read = repr(rows.column(declared).to_pylist()).replace("zoneinfo.ZoneInfo(key='UTC')", "datetime.timezone.utc")
        assert read == repr(by_psycopg(postgres, arrays, declared, declared)), declared
    assert_same(decode_images(table, images), rows)
    # With unrepresentable = string, and without the option, they are text, as ever.
    for policy, option in (("string", "list"), ("error", "text")):
        texts = describe(postgres, arrays, "v", policy=policy, arrays=option)
        assert {arrow_schema(texts).field(declared).type for declared in ARRAYS} == {pa.utf8()}
        assert_same(decode_images(texts, images), select(postgres, arrays, texts, "ORDER BY id"))


@pytest.mark.parametrize("declared", NO_LISTS)
def test_arrays_that_no_list_represents(postgres: PostgresServer, arrays: str, declared: str) -> None:
    good = ARRAYS[declared][1][0]
    values = [*NO_LISTS[declared], good]
    images = images_of(postgres, arrays, f"v {declared} NOT NULL", values)
    strict, nulls = (describe(postgres, arrays, "v", policy=policy, arrays="list") for policy in ("error", "null"))
    for number in range(len(values) - 1):
        with pytest.raises(ValueNotRepresentable, match=r"public\.v\.v: the array .* does not fit into list<"):
            select(postgres, arrays, strict, f"WHERE id = {number}")
        with pytest.raises(ValueNotRepresentable, match=rf"the array .* does not fit into list<.*where id = {number}"):
            decode_images(strict, images.slice(number, 1))
    (problem,) = sample(settings_of(postgres, arrays), [TablePlan(strict.name, "watermark", "", arrays="list")])
    assert f"in {len(values) - 1} of the {len(values)} rows" in problem.what
    # A window may remove the row: the reader notes the value, and reads on.
    noted: list[OddValue] = []
    rows = decode_images(strict, images, odd=noted)
    assert [value.row for value in noted] == [*range(len(values) - 1)]
    assert rows.column("v").to_pylist()[:-1] == [[]] * (len(values) - 1)
    read: dict[str, int] = {}
    decoded: dict[str, int] = {}
    rows = select(postgres, arrays, nulls, "ORDER BY id", read)
    assert rows.column("v").to_pylist()[:-1] == [None] * (len(values) - 1)
    postgres.query(f"DELETE FROM v WHERE id < {len(values) - 1}", database=arrays)
    assert rows.column("v").to_pylist()[-1] == by_psycopg(postgres, arrays, declared)[0]
    assert_same(decode_images(nulls, images, decoded), rows)
    assert read == decoded == {"v": len(values) - 1}


def test_what_stays_text(postgres: PostgresServer, arrays: str) -> None:
    columns = ", ".join(f'"{declared}" {declared}' for declared in (*TEXTS, "age[]"))
    images_of(postgres, arrays, f"k int[] UNIQUE NOT NULL, a ages, {columns}", [])
    schema = arrow_schema(describe(postgres, arrays, "v", arrays="list"))
    assert {field.name for field in schema if not pa.types.is_list(field.type)} == {"id", *TEXTS, "age[]"}
    for statement in ("ALTER TABLE v DROP CONSTRAINT v_pkey", "ALTER TABLE v ADD PRIMARY KEY (k)"):
        postgres.query(statement, database=arrays)
        schema = arrow_schema(describe(postgres, arrays, "v", arrays="list"))
        # A column of the key, and every column of a table without a key, identifies rows.
        assert schema.field("k").type == pa.utf8()
        assert pa.types.is_list(schema.field("a").type) == ("ADD" in statement)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0")))))
def test_texts_of_arrays_are_split_as_array_out_joins_them(elements: list[str | None]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "{" + ",".join("NULL" if one is None else quoted(one) for one in elements) + "}"
    arrays = split_arrays("v", pa.array(["{}", text, None, "{a}"], pa.utf8()).slice(1))
    located = arrays.elements
    data = located.data.tobytes()
    # The arrays have room for more elements than there are.
    starts, lengths = (places[0, : located.rows].tolist() for places in (located.starts, located.lengths))
    found = [
        None if start < 0 else data[start : start + length].decode()
        for start, length in zip(starts, lengths, strict=True)
    ]
    assert found == [*elements, "a"]
    assert arrays.ends.tolist() == [0, len(elements), len(elements), len(elements) + 1]
    assert not arrays.odd.any()


@pytest.mark.parametrize(
    "text",
    ["", "{", "}", "1", "{1", "1}", "{1,}", "{,1}", "{1,,2}", '{"a}', '{"a"b}', '{a"b"}', '{"a\\"}', "{1}}", "{1{}"],
)
def test_a_text_that_is_no_array(text: str) -> None:
    with pytest.raises(DecodeError, match="row 1 of the batch is not the text of an array"):
        split_arrays("v", pa.array(["{1,2}", text, "{3}"], pa.utf8()))
