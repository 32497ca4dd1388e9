"""JSON in row images must become exactly the text that a SELECT of the column returns, or be rejected."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.errors import DecodeError, ValueNotRepresentable
from airflow_provider_cdc.sources.mysql.decode import json_text as module
from airflow_provider_cdc.sources.mysql.decode.json_text import json_text, json_texts
from harness.mysql_server import MysqlServer
from tests.seeds import examples
from tests.sources.mysql.decode import json_reference

WRITE_ROWS, UPDATE_ROWS = 30, 31


@dataclass
class Table:
    """A table with one JSON column on the server, and the images that the log holds of it."""

    connection: Any
    data: Path

    def query(self, sql: str) -> Sequence[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def store(self, *expressions: str) -> tuple[list[bytes | None], list[str | None]]:
        """Images and texts of documents that are given as SQL expressions."""
        self.query("TRUNCATE TABLE documents")
        rows = ", ".join(f"({number}, {expression})" for number, expression in enumerate(expressions))
        images = self.logged(f"INSERT INTO documents VALUES {rows}")
        return [images[number] for number in range(len(expressions))], self.texts()

    def texts(self) -> list[str | None]:
        return [text for (text,) in self.query("SELECT document FROM documents ORDER BY id")]

    def logged(self, sql: str) -> dict[int, bytes | None]:
        """Run a statement; returns, by id, the images of the rows as it left them."""
        ((file, start, *_),) = self.query("SHOW BINARY LOG STATUS")
        self.query(sql)
        ((same_file, end, *_),) = self.query("SHOW BINARY LOG STATUS")
        assert file == same_file
        with (self.data / file).open("rb") as log:
            log.seek(start)
            return dict(_images(log.read(end - start)))


def _images(events: bytes) -> Iterator[tuple[int, bytes | None]]:
    at = 0
    while at < len(events):
        kind, size = struct.unpack_from("<xxxxBxxxxI", events, at)
        if kind in (WRITE_ROWS, UPDATE_ROWS):
            row = at + 19 + 8
            row += struct.unpack_from("<H", events, row)[0]
            assert events[row] == 2, "two columns"
            row += 3 if kind == UPDATE_ROWS else 2
            checksum = at + size - 4
            while row < checksum:
                is_null = bool(events[row] & 2)
                (number,) = struct.unpack_from("<I", events, row + 1)
                row += 5
                if is_null:
                    yield number, None
                    continue
                (length,) = struct.unpack_from("<I", events, row)
                yield number, events[row + 4 : row + 4 + length]
                row += 4 + length
        at += size


@pytest.fixture(scope="module")
def table(mysql: MysqlServer) -> Iterator[Table]:
    name = "json_text"
    mysql.query(f"CREATE DATABASE {name}")
    with mysql.connect(charset="utf8mb4", database=name) as connection:
        table = Table(connection, mysql.directory / "data")
        table.query("SET SESSION sql_mode = ''")  # allows zero dates
        table.query("CREATE TABLE documents (id INT UNSIGNED PRIMARY KEY, document JSON)")
        yield table
    mysql.query(f"DROP DATABASE {name}")


def assert_same(images: Sequence[bytes | None], texts: Sequence[str | None]) -> None:
    assert len(images) == len(texts)
    assert json_texts(pa.array(images, pa.binary())).to_pylist() == texts


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def nested(kind: str, levels: int) -> str:
    document: Any = 1
    for _ in range(levels):
        document = [document] if kind == "array" else {"k": document}
    return json.dumps(document)


letters = st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\/\b\f\n\r\t\0\x1f\x7f\u2028😀')
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([sign * 2**bits + off for sign in (1, -1) for bits in (15, 16, 31, 32, 63) for off in (-1, 0)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(letters)
)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(letters, max_size=9), inner, max_size=6),
    max_leaves=40,
)
on_the_server = settings(
    max_examples=examples(15),
    deadline=None,
    # The table is emptied by every example; nothing is left over.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@on_the_server
@given(batch=st.lists(documents, min_size=1, max_size=40))
def test_any_document_reads_as_select_prints_it(table: Table, batch: list[Any]) -> None:
    images, texts = table.store(*[quoted(json.dumps(document)) for document in batch])
    assert_same(images, texts)
    assert [json_reference.json_text(image) for image in images if image is not None] == texts


@st.composite
def decimals(draw: st.DrawFn) -> str:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(precision, 30)))
    number = Decimal(draw(st.integers(-(10**precision) + 1, 10**precision - 1))).scaleb(-scale)
    return f"CAST('{number:f}' AS DECIMAL({precision}, {scale}))"


opaques = (
    decimals()
    | st.dates().map(lambda value: f"CAST('{value.isoformat()}' AS DATE)")
    | st.datetimes().map(lambda value: f"CAST('{value.isoformat(' ')}' AS DATETIME(6))")
    | st.integers(-3_020_399_000_000, 3_020_399_000_000).map(lambda value: f"SEC_TO_TIME({value} / 1e0 / 1000000)")
    | st.binary(max_size=400).map(lambda value: f"x'{value.hex()}'")
    | st.integers(0, 2**64 - 1).map(lambda value: f"b'{value:b}'")
    | st.sampled_from(["CAST('-838:59:59' AS TIME(6))", "CAST(0 AS DECIMAL(30, 30))", "1.0 * 0.0", "-0.00"])
)


@on_the_server
@given(batch=st.lists(st.lists(opaques, min_size=1, max_size=9), min_size=1, max_size=30))
def test_values_of_sql_types_read_as_select_prints_them(table: Table, batch: list[list[str]]) -> None:
    images, texts = table.store(*[f"JSON_ARRAY({', '.join(expressions)})" for expressions in batch])
    assert_same(images, texts)
    assert [json_reference.json_text(image) for image in images if image is not None] == texts


COLUMNS = {
    "BIT(64)": "5",
    "BINARY(3)": "'ab'",
    "VARBINARY(9)": "'ab'",
    "TINYBLOB": "'ab'",
    "BLOB": "REPEAT('ab', 99)",
    "MEDIUMBLOB": "''",
    "LONGBLOB": "x'00ff'",
    "ENUM('a', 'b')": "'b'",
    "SET('x', 'y')": "'x,y'",
    "YEAR": "2001",
    "DATE": "'0000-00-00'",
    "DATETIME": "'2024-00-00 00:00:00'",
    "TIMESTAMP(6)": "'2024-02-29 23:59:59.000001'",
    "TIME(3)": "'-12:13:14.156'",
    "DECIMAL(65, 30)": "'-12345678901234567890123456789012345.123456789012345678901234567890'",
    "FLOAT": "1.1",
    "DOUBLE": "-1e-300",
    "BIGINT UNSIGNED": "18446744073709551615",
    "GEOMETRY": "ST_GeomFromText('POINT(1 2.5)')",
    "TEXT CHARACTER SET latin1": "'é'",
    "JSON": """'{"a": [1]}'""",
}


def test_every_column_type_reads_as_select_prints_it_inside_json(table: Table) -> None:
    names = [f"c{number}" for number in range(len(COLUMNS))]
    table.query(f"CREATE TABLE typed ({', '.join(map(' '.join, zip(names, COLUMNS, strict=True)))})")
    table.query(f"INSERT INTO typed VALUES ({', '.join(COLUMNS.values())})")
    images, texts = table.store(*[f"(SELECT JSON_OBJECT('k', {name}) FROM typed)" for name in names])
    table.query("DROP TABLE typed")
    assert_same(images, texts)


def test_doubles_of_every_magnitude_read_as_select_prints_them(table: Table) -> None:
    source = random.Random(20)
    doubles = [struct.unpack("<d", source.randbytes(8))[0] for _ in range(20_000)]
    doubles += [2.0**power for power in range(-1074, 1024)]
    doubles += [float(f"{digits}e{power}") for digits in ("1", "-9.5", "123456789") for power in range(-330, 300)]
    # Where plain and exponent form meet.
    doubles += [float(f"{digits}e{power}") for digits in range(1, 100) for power in (-17, -16, -15, -14, 13, 14, 15)]
    doubles += [1234567890123456.7, 123456789012345.67, -0.0, 9007199254740993.0, 5e-324, 1.7976931348623157e308]
    doubles = list(filter(math.isfinite, doubles))
    batches = [doubles[start : start + 500] for start in range(0, len(doubles), 500)]
    arrays = [f"JSON_ARRAY({', '.join(f'CAST({value!r} AS DOUBLE)' for value in batch)})" for batch in batches]
    images, texts = table.store(*arrays)
    assert_same(images, texts)


def test_updates_in_place_leave_holes_that_do_not_show(table: Table) -> None:
    table.store(
        *[
            quoted(json.dumps(document))
            for document in (
                {"name": "a long name" * 9, "list": [1, 70_000, "three", {"k": 2.5}], "gone": "x" * 50, "n": None},
                [["abc" * 20, "def"], {"a": "b" * 30, "c": [True] * 5}, 1e300, 2**63],
                {f"key{number}": "v" * number for number in range(300)},
                {"big": "z" * 70_000, "small": "s" * 100},
            )
        ]
    )
    for number, change in [
        (0, "JSON_SET(document, '$.name', 'short', '$.list[1]', 'x', '$.list[3].k', 7)"),
        (0, "JSON_REMOVE(document, '$.gone', '$.list[0]')"),
        (0, "JSON_SET(document, '$.n', 65536, '$.name', 'long again')"),
        (1, "JSON_REPLACE(document, '$[0][0]', 'y', '$[0][1]', 'longer', '$[1].a', '')"),
        (1, "JSON_REPLACE(document, '$[2]', 'six', '$[3]', 7)"),
        (2, "JSON_REMOVE(document, '$.key3', '$.key200', '$.key299')"),
        (2, "JSON_SET(document, '$.key250', JSON_ARRAY(1, 'two', JSON_OBJECT('three', 3)))"),
        (3, "JSON_SET(document, '$.big', 'z', '$.small', JSON_ARRAY())"),
        (3, "JSON_REMOVE(document, '$.big')"),
    ]:
        images = table.logged(f"UPDATE documents SET document = {change} WHERE id = {number}")
        ((holes,),) = table.query(f"SELECT JSON_STORAGE_FREE(document) FROM documents WHERE id = {number}")
        assert holes > 0
        assert_same([images[number]], [table.texts()[number]])


def test_large_containers_read_as_select_prints_them(table: Table) -> None:
    documents = [
        json.dumps(list(range(-30_000, 30_000, 2))),
        json.dumps([2**31 - 1, -(2**31), 2**32 - 1, 2**32, -1, 65_536, "x" * 65_536, None, 0.5]),
        json.dumps({"k" * length: length for length in (0, 1, 255, 256, 65_535)}),
        json.dumps({f"{number}": [number, {"n": {}}, []] for number in range(9_000)}),
        json.dumps("é" * 2_000_000),
    ]
    images, texts = table.store(*map(quoted, documents))
    assert [image and image[0] for image in images] == [3, 3, 1, 1, 12], "large formats"
    assert_same(images, texts)


@pytest.mark.parametrize("kind", ["array", "object"])
def test_documents_as_deep_as_the_server_allows_are_read(table: Table, kind: str) -> None:
    images, texts = table.store(quoted(nested(kind, 100)))
    assert_same(images, texts)


def test_an_empty_value_is_null_as_it_is_to_the_server(table: Table) -> None:
    table.query("CREATE TABLE strict_documents (id INT UNSIGNED PRIMARY KEY, document JSON NOT NULL)")
    images = table.logged("INSERT IGNORE INTO strict_documents VALUES (0, '1'), (1, NULL)")
    texts = [text for (text,) in table.query("SELECT document FROM strict_documents ORDER BY id")]
    table.query("DROP TABLE strict_documents")
    assert images[1] == b""
    assert_same(list(images.values()), texts)


def test_sql_null_is_kept_and_differs_from_json_null(table: Table) -> None:
    images, texts = table.store("NULL", "'null'", "NULL")
    assert texts == [None, "null", None]
    assert_same(images, texts)


@pytest.mark.parametrize(
    ("image", "text"),
    [
        (b'\x0f\xfd\x02a"', '"a\\""'),
        (b"\x0f\xf6\x04\x03\x02\x7f\xff", "-0.00"),
        (b"\x0f\x07\x08" + bytes(8), '"0000-00-00 00:00:00.000000"'),
        (b"\x0f\xf2\x03abc", '"base64:type242:YWJj"'),
    ],
)
def test_what_sql_does_not_produce_reads_as_the_server_would_print_it(image: bytes, text: str) -> None:
    # The server printed these texts for images that were written into its tables with BINLOG statements.
    assert json_text(image) == text


def test_doubles_have_the_digits_of_repr() -> None:
    bits = np.random.default_rng(7).integers(0, 0x7FF << 52, 100_000, np.uint64)
    images = [b"\x0b" + value.to_bytes(8, "little") for value in bits.tolist()]
    assert json_texts(pa.array(images, pa.binary())).to_pylist() == list(map(json_reference.json_text, images))


def test_a_text_much_longer_than_its_image_fits() -> None:
    text = "\x01" * 40_000
    image = b"\x0c\xc0\xb8\x02" + text.encode()
    assert json_texts(pa.array([b"", image, None, image, b""])).to_pylist() == [
        "null",
        *[json.dumps(text), None, json.dumps(text)],
        "null",
    ]


def test_slices_and_empty_columns() -> None:
    images = pa.array([b"\x05\x01\x00", None, b"\x05\x02\x00", None, b"\x05\x03\x00"], pa.binary())
    assert json_texts(images[1:4]).to_pylist() == [None, "2", None]
    assert json_texts(images[4:]).to_pylist() == ["3"]
    assert json_texts(images[:0]).to_pylist() == []
    assert json_texts(pa.nulls(3, pa.binary())).to_pylist() == [None] * 3


def test_more_text_than_an_arrow_array_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 11)
    assert json_texts(pa.array([b"", b"", b"\x05\x01\x01"])).to_pylist() == ["null", "null", "257"]
    with pytest.raises(ValueNotRepresentable, match="3 JSON values take 12 bytes"):
        json_texts(pa.array([b"", b"", b""]))


def small_array(*entries: bytes, tail: bytes = b"") -> bytes:
    """A small array of 3-byte entries, with what they point to in `tail`."""
    size = 4 + 3 * len(entries) + len(tail)
    return struct.pack("<BHH", 2, len(entries), size) + b"".join(entries) + tail


def bomb(levels: int, fan: int) -> bytes:
    """Arrays whose entries all point to the same next array: a reader that followed them would see `fan` ** `levels`
    elements."""
    size = 4 + 3 * fan
    body = b""
    for level in reversed(range(levels)):
        last = level == levels - 1
        entry = b"\x04\x00\x00" if last else struct.pack("<BH", 2, size)
        body = struct.pack("<HH", fan, size + len(body)) + entry * fan + body
    return b"\x02" + body


def deep(levels: int) -> bytes:
    body = b"\x00\x00\x04\x00"
    for _ in range(levels - 1):
        body = struct.pack("<HHBH", 1, 7 + len(body), 2, 7) + body
    return b"\x02" + body


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (b"\x0d", "type"),
        (b"\xff\x00", "type"),
        (b"\x04", "beyond the end"),
        (b"\x04\x03", "literal"),
        (b"\x09\x01\x02", "beyond the end"),
        (b"\x0b" + struct.pack("<d", math.nan), "not a number"),
        (b"\x0b" + struct.pack("<d", -math.inf), "not a number"),
        (b"\x0c", "beyond the end"),
        (b"\x0c\x02a", "beyond the end"),
        (b"\x0c\x80\x80\x80\x80\x80\x00", "more than five bytes"),
        (b"\x0c\xff\xff\xff\xff\xff", "more than five bytes"),
        (b"\x0c\xff\xff\xff\xff\x7f", "beyond the end"),
        (b"\x0c\x01\xff", "not UTF-8"),
        (b"\x0c\x02\xf0\x9f", "not UTF-8"),
        (b"\x0c\x03\xed\xa0\x80", "not UTF-8"),
        (b"\x0f", "beyond the end"),
        (b"\x0f\x0f", "beyond the end"),
        (b"\x0f\xfd\x01\xff", "not UTF-8"),
        (b"\x0f\xf6\x02\x02\x02", "decimal"),
        (b"\x0f\xf6\x03\x01\x02\x80", "decimal"),
        (b"\x0f\xf6\x04\x02\x00\x80\x00", "decimal"),
        (b"\x0f\xf6\x03\x02\x00\xe4", "decimal"),
        (b"\x0f\x0a\x07" + bytes(7), "date or time"),
        (b"\x0f\x0c\x08" + struct.pack("<q", -1), "date or time"),
        (b"\x0f\x0c\x08" + struct.pack("<q", 10_000 * 13 << 46), "date or time"),
        (b"\x0f\x0c\x08" + struct.pack("<q", 24 << 36), "date or time"),
        (b"\x0f\x0b\x08" + struct.pack("<q", 839 << 36), "date or time"),
        (b"\x0f\x0b\x08" + struct.pack("<q", 60 << 30), "date or time"),
        (b"\x0f\x0b\x08" + struct.pack("<q", 1_000_000), "date or time"),
        (b"\x0f\x0b\x08" + struct.pack("<q", -(2**63)), "date or time"),
        (b"\x02\x00\x00\x04", "beyond the end"),
        (b"\x02\x00\x00\x05\x00", "beyond the end"),
        (b"\x02\x01\x00\x04\x00\x04\x00\x00", "beyond the end"),
        (b"\x03\xff\xff\xff\xff\x08\x00\x00\x00", "beyond the end"),
        (small_array(b"\x02\x00\x00"), "into the entries"),
        (small_array(b"\x02\x04\x00"), "into the entries"),
        (small_array(b"\x0c\x07\x00"), "beyond the end"),
        (small_array(b"\x0c\x0a\x00", b"\x0c\x0a\x00", tail=b"\x03abc"), "overlap"),
        (b"\x00\x01\x00\x0c\x00\x0a\x00\x01\x00\x04\x00\x00k", "into the entries"),
        (b"\x00\x01\x00\x0c\x00\x0b\x00\x02\x00\x04\x00\x00k", "beyond the end"),
        (bomb(levels=90, fan=9), "overlap"),
        (deep(101), "levels"),
        (deep(9_000), "levels"),
    ],
)
def test_what_does_not_follow_the_format_is_refused(image: bytes, reason: str) -> None:
    with pytest.raises(DecodeError, match=reason):
        json_text(image)
    if len(image) < 9_000:
        with pytest.raises(DecodeError):
            json_reference.json_text(image)


def test_the_deepest_document_is_accepted() -> None:
    assert json_text(deep(100)) == "[" * 100 + "]" * 100


def test_the_error_says_which_value_and_where() -> None:
    images = pa.array([b"\x05\x01\x00", None, small_array(b"\x05\x00\x00", b"\x0d\x0a\x00")], pa.binary())
    with pytest.raises(DecodeError) as caught:
        json_texts(images)
    assert caught.value.where == "value 2, byte 11"


@pytest.fixture(scope="module")
def specimens(table: Table) -> list[bytes]:
    """Images with every type, container and hole."""
    images, _ = table.store(
        quoted(json.dumps({"a": [1, -2, 70_000, 1.5, "x\n"], "bb": {"c": None, "d": True}, "ccc": 2**64 - 1})),
        "JSON_ARRAY(-1.25, CURRENT_DATE, x'cafe', CAST('-12:13:14.5' AS TIME(1)), NOW(6), b'1', 1e0)",
        "JSON_OBJECT('k', REPEAT('z', 200), 'q', JSON_ARRAY(), 'r', JSON_OBJECT())",
        quoted(nested("object", 30)),
        quoted(json.dumps([[[]] * 3, list(range(20)), "é😀" * 9])),
        "JSON_ARRAY(REPEAT('y', 66000), 1, 70000, 5000000000, JSON_OBJECT('k', 0.1))",
    )
    return [image for image in images if image is not None]


@pytest.mark.slow
@settings(
    max_examples=examples(600),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damaged_images_are_refused_or_read_alike_by_both_readers(specimens: list[bytes], data: st.DataObject) -> None:
    image = bytearray(data.draw(st.sampled_from(specimens)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(image), 300) - 1))
        image[at] = data.draw(st.sampled_from([0, 1, 2, 3, 7, 12, 15, 127, 128, 246, 255]) | st.integers(0, 255))
    if data.draw(st.booleans()):
        del image[data.draw(st.integers(1, min(len(image), 300))) :]
    assert_read_alike(bytes(image))


@pytest.mark.slow
@settings(max_examples=examples(600), deadline=None)
@given(st.binary(max_size=60) | st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 15), st.binary()))
def test_random_bytes_are_refused_or_read_alike_by_both_readers(image: bytes) -> None:
    assert_read_alike(image)


def assert_read_alike(image: bytes) -> None:
    """Also among other values, where reading beyond the end of one would change the result."""
    try:
        expected = json_reference.json_text(image)
    except DecodeError:
        for column in ([image], [b"", image, b"\x00" * 99], [image, b"\xff" * 99]):
            with pytest.raises(DecodeError):
                json_texts(pa.array(column, pa.binary()))
    else:
        assert json_text(image) == expected
        assert json_texts(pa.array([b"", image, b""], pa.binary())).to_pylist() == ["null", expected, "null"]
