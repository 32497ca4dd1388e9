"""Decoded row images equal what a SELECT reads, for hard values of every type, and nothing beyond the bytes is read."""

from __future__ import annotations

import math
import random
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CdcError, DecodeError, SchemaChanged, ValueNotRepresentable
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema
from airflow_provider_cdc.sources.postgres.decode.columns import finish_batch
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.server.session import quote
from harness.postgres_server import PostgresServer
from tests.seeds import seeds
from tests.sources.guarded import guarded
from tests.sources.postgres.decode.reading import assert_same, describe, raw, reading, select
from tests.sources.postgres.log.messages import changes, peek, tuple_data
from tests.sources.postgres.values import CASES, OPTIONAL, SETUP, UNREPRESENTABLE


@pytest.fixture(scope="module")
def typed(postgres: PostgresServer) -> Iterator[str]:
    """A database with the types of ``values.SETUP``, all optional ones that the server has, and a slot ``log``."""
    name = "typed_values"
    postgres.query(f"CREATE DATABASE {name}")
    postgres.query(SETUP, database=name)
    for extension, _, _ in OPTIONAL.values():
        if extension:
            try:
                postgres.query(f"CREATE EXTENSION {extension}", database=name)
            except psycopg.errors.FeatureNotSupported:
                continue
            except psycopg.errors.UndefinedFile:
                continue
    postgres.query("CREATE PUBLICATION log FOR ALL TABLES", database=name)
    yield name
    postgres.drop_database(name)


class Log:
    """What happens to a table from now on, as raw images."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self.server, self.database = server, database
        server.query("SELECT pg_create_logical_replication_slot('images', 'pgoutput')", database=database)

    def images(self) -> tuple[list[bytes], list[bytes]]:
        """The before images and the after images."""
        found = changes(peek(self.server, self.database, "images", "log"))
        return [change.old for change in found if change.old], [change.new for change in found if change.new]

    def close(self) -> None:
        self.server.query("SELECT pg_drop_replication_slot('images')", database=self.database)


@pytest.fixture
def log(postgres: PostgresServer, typed: str) -> Iterator[Log]:
    found = Log(postgres, typed)
    yield found
    found.close()


def create(server: PostgresServer, database: str, name: str, columns: str) -> None:
    server.query(f"DROP TABLE IF EXISTS {name}", database=database)
    server.query(f"CREATE TABLE {name} ({columns})", database=database)
    server.query(f"ALTER TABLE {name} REPLICA IDENTITY FULL", database=database)


def available(server: PostgresServer, database: str, declared: str) -> list[str]:
    """The values of an optional type; skips the test if the server does not have it."""
    extension, probe, values = OPTIONAL[declared]
    if extension:
        found = server.query("SELECT 1 FROM pg_extension WHERE extname = %s", (extension,), database=database)
        if not found:
            pytest.skip(f"the server has no extension {extension}")
    if probe:
        try:
            server.query(probe, database=database)
        except psycopg.Error:
            pytest.skip(f"the server was built without {declared}")
    return values


def check_values(server: PostgresServer, database: str, log: Log, cases: Mapping[str, list[str]]) -> None:
    """Compare the values of each type, which are in a column of its name, beside each other."""
    create(server, database, "v", "id int PRIMARY KEY" + "".join(f", {quote(name)} {name}" for name in cases))
    count = max(map(len, cases.values())) + 1
    with server.connect(database=database) as connection:
        for number in range(count):
            row = [values[number] if number < len(values) else "NULL" for values in cases.values()]
            connection.execute(f"INSERT INTO v VALUES ({number}, {', '.join(row)})".encode())
    table = describe(server, database, "v")
    rows = select(server, database, table, "ORDER BY id")
    nulls = {name: rows.column(name).null_count for name in cases}
    assert nulls == {name: count - len(values) for name, values in cases.items()}
    with server.connect(database=database) as connection:
        for number in range(count):
            connection.execute("DELETE FROM v WHERE id = %s", (number,))
    before, after = log.images()
    assert_same(decode_images(table, pa.array(before, pa.binary())), rows)
    assert_same(decode_images(table, pa.array(after, pa.binary())), rows)


def test_hard_values_are_the_same_by_select_and_from_the_log(postgres: PostgresServer, typed: str, log: Log) -> None:
    check_values(postgres, typed, log, CASES)


# A table for each type: its values also end an image, and a batch.
@pytest.mark.long
@pytest.mark.parametrize("declared", CASES)
def test_hard_values_of_one_column_are_the_same(postgres: PostgresServer, typed: str, log: Log, declared: str) -> None:
    check_values(postgres, typed, log, {declared: CASES[declared]})


@pytest.mark.parametrize("declared", OPTIONAL)
def test_hard_values_of_optional_types(postgres: PostgresServer, typed: str, log: Log, declared: str) -> None:
    check_values(postgres, typed, log, {declared: available(postgres, typed, declared)})


@pytest.mark.parametrize("declared", UNREPRESENTABLE)
def test_what_no_arrow_type_holds(postgres: PostgresServer, typed: str, log: Log, declared: str) -> None:
    """With each policy the two paths agree, and both count the values that became null."""
    values = [*UNREPRESENTABLE[declared], *CASES[declared][:1]]
    count = len(values) - 1
    create(postgres, typed, "v", f"id int PRIMARY KEY, v {declared} NOT NULL")
    for number, value in enumerate(values):
        postgres.query(f"INSERT INTO v VALUES ({number}, {value})", database=typed)
    postgres.query("DELETE FROM v", database=typed)
    _, after = log.images()
    before, _ = log.images()
    images = pa.array(sorted(before), pa.binary())
    assert sorted(before) == sorted(after)
    postgres.query(
        "INSERT INTO v VALUES " + ", ".join(f"({number}, {value})" for number, value in enumerate(values)),
        database=typed,
    )

    strict, texts, nulls = (describe(postgres, typed, "v", policy=policy) for policy in ("error", "string", "null"))
    for number, value in enumerate(values[:-1]):
        one = pa.array([image for image in before if image[7:8] == str(number).encode()], pa.binary())
        printed = str(
            postgres.query(f"SET DateStyle = 'ISO, YMD'; SELECT ({value}::{declared})::text", database=typed)[0][0]
        )
        named = re.escape(printed.removesuffix("+00"))
        with pytest.raises(ValueNotRepresentable, match=rf"public\.v\.v: the \w+ {named} does not fit into "):
            select(postgres, typed, strict, f"WHERE id = {number}")
        with pytest.raises(ValueNotRepresentable, match=rf"public\.v\.v: the \w+ {named} does not fit into "):
            decode_images(strict, one)

    rows = select(postgres, typed, texts, "ORDER BY id")
    assert rows.schema.field("v").type == pa.utf8()
    assert_same(decode_images(texts, images), rows)

    read: dict[str, int] = {"v": 5}
    decoded: dict[str, int] = {}
    rows = select(postgres, typed, nulls, "ORDER BY id", read)
    assert rows.schema.field("v") == pa.field("v", arrow_schema(strict).field("v").type, nullable=True)
    assert rows.column("v").null_count == count
    assert_same(decode_images(nulls, images, decoded), rows)
    assert (read, decoded) == ({"v": 5 + count}, {"v": count})


@pytest.mark.parametrize("keys", [("v",), ()])
def test_null_never_merges_two_keys(postgres: PostgresServer, typed: str, keys: tuple[str, ...]) -> None:
    """Columns that distinguish rows stay exact: those of a key, and all of a keyless table."""
    create(postgres, typed, "v", "v date NOT NULL" + (", PRIMARY KEY (v)" if keys else ""))
    postgres.query("INSERT INTO v VALUES ('infinity'), ('-infinity')", database=typed)
    table = describe(postgres, typed, "v", policy="null")
    assert not arrow_schema(table).field("v").nullable
    with pytest.raises(ValueNotRepresentable, match="infinity"):
        select(postgres, typed, table)
    with pytest.raises(ValueNotRepresentable, match="infinity"):
        decode_images(table, pa.array([tuple_data(["infinity"])], pa.binary()))


def test_every_nan_is_the_same(postgres: PostgresServer, typed: str, log: Log) -> None:
    """The log prints them all as NaN, so a SELECT must give the same bits for all."""
    create(postgres, typed, "v", "id int PRIMARY KEY, v float8, w float4")
    odd = struct.pack(">d", math.nan)[:1] + b"\xf8" + bytes(5) + b"\x07"
    with postgres.connect(database=typed) as connection, connection.cursor() as cursor:
        with cursor.copy("COPY v FROM STDIN (FORMAT binary)") as copy:
            row = struct.pack(">hiiiQiI", 3, 4, 1, 8, int.from_bytes(odd, "big") | 1 << 63, 4, 0xFFC00005)
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + row + b"\xff\xff")
        cursor.execute("UPDATE v SET id = 2")
    table = describe(postgres, typed, "v")
    _, after = log.images()
    rows = select(postgres, typed, table)
    assert_same(decode_images(table, pa.array(after[-1:], pa.binary())), rows)
    assert rows.column("v").buffers()[1].to_pybytes()[:8] == struct.pack("<d", math.nan)


def test_a_null_in_a_column_that_was_not_null(postgres: PostgresServer, typed: str, log: Log) -> None:
    """DROP NOT NULL is not in the log."""
    create(postgres, typed, "v", "id int PRIMARY KEY, v text NOT NULL")
    table = describe(postgres, typed, "v")
    postgres.query("ALTER TABLE v ALTER v DROP NOT NULL", database=typed)
    postgres.query("INSERT INTO v VALUES (1, NULL)", database=typed)
    _, after = log.images()
    with pytest.raises(SchemaChanged, match=r"public\.v\.v: a NULL in a column that was NOT NULL"):
        decode_images(table, pa.array(after, pa.binary()))
    with pytest.raises(SchemaChanged, match=r"public\.v\.v: a NULL in a column that was NOT NULL"):
        select(postgres, typed, table)


def test_columns_of_other_types_than_recorded(postgres: PostgresServer, typed: str) -> None:
    create(postgres, typed, "v", "id int PRIMARY KEY, v int")
    table = describe(postgres, typed, "v")
    postgres.query("ALTER TABLE v ALTER v TYPE bigint; INSERT INTO v VALUES (1, 1)", database=typed)
    with pytest.raises(SchemaChanged, match=r"public\.v: the columns of the rows, or their types, differ"):
        select(postgres, typed, table)
    with pytest.raises(SchemaChanged, match=r"public\.v\.v: the values are of type int64, not int32"):
        finish_batch(table, pa.record_batch({"id": pa.array([1], pa.int32()), "v": pa.array([1], pa.int64())}))
    batch = pa.record_batch({"id": pa.array([1], pa.int32())})
    with pytest.raises(SchemaChanged, match="the columns are id"):
        finish_batch(table, batch)


def test_a_database_of_another_encoding(postgres: PostgresServer) -> None:
    """The server converts the texts in the log, too."""
    postgres.query("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        postgres.query("CREATE PUBLICATION log FOR ALL TABLES", database="latin")
        create(postgres, "latin", "v", "id int PRIMARY KEY, v text, w text[]")
        reading = Log(postgres, "latin")
        try:
            postgres.query("INSERT INTO v VALUES (1, 'äöü', ARRAY['ß'])", database="latin")
            table = describe(postgres, "latin", "v")
            _, after = reading.images()
            rows = select(postgres, "latin", table)
            assert rows.to_pylist() == [{"id": 1, "v": "äöü", "w": "{ß}"}]
            assert_same(decode_images(table, pa.array(after, pa.binary())), rows)
        finally:
            reading.close()
    finally:
        postgres.drop_database("latin")


def test_no_rows(postgres: PostgresServer, typed: str) -> None:
    columns = ", ".join(f"c{number} {declared}" for number, declared in enumerate(CASES))
    create(postgres, typed, "v", columns)
    table = describe(postgres, typed, "v")
    assert decode_images(table, pa.array([], pa.binary())).schema == arrow_schema(table)
    assert select(postgres, typed, table).num_rows == 0


def test_batches_that_are_parts_of_others(postgres: PostgresServer, typed: str, log: Log) -> None:
    declared = ["int4", "numeric(9,3)", "date", "timestamptz", "uuid", "float8", "bool", "bytea", "text", "time"]
    create(postgres, typed, "v", ", ".join(f"c{number} {kind}" for number, kind in enumerate(declared)))
    for number in range(12):
        values = [CASES.get(kind, ["1.5"])[number % len(CASES.get(kind, ["1.5"]))] for kind in declared]
        row = ", ".join("NULL" if (number + place) % 5 == 0 else value for place, value in enumerate(values))
        postgres.query(f"INSERT INTO v VALUES ({row})", database=typed)
    table = describe(postgres, typed, "v")
    rows = select(postgres, typed, table)
    with reading(postgres, typed) as cursor:
        (batch,) = raw(cursor, table)
    _, after = log.images()
    images = pa.array(after, pa.binary())
    for start in (0, 3, 8):
        part = finish_batch(table, batch.slice(start, 4))
        assert_same(part, rows.slice(start, 4))
        assert_same(decode_images(table, images.slice(start, 4)), part)


INTS: dict[str, str | int | bool] = {"oid": 23, "typmod": -1, "kind": "base"}


def one_column(oid: int, typmod: int = -1) -> Table:
    return Table(TableName("s", "t"), (Column("c", "c", True, {**INTS, "oid": oid, "typmod": typmod}),), ())


NUMERIC_5_2 = (5 << 16 | 2) + 4
MALFORMED: dict[int, list[str]] = {
    16: ["", "x", "true", "T"],
    17: ["", "\\", "00", "\\x0", "\\xzz", "\\x0G", "\\X00"],
    20: ["", "-", "+1", "1 ", "--1", "9223372036854775808", "-9223372036854775809", "99999999999999999999", "0x1"],
    21: ["32768", "-32769"],
    23: ["2147483648", "-2147483649", "1e3"],
    700: ["", "x", "1,5"],
    701: ["", "0x1p3", "1e"],
    1082: [
        "", "2024-02-30", "2023-02-29", "2024-13-01", "2024-00-01", "2024-01-00", "24-01-01", "2024-1-01", "0000-01-01",
        "2024-01-01 00:00:00", "2024-01-01BC", "12345678-01-01", "Infinity", "-infinit", "2024/01/01", " BC",
    ],
    1083: ["", "24:00:01", "24:00:00.1", "23:60:00", "23:00:60", "1:00:00", "00:00:00.", "00:00:00.1234567", "00:00"],
    1114: [
        "", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01 24:00:00", "2024-01-01 00:00:00+00",
        "1234567-01-01 00:00:00", "2024-01-01 00:00:00.x",
    ],
    1184: [
        "2024-01-01 00:00:00", "2024-01-01 00:00:00+01", "2024-01-01 00:00:00-00", "2024-01-01 00:00:00+00:00", "+00",
    ],
    1700: ["", "-", ".", "1.", ".5", "1.234", "1234", "1e2", "0x1", "NAN", "infinity", "+1", "1.2.3", "1-"],
}  # fmt: skip


@pytest.mark.parametrize("oid", MALFORMED)
def test_texts_that_no_output_function_prints(oid: int) -> None:
    table = one_column(oid, NUMERIC_5_2 if oid == 1700 else -1)
    for text in MALFORMED[oid]:
        with pytest.raises((DecodeError, ValueNotRepresentable), match=r"s\.t\.c"):
            decode_images(table, pa.array([tuple_data([text])], pa.binary()))


def test_texts_that_are_not_utf8_stop_only_who_reads_them() -> None:
    text = one_column(25)
    table = replace(text, columns=(*text.columns, replace(one_column(23).columns[0], name="d")))
    images = pa.array([tuple_data([b"\xff", "7"])], pa.binary())
    for names in (None, ["c"]):
        with pytest.raises(DecodeError, match=r"s\.t\.c: the text is not UTF-8") as caught:
            decode_images(table, images, names=names)
        assert "columns" in caught.value.hint
    assert decode_images(table, images, names=["d"]).to_pydict() == {"d": [7]}


def test_null_instead_of_an_image() -> None:
    with pytest.raises(DecodeError, match="null"):
        decode_images(one_column(25), pa.array([None], pa.binary()))


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\0",
        b"\0\1",
        b"\0\0",
        b"\0\2nn",
        b"\0\1u",
        b"\0\1b\0\0\0\1x",
        b"\0\1nn",
        b"\0\1t\0\0\0",
        b"\0\1t\0\0\0\2x",
        b"\0\1t\0\0\0\1xx",
        b"\0\1t\xff\xff\xff\xffx",
        b"\0\1t\x7f\xff\xff\xffx",
    ],
)
def test_bytes_that_are_not_an_image(image: bytes) -> None:
    good = tuple_data(["x"])
    with guarded(good + image) as memory:
        offsets = pa.py_buffer(np.array([0, len(good), len(good) + len(image)], np.int32))
        images = pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, memory])
        with pytest.raises(DecodeError, match=r"s\.t: image 1 of 2 is not a row"):
            decode_images(one_column(25), images)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_spoilt_images_of_all_types(seed: int) -> None:
    """The result is an error or another row, never a read beyond the bytes or an invalid array."""
    rng = random.Random(seed)
    oids = [16, 17, 20, 21, 23, 25, 700, 701, 1082, 1083, 1114, 1184, 1700, 2950]
    columns = tuple(
        Column(f"c{oid}", "", True, {**INTS, "oid": oid, "typmod": NUMERIC_5_2 if oid == 1700 else -1}) for oid in oids
    )
    table = Table(TableName("s", "t"), columns, ("c23",))
    row = [
        "t", "\\x00ff", "-123456789012", "-5", "77", "äöü", "0.1", "-1e-300", "2024-02-29", "12:34:56.789",
        "0044-03-15 00:00:00 BC", "2024-02-29 12:34:56.789012+00", "-123.45", "01234567-89ab-cdef-fedc-ba9876543210",
    ]  # fmt: skip
    good = tuple_data(row)
    assert decode_images(table, pa.array([good], pa.binary())).num_rows == 1
    outcomes = set()
    for _ in range(1500):
        spoilt = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 4))):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(
                (0, 1, 0x7F, 0x80, 0xFF, *b"ntub-+. :0919", rng.randrange(256))
            )
        if rng.random() < 0.3:
            del spoilt[rng.randrange(len(spoilt)) :]
        with guarded(bytes(spoilt)) as memory:
            offsets = pa.py_buffer(np.array([0, len(spoilt)], np.int32))
            try:
                rows = decode_images(table, pa.BinaryArray.from_buffers(pa.binary(), 1, [None, offsets, memory]))
                rows.validate(full=True)
                outcomes.add("read")
            except CdcError as error:
                outcomes.add(type(error).__name__)
    assert {"read", "DecodeError"} <= outcomes
