r"""The table of MySQL types: the Arrow type of each MySQL type, and its encoding in MySQL's two binary formats.

One table entry describes both binary formats of a value, so that the descriptions cannot disagree. The formats are a
*row* of a prepared statement's result, and a row *image* in the binary log. See ``ColumnType``.

============================  ======================  ==========================================================
MySQL                         Arrow                   remarks
============================  ======================  ==========================================================
tinyint … bigint              int8 int16 int32 int64  mediumint is int32
… unsigned                    uint8 … uint64
float, double                 float32, float64        the stored bits
decimal(p,s), p ≤ 38          decimal128(p, s)
decimal(p,s), p > 38          the policy              null: decimal128(38, s), and values of more digits are null
bit(1), bit(n)                bool, uint64
char varchar text             utf8                    from the column's character set; invalid text: the policy
binary varbinary blob         binary                  binary(n) has all its n bytes
date                          date32                  \
datetime(n)                   timestamp[us]           |  zero dates and days that do not exist: the policy
timestamp(n)                  timestamp[us, UTC]      /
time(n)                       duration[us]            −838:59:59 to 838:59:59
year                          int16
enum                          dictionary<utf8>        index 0 is MySQL's '' for an invalid value
set                           utf8                    members joined by commas
json                          utf8                    the text that SELECT returns
geometry, point, …            binary                  as from SELECT: the SRID in 4 bytes, little-endian, and WKB
vector(n)                     list<float32>           up to n numbers; the stored bits
============================  ======================  ==========================================================

"The policy" is `TableOptions.unrepresentable`. With ``error``, such values raise ValueNotRepresentable, and a decimal
column of more than 38 digits is not copied at all. With ``string``, the column is utf8. For every value, it contains
the text that SELECT returns (TIMESTAMP: in UTC). ``null`` never applies to a column that identifies rows (a key column,
or every column of a keyless table), because two rows could become equal. For such a column, ``null`` acts as ``error``.

Text is invalid if its stored bytes contain a code without a character in the column's character set. With ``null``,
invalid text becomes null. With ``string``, it becomes ``0x`` and the hexadecimal digits of the bytes. Another row may
contain exactly that text, so for a column that identifies rows, ``string`` acts as ``error``. If the character set of a
column has no gaps (`charsets.has_gaps`), ``string`` also acts as ``error``, because in such a set these bytes are
damage.

Source of the formats: MySQL's documentation of "Binary Protocol Value" and of ``Table_map_event``, and the server
itself; the tests compare each entry with the server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.mysql.server.session import quote
from airflow_provider_cdc.sources.mysql.tables.charsets import bytes_per_character, has_gaps, is_ambiguous
from airflow_provider_cdc.sources.mysql.tables.labels import (
    LABELS,
    Declared,
    are_labels,
    labels,
    may_hide_labels,
    parse,
)

# The column types that can be copied, and the types whose values the reader can only skip in row images.


TEXTS = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
GEOMETRIES = {
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geomcollection",
    "geometrycollection",
}
_BINARIES = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_NUMBERS = {"tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "bit", "year"}
_TEMPORALS = {"date", "datetime", "timestamp", "time"}
_SUPPORTED = {"enum", "set", "json", "vector"} | _NUMBERS | _TEMPORALS | GEOMETRIES | TEXTS | _BINARIES


def unsupported(column: Column, identifies: bool = False, policy: str = "error") -> str | None:
    """Return the reason why ``column`` cannot be copied. None: it can be copied.

    :param identifies: whether the column is one of the columns that identify the table's rows.
    """
    declared = parse(column.type)
    charset = str(column.details.get("charset", ""))
    if declared is None or declared.name not in _SUPPORTED:
        return f"its type {column.type} is not supported"
    if is_wide_decimal(column) and policy_of(identifies, policy) == "error":
        also = ", and with nulls it would no longer identify rows" if policy == "null" else ""
        return f"its type {column.type} has more than the 38 digits that fit an Arrow decimal{also}"
    if declared.name in ("enum", "set") and charset == "binary":
        return f"the members of {declared.name} columns of character set binary are not text"
    if declared.name in ("enum", "set") and not are_labels(declared.arguments):
        return f"a member of {column.type} is not text"
    if may_hide_labels(column) and LABELS not in column.details:
        # The server shows types only in utf8mb3, so it cannot show characters beyond U+FFFF or undefined codes.
        return f"a member of {column.type} may contain a character that the server shows as '?', so its text is unknown"
    if declared.name in TEXTS and bytes_per_character(charset) is None:
        return f"its character set {charset or '(unknown)'} is not supported"
    return None


def is_wide_decimal(column: Column) -> bool:
    """Whether ``column`` is a decimal of more than 38 digits, which is the maximum for an Arrow decimal."""
    declared = parse(column.type)
    return declared is not None and declared.name == "decimal" and declared.number(0, 10) > 38


def leaving_out(table: Table, column: str) -> str:
    """Return the beginning of a hint about a column that cannot be copied; empty if the column cannot be left out."""
    return "" if column in table.key else "leave the column out with `Table.columns`, "


def unmeasured(column: Column) -> str | None:
    """Return the reason why the reader cannot even skip values of ``column`` in row images. None: it can skip them."""
    declared = parse(column.type)
    if declared is None or declared.name not in _SUPPORTED:
        return f"its type {column.type} is not supported"
    if declared.name in TEXTS and bytes_per_character(str(column.details.get("charset", ""))) is None:
        return f"its character set {column.details.get('charset') or '(unknown)'} is not supported"
    return None


def policy_of(identifies: bool, policy: str) -> str:
    """Return the policy for values that no Arrow type can hold. A column that identifies rows never gets the policy
    ``null``, because nulls could make two rows equal."""
    return "error" if identifies and policy == "null" else policy


class Family(Enum):
    """Groups of column types whose values are decoded and converted in the same way."""

    NUMBER = "number"
    YEAR = "year"
    DECIMAL = "decimal"
    WIDE_DECIMAL = "wide decimal"
    BITS = "bits"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    BYTES = "bytes"
    TEXT = "text"
    ENUM = "enum"
    SET = "set"
    JSON = "json"
    VECTOR = "vector"


VECTOR = pa.list_(pa.field("element", pa.float32(), nullable=False))
"""The field name is Parquet's name for list elements."""

LENGTH_ENCODED = 0
"""The ``ColumnType.row_width`` of values that are stored after a length-encoded integer."""
TEMPORAL = -1
"""The ``ColumnType.row_width`` of values that are stored after a length byte."""


@dataclass(frozen=True)
class ColumnType:
    """The entry of one column in the table of types.

    ``select``
        the expression by which a SELECT reads the column.
    ``row_code``, ``row_width``
        the type in a result's column definition, and the bytes of a value (or ``LENGTH_ENCODED``, ``TEMPORAL``).
    ``code``, ``metadata``
        the type and metadata of the column in a TABLE_MAP event.
    ``prefix``, ``width``
        in an image, a field has ``prefix`` bytes of little-endian length, followed by the value; if ``prefix`` is 0,
        the value has ``width`` bytes.
    ``length``
        for binary(n), the number of bytes to which values are padded; for a decimal of more than 38 digits, the minimum
        number of digits before the decimal point; 0 for any other type.
    ``precision``, ``scale``
        the declared precision and scale of a decimal; for bit(n), ``precision`` is the number of bits; for times,
        ``scale`` is the number of digits of the fractional second.
    ``labels``
        the members of enum and set, in order.
    ``policy``
        the policy for values that no Arrow type can hold, for the families that have such values.
    ``apart``
        true for text that identifies rows, in a character set where two codes stand for one character. In this case,
        the second code is treated as invalid.
    """

    name: str
    family: Family
    arrow: pa.DataType
    nullable: bool
    select: str
    row_code: int
    row_width: int
    code: int
    metadata: bytes = b""
    prefix: int = 0
    width: int = 0
    length: int = 0
    precision: int = 0
    scale: int = 0
    unsigned: bool = False
    charset: str = ""
    labels: tuple[str, ...] = ()
    policy: str = "error"
    apart: bool = False

    @property
    def published_nullable(self) -> bool:
        """Whether the Arrow column may hold nulls; ``nullable`` says whether the table may hold NULLs."""
        return self.nullable or self.policy == "null"

    @property
    def row_unsigned(self) -> bool:
        """Whether the column is unsigned in a result's column definition."""
        return self.unsigned or self.family in (Family.ENUM, Family.SET, Family.BITS, Family.YEAR)

    @classmethod
    def of(cls, column: Column, identifies: bool = False, policy: str = "error") -> ColumnType:
        """Return the entry for ``column``.

        :param identifies: whether the column is one of the columns that identify the table's rows.
        :param policy: the policy for values that no Arrow type can hold.
        :raises ConfigurationError: the type is not in the table of types; ``unsupported`` returns the reason.
        """
        reason = unsupported(column, identifies, policy)
        if reason is not None:
            raise ConfigurationError(reason, where=column.name, hint="leave the table out")
        charset = str(column.details.get("charset", ""))
        decided, hidden_labels = policy_of(identifies, policy), str(column.details.get(LABELS, ""))
        return _column_type(column.name, column.type, column.nullable, charset, decided, identifies, hidden_labels)


_INTEGERS = {
    # type name: type code in TABLE_MAP and in results, bytes in a row image, bytes in a result row, Arrow types
    "tinyint": (1, 1, 1, pa.int8(), pa.uint8()),
    "smallint": (2, 2, 2, pa.int16(), pa.uint16()),
    "mediumint": (9, 3, 4, pa.int32(), pa.uint32()),
    "int": (3, 4, 4, pa.int32(), pa.uint32()),
    "bigint": (8, 8, 8, pa.int64(), pa.uint64()),
}
_FLOATS = {"float": (4, 4, pa.float32()), "double": (5, 8, pa.float64())}
_FRACTIONAL_TEMPORALS = {
    # type name: family, type code in TABLE_MAP, type code in results, bytes in a row image without the fraction, Arrow
    # type
    "datetime": (Family.DATETIME, 18, 12, 5, pa.timestamp("us")),
    "timestamp": (Family.TIMESTAMP, 17, 7, 4, pa.timestamp("us", "UTC")),
    "time": (Family.TIME, 19, 11, 3, pa.duration("us")),
}
_BLOBS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_STRING = 254


def unsupported_key(column: Column, policy: str = "error") -> str | None:
    """Return the reason why ``column``, which has a supported type, cannot be a key column. None: it can be a key
    column.

    Keys are compared by their decoded values, so different stored values must have different decoded values.
    """
    kind = ColumnType.of(column, True, policy)
    if len(set(kind.labels)) < len(kind.labels):
        return f"two members of its type {column.type} are the same text, so different keys can have the same text"
    if "" in kind.labels:
        return f"its type {column.type} has '' among its members, which is also the server's text for an invalid value"
    return None


def column_types(table: Table) -> tuple[ColumnType, ...]:
    """Return the entries for all columns of ``table``, in order.

    The entry of a column that is not read describes only the length of its values in an image, not their meaning.

    :raises ConfigurationError: a column's type is not in the table of types.
    """
    policy = table.options.unrepresentable
    read = {column.name for column in table.as_read.columns}
    entries = (
        ColumnType.of(column, table.identifies(column.name), policy) if column.name in read else _left_out(column)
        for column in table.columns
    )
    return tuple(replace(entry, apart=True) if _is_told_apart(table, entry) else entry for entry in entries)


def arrow_schema(table: Table) -> pa.Schema:
    """Return the Arrow schema of ``table``'s rows; it is the same for rows from SELECT and from the log."""
    columns = column_types(table)
    return pa.schema([pa.field(column.name, column.arrow, nullable=column.published_nullable) for column in columns])


def comparable_texts(table: Table) -> dict[str, str]:
    """Implements `Source.comparable_texts`."""
    texts = {Family.TEXT: "plain", Family.ENUM: "label", Family.SET: "label"}
    return {column.name: texts[column.family] for column in column_types(table) if column.family in texts}


def decimal_groups(precision: int, scale: int) -> list[tuple[int, int]]:
    """Return the groups of a decimal's digits in an image: (bytes, digits) of each, from the first digit to the last.

    Nine digits take four bytes. The remaining digits are at the two ends and take fewer bytes.
    """
    whole = precision - scale
    digits = [whole % 9, *[9] * (whole // 9), *[9] * (scale // 9), scale % 9]
    return [(_DIGIT_BYTES[count], count) for count in digits if count]


def _is_told_apart(table: Table, column: ColumnType) -> bool:
    # In a table without a key, rows are only counted. So two rows with the same text may count as equal.
    return column.name in table.key and column.family is Family.TEXT and is_ambiguous(column.charset)


def _left_out(column: Column) -> ColumnType:
    if (reason := unmeasured(column)) is not None:
        raise ConfigurationError(reason, where=column.name, hint="leave the table out")
    charset = str(column.details.get("charset", ""))
    return _column_type(column.name, column.type, column.nullable, charset, "error", False)


@lru_cache(maxsize=4096)
def _column_type(
    name: str, text: str, nullable: bool, charset: str, policy: str, identifies: bool, hidden_labels: str = ""
) -> ColumnType:
    declared = parse(text)
    assert declared is not None  # `unsupported` has checked it
    kind = declared.name
    quoted = quote(name)
    if kind in _INTEGERS:
        code, width, row_width, signed, unsigned = _INTEGERS[kind]
        arrow = unsigned if declared.unsigned else signed
        return ColumnType(
            name, Family.NUMBER, arrow, nullable, quoted, code, row_width, code, width=width, unsigned=declared.unsigned
        )
    if kind in _FLOATS:
        code, width, arrow = _FLOATS[kind]
        return ColumnType(
            name, Family.NUMBER, arrow, nullable, quoted, code, width, code, bytes([width]), width=width,
            unsigned=declared.unsigned,
        )  # fmt: skip
    if kind == "decimal":
        precision, scale = declared.number(0, 10), declared.number(1, 0)
        width = sum(size for size, _ in decimal_groups(precision, scale))
        wide = precision > 38
        least = 0
        if wide:
            least = precision - scale if declared.zerofill else 1
        else:
            policy = "error"
        return ColumnType(
            name, Family.WIDE_DECIMAL if wide else Family.DECIMAL,
            pa.utf8() if policy == "string" else pa.decimal128(min(precision, 38), scale), nullable, quoted,
            246, LENGTH_ENCODED, 246, bytes([precision, scale]), width=width, length=least, precision=precision,
            scale=scale, unsigned=declared.unsigned, policy=policy,
        )  # fmt: skip
    if kind == "bit":
        bits = declared.number(0, 1)
        arrow = pa.bool_() if bits == 1 else pa.uint64()
        return ColumnType(
            name, Family.BITS, arrow, nullable, quoted, 16, LENGTH_ENCODED, 16, bytes([bits % 8, bits // 8]),
            width=(bits + 7) // 8, precision=bits,
        )  # fmt: skip
    if kind == "year":
        return ColumnType(name, Family.YEAR, pa.int16(), nullable, quoted, 13, 2, 13, width=1)
    if kind == "date":
        arrow = pa.utf8() if policy == "string" else pa.date32()
        return ColumnType(name, Family.DATE, arrow, nullable, quoted, 10, TEMPORAL, 10, width=3, policy=policy)
    if kind in _FRACTIONAL_TEMPORALS:
        family, code, row_code, width, arrow = _FRACTIONAL_TEMPORALS[kind]
        digits = declared.number(0, 0)
        if family is Family.TIME:
            policy = "error"
        elif policy == "string":
            arrow = pa.utf8()
        return ColumnType(
            name, family, arrow, nullable, quoted, row_code, TEMPORAL, code, bytes([digits]),
            width=width + (digits + 1) // 2, scale=digits, policy=policy,
        )  # fmt: skip
    if kind in ("enum", "set"):
        members = tuple(json.loads(hidden_labels)) if hidden_labels else labels(declared.arguments)
        return _members(name, kind, nullable, quoted, members)
    if kind == "json":
        return ColumnType(
            name, Family.JSON, pa.utf8(), nullable, quoted, 245, LENGTH_ENCODED, 245, b"\x04", prefix=4,
            charset="utf8mb4",
        )  # fmt: skip
    if kind in GEOMETRIES:
        return ColumnType(
            name, Family.BYTES, pa.binary(), nullable, quoted, 255, LENGTH_ENCODED, 255, b"\x04", prefix=4
        )
    if kind == "vector":
        return ColumnType(name, Family.VECTOR, VECTOR, nullable, quoted, 242, LENGTH_ENCODED, 242, b"\x04", prefix=4)
    return _string(
        name, declared, nullable, quoted, charset, "error" if identifies or not has_gaps(charset) else policy
    )


def _members(name: str, kind: str, nullable: bool, quoted: str, members: tuple[str, ...]) -> ColumnType:
    # Read the stored number, because a label is text in some character set and collation.
    select = f"CAST({quoted} AS UNSIGNED)"
    if kind == "enum":
        width = 1 if len(members) < 256 else 2
        arrow = pa.dictionary(pa.int16() if len(members) < 2**15 else pa.int32(), pa.utf8())
        return ColumnType(
            name, Family.ENUM, arrow, nullable, select, 8, 8, _STRING, bytes([247, width]), width=width, labels=members
        )
    width = (len(members) + 7) // 8
    width = width if width <= 4 else 8
    return ColumnType(
        name, Family.SET, pa.utf8(), nullable, select, 8, 8, _STRING, bytes([248, width]), width=width, labels=members
    )


def _string(name: str, declared: Declared, nullable: bool, quoted: str, charset: str, policy: str) -> ColumnType:
    kind = declared.name
    is_text = kind in TEXTS
    family = Family.TEXT if is_text else Family.BYTES
    arrow = pa.utf8() if is_text else pa.binary()
    if kind.endswith(("text", "blob")):
        prefix = _BLOBS[kind[:-4]]
        return ColumnType(
            name, family, arrow, nullable, quoted, 252, LENGTH_ENCODED, 252, bytes([prefix]), prefix=prefix,
            charset=charset, policy=policy,
        )  # fmt: skip
    length = declared.number(0, 1) * ((bytes_per_character(charset) or 1) if is_text else 1)
    prefix = 1 if length < 256 else 2
    if kind in ("varchar", "varbinary"):
        return ColumnType(
            name, family, arrow, nullable, quoted, 253, LENGTH_ENCODED, 15, length.to_bytes(2, "little"),
            prefix=prefix, charset=charset, policy=policy,
        )  # fmt: skip
    # Two bits of the length are stored in the type byte, and they are inverted, because they were added to the format
    # later.
    metadata = bytes([_STRING ^ ((length & 0x300) >> 4), length & 0xFF])
    return ColumnType(
        name, family, arrow, nullable, quoted, _STRING, LENGTH_ENCODED, _STRING, metadata,
        prefix=prefix, length=0 if is_text else length, charset=charset, policy=policy,
    )  # fmt: skip
