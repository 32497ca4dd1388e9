"""Every supported type, with values that are hard to decode, and independent queries of them."""

from __future__ import annotations

import datetime
import decimal
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True)
class Case:
    """A column's declaration and SQL expressions of values for it."""

    declaration: str
    values: tuple[str, ...]


def _integers(name: str, bits: int) -> Iterator[Case]:
    half, whole = 2 ** (bits - 1), 2**bits
    yield Case(name, ("0", "1", "-1", str(-half), str(half - 1), str(half // 2 + 3)))
    yield Case(f"{name} unsigned", ("0", "1", str(whole - 1), str(half), str(half - 1)))
    yield Case(f"{name} zerofill", ("0", "7", str(whole - 1)))


def _decimals() -> Iterator[Case]:
    for precision in range(1, 39):
        for scale in {0, precision // 2, min(precision, 30)}:
            largest = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
            smallest = "0." + "0" * (scale - 1) + "1" if scale else "1"
            yield Case(f"decimal({precision},{scale})", (largest, f"-{largest}", "0", smallest, f"-{smallest}"))
    yield Case("decimal(12,4) unsigned zerofill", ("0", "1.5", "99999999.9999"))


def _temporals() -> Iterator[Case]:
    yield Case("date", ("'1000-01-01'", "'9999-12-31'", "'0001-01-01'", "'1970-01-01'", "'2000-02-29'", "'1900-02-28'"))
    yield Case("year", ("1901", "2155", "0", "2000", "1970"))
    for digits in range(7):
        fraction = "." + "987654"[:digits] if digits else ""
        least = "." + "0" * (digits - 1) + "1" if digits else ""
        yield Case(
            f"datetime({digits})",
            (
                f"'9999-12-31 23:59:59{fraction}'",
                f"'0001-01-01 00:00:00{least}'",
                f"'1969-12-31 23:59:59{fraction}'",
                "'2024-02-29 00:00:00'",
                "'2024-02-29 12:00:00'",
            ),
        )
        yield Case(
            f"timestamp({digits}) null",
            (
                f"'1970-01-01 00:00:01{least}'",
                f"'2038-01-19 03:14:07{fraction}'",
                "'2000-01-01 00:00:00'",
                f"'2024-12-31 23:59:59{least}'",
            ),
        )
        yield Case(
            f"time({digits})",
            (
                "'838:59:59'",
                "'-838:59:59'",
                f"'837:59:59{fraction}'",
                f"'-837:59:59{fraction}'",
                f"'-00:00:00{least}'",
                f"'00:00:00{least}'",
                f"'-00:00:01{fraction}'",
                "'-24:00:00'",
                "'00:00:00'",
            ),
        )


def _strings() -> Iterator[Case]:
    texts = ("''", "'a'", "' a '", "'A'", "'é'")
    for length in (0, 1, 63, 64, 255):
        yield Case(f"char({length})", texts[: 1 if length == 0 else None if length > 3 else 2])
        yield Case(
            f"binary({length})", ("''", "'a'", "x'00'", "'a '")[: 1 if length == 0 else None if length > 1 else 3]
        )
    for length in (0, 1, 63, 64, 255, 256):
        yield Case(f"varchar({length})", texts[: 1 if length == 0 else None if length > 3 else 2])
        yield Case(
            f"varbinary({length})", ("''", "x'00'", "x'610000'")[: 1 if length == 0 else None if length > 3 else 2]
        )
    yield Case("varchar(200) character set utf8mb4", ("REPEAT('é😀', 100)", "'€'", "'\\0\\n\\\\'"))
    yield Case("varchar(150) character set latin1", ("'é€'", "REPEAT('ÿ', 150)"))
    for size in ("tiny", "", "medium", "long"):
        yield Case(f"{size}text", ("''", "'x'", "REPEAT('é', 100)", "REPEAT('z', 255)"))
        yield Case(f"{size}blob", ("''", "x'00ff'", "REPEAT(x'00', 255)", "REPEAT('q', 250)"))
    yield Case("text", ("REPEAT('w', 65535)", "REPEAT('w', 251)", "REPEAT('w', 252)", "REPEAT('w', 256)"))
    yield Case("mediumblob", ("REPEAT('m', 65536)", "REPEAT('m', 70000)", "REPEAT('m', 65535)"))


def _others() -> Iterator[Case]:
    yield Case("float", ("0", "-0e0", "1.5", "3.4028234663852886e38", "-1.17549435e-38", "1.4e-45", "0.1"))
    yield Case("double", ("0", "-0e0", "1.7976931348623157e308", "4.9e-324", "0.1", "-1e-7"))
    yield Case("float(7,3)", ("1234.567", "-0.001"))
    yield Case("double unsigned", ("0", "2.5"))
    for bits in (1, 2, 7, 8, 9, 17, 33, 63, 64):
        yield Case(f"bit({bits})", ("0", "1", str(2**bits - 1), str(2 ** (bits - 1))))
    yield Case("enum('a','b''c','d\\\\e','','ü')", ("'a'", "'b''c'", "'d\\\\e'", "''", "'ü'", "0"))
    yield Case(
        "enum(" + ",".join(f"'m{number}'" for number in range(300)) + ")", ("'m0'", "'m254'", "'m255'", "'m299'")
    )
    for members in (1, 8, 9, 17, 25, 33, 64):
        names = [f"s{number}" for number in range(members)]
        yield Case(
            "set(" + ",".join(f"'{name}'" for name in names) + ")",
            ("''", f"'{names[0]}'", f"'{names[-1]}'", "'" + ",".join(names) + "'"),
        )
    yield Case("json", ("'{}'", "'[1, 2.5, \"é😀\", null, true]'", '\'{"b": 1, "a": {"c": []}}\'', "'\"x\"'"))


def _geometries() -> Iterator[Case]:
    """Shapes without and with a reference system, whose number is stored with them, and with axes in another order."""
    shapes = {
        "point": ("POINT(1 -2)", "POINT(0 0)"),
        "linestring": ("LINESTRING(0 0, 1 1, 2 0.1)",),
        "polygon": ("POLYGON((0 0, 0 3, 3 3, 0 0), (1 1, 1 2, 2 2, 1 1))",),
        "multipoint": ("MULTIPOINT((1 2), (3 4))",),
        "multilinestring": ("MULTILINESTRING((0 0, 1 1), (2 2, 3 3))",),
        "multipolygon": ("MULTIPOLYGON(((0 0, 0 3, 3 3, 0 0)))",),
        "geomcollection": ("GEOMETRYCOLLECTION EMPTY", "GEOMETRYCOLLECTION(POINT(1 1), LINESTRING(0 0, 1 1))"),
    }

    def of(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(f"ST_GeomFromText('{text}', {system})" for text in texts for system in (0, 4326, 3857))

    for name, texts in shapes.items():
        yield Case(name, of(texts))
    yield Case("geometry", of([texts[0] for texts in shapes.values()]))
    yield Case("point srid 4326", ("ST_GeomFromText('POINT(52.5 13.4)', 4326)", "ST_SRID(POINT(13.4, -52.5), 4326)"))
    many = "CONCAT('LINESTRING(0 0', REPEAT(', 1.5 2.5', 5000), ')')"
    yield Case("linestring", (f"ST_GeomFromText({many}, 4326)",))


def _vectors() -> Iterator[Case]:
    # Negative zero, the least number, the greatest one; fewer numbers than the column has room for.
    hard = ("x'00000080'", "x'0100000001000080'", "x'ffff7f7fffff7fff'")
    yield Case("vector(3)", ("TO_VECTOR('[1, -2.5, 1e-30]')", *hard, "TO_VECTOR('[0.1]')"))
    yield Case("vector(1)", ("TO_VECTOR('[1]')", "x'00000080'"))
    yield Case("vector", ("UNHEX(REPEAT('0000803f', 2048))", "TO_VECTOR('[0]')"))
    yield Case("vector(16383)", ("UNHEX(REPEAT('cdcc8c3f', 16383))", "TO_VECTOR('[7, 8]')"))


CASES = (
    *(
        case
        for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64))
        for case in _integers(name, bits)
    ),
    *_decimals(),
    *_temporals(),
    *_strings(),
    *_others(),
    *_geometries(),
    *_vectors(),
)


def _no_dates() -> Iterator[Case]:
    days = ("0000-00-00", "2024-00-15", "2024-05-00", "2023-02-29", "2024-02-31", "0000-01-00", "2024-02-29")
    yield Case("date", tuple(f"'{day}'" for day in days))
    for digits in range(7):
        fraction = "." + "987654"[:digits] if digits else ""
        yield Case(
            f"datetime({digits})",
            (*(f"'{day} 23:59:58{fraction}'" for day in days), "'0000-00-00 00:00:00'", "'9999-12-31 00:00:00'"),
        )
        yield Case(
            f"timestamp({digits}) null", ("'0000-00-00 00:00:00'", "'2001-02-03 04:05:06'", "'2038-01-19 03:14:07'")
        )


def _wide_decimals() -> Iterator[Case]:
    for precision, scale in ((39, 0), (39, 30), (40, 1), (45, 9), (47, 18), (64, 27), (65, 0), (65, 30), (56, 10)):
        for places in (38, 39, precision):
            whole, fraction = "9" * (places - scale), "9" * scale
            most = whole + ("." + fraction if scale else "")
            least = "0." + "0" * (scale - 1) + "1" if scale else "1"
            yield Case(f"decimal({precision},{scale})", (most, f"-{most}", least, f"-{least}", "0", "-0.0", "12"))
        yield Case(f"decimal({precision},{scale}) unsigned zerofill", ("0", "7", "9" * (precision - scale)))
        powers = tuple(f"{sign}1{'0' * places}" for places in range(0, precision - scale, 3) for sign in ("", "-"))
        yield Case(f"decimal({precision},{scale})", powers)


GAPS = {
    "ucs2": "d800", "cp1250": "81", "cp1251": "98", "cp1256": "8a", "cp1257": "81", "greek": "ff", "hebrew": "bf",
    "hp8": "ff", "tis620": "db", "dec8": "a4", "geostd8": "ff", "swe7": "7f", "gbk": "a6d9", "gb2312": "aaa1",
    "gb18030": "fe39fe39", "euckr": "c9a1", "big5": "f9fe", "sjis": "f040", "cp932": "81ad", "ujis": "8fa2a1",
    "eucjpms": "8fa2a1",
}  # fmt: skip
"""Codes that the server stores in columns of these character sets although they are not assigned to a character."""

UNREPRESENTABLE = (*_no_dates(), *_wide_decimals())
"""Types some of whose values no Arrow type holds, with such values."""


def create_table(name: str, cases: Sequence[Case]) -> str:
    columns = ", ".join(f"c{number} {case.declaration}" for number, case in enumerate(cases))
    # Dynamic rows keep text out of the page, so that a row may have hundreds of columns.
    return f"CREATE TABLE {name} (id int PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4"


def rows_of(cases: Sequence[Case]) -> list[list[str]]:
    """SQL expressions of rows that show every value of every case, and rows of NULLs."""
    most = max(len(case.values) for case in cases)
    rows = [[case.values[number % len(case.values)] for case in cases] for number in range(most)]
    alternating = [value if number % 2 else "NULL" for number, value in enumerate(rows[0])]
    return [["NULL"] * len(cases), *rows, alternating]


def independent(declaration: str, column: str) -> str:
    """The expression that selects ``column`` so that the driver's own decoding loses nothing."""
    # The text protocol prints six digits of a float, and the driver takes a vector for text.
    if declaration.startswith("vector"):
        return f"HEX({column})"
    return f"CAST({column} AS DOUBLE)" if declaration.startswith("float") else column


def as_driver(kind: pa.DataType, value: Any) -> Any:
    """An Arrow value as PyMySQL gives it."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    return value


def from_driver(kind: pa.DataType, value: Any) -> Any:
    """What PyMySQL gives, in the form of ``as_driver``."""
    if isinstance(value, bytes) and (pa.types.is_uint64(kind) or pa.types.is_boolean(kind)):
        number = int.from_bytes(value, "big")
        return bool(number) if pa.types.is_boolean(kind) else number
    if isinstance(value, str) and pa.types.is_list(kind):
        data = bytes.fromhex(value)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    return value


def same_bits(ours: Any, theirs: Any) -> bool:
    """Equality that distinguishes -0.0 from 0.0 and decimals by their scale."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return struct.pack("d", ours) == struct.pack("d", theirs)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_bits, ours, theirs))
    if isinstance(ours, decimal.Decimal):
        return isinstance(theirs, decimal.Decimal) and ours.as_tuple() == theirs.as_tuple()
    return type(ours) is type(theirs) and bool(ours == theirs)
