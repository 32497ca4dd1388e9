"""The values of the parts of an expression. Each value has the properties that decide whether it is the same in every
session."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.sources.mysql.tables.declarations import parse

NUMBERS = frozenset(["int", "decimal", "double"])
DATES = frozenset(["date", "datetime"])
MOMENTS = DATES | {"time"}

COLUMN, BINARY, LITERAL, SESSION, CAST = "column", "binary", "literal", "session", "cast"

_MONTH_OR_DAY = r"(\d{4})-(\d\d)-(\d\d)"
_LITERALS = {
    "date": re.compile(_MONTH_OR_DAY),
    "datetime": re.compile(_MONTH_OR_DAY + r"(?: ([01]\d|2[0-3]):[0-5]\d:[0-5]\d)?"),
    "time": re.compile(r"-?\d\d:[0-5]\d:[0-5]\d"),
}

_INTEGERS = frozenset(["tinyint", "smallint", "mediumint", "int", "bigint"])
_TEXTS = frozenset(["varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set"])
_BYTES = frozenset(["binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"])
_GEOMETRIES = frozenset(
    """
    geometry point linestring polygon multipoint multilinestring multipolygon geomcollection geometrycollection
""".split()
)


class Dependent(Exception):
    """The value of the expression may differ between sessions; the argument is the reason."""


@dataclass(frozen=True)
class Value:
    """The type of a value, and the properties in which sessions might differ.

    ``kind``
        ``int``, ``decimal``, ``double``, ``text``, ``bytes``, ``json``, ``date``, ``datetime``, ``time``,
        ``timestamp``, ``geometry``, or ``null``.
    ``unsigned``
        the value is an unsigned number, so that a subtraction with it depends on NO_UNSIGNED_SUBTRACTION.
    ``scaled``
        the value is a float that is printed with a fixed number of digits.
    ``collation``
        the collation of a text. ``COLUMN``: from a column or COLLATE. ``BINARY``: utf8mb4_bin, for texts from JSON; a
        column's collation overrides it. ``LITERAL``: from a literal; ``COLUMN`` and ``BINARY`` override it, and for
        utf8mb4 it depends on ``default_collation_for_utf8mb4``. ``SESSION``: from the connection, for texts that are
        made from numbers and bytes. ``CAST``: the default of the character set in a cast; it is as strong as
        ``COLUMN``.
    ``ascii``, ``caseless``
        ``ascii``: the text has only ASCII characters. ``caseless``: all letters of the text have the same case mapping
        in every alphabet.
    ``padded``
        the value is a CHAR column, so PAD_CHAR_TO_FULL_LENGTH determines the spaces at its end. ``pad_space``: the
        collation ignores these spaces.
    ``odd``
        the value is a date or datetime that may not exist in the calendar (2024-02-31, 2024-00-15, 0000-00-00). The
        result of any conversion depends on ALLOW_INVALID_DATES, NO_ZERO_DATE and NO_ZERO_IN_DATE.
    ``digits``
        the number of digits of the fractional second of a datetime or time. TIME_TRUNCATE_FRACTIONAL decides whether
        these digits are rounded.
    ``direct``
        the value is the stored value of a column.
    ``literal``
        the text of a literal.
    ``as_text``
        the value is a date or time that was converted to a text of the same form.
    ``mislabelled``
        the value is a text from CONV, BIN or OCT. The bytes of such a text are ASCII, but the server labels it with the
        connection's character set. Such a text is correct in every session only if a column stores it as text or as a
        number.
    ``wraps``
        the value is a difference of unsigned numbers. If the difference is negative, it is an error in some sessions
        and a negative number in other sessions.
    """

    kind: str
    unsigned: bool = False
    scaled: bool = False
    collation: str = COLUMN
    ascii: bool = False
    caseless: bool = False
    padded: bool = False
    pad_space: bool = False
    odd: bool = False
    digits: int = 0
    direct: bool = False
    literal: str | None = None
    as_text: bool = False
    mislabelled: bool = False
    wraps: bool = False

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    @property
    def is_moment(self) -> bool:
        return self.kind in MOMENTS


NULL = Value("null")
INT = Value("int")
UNSIGNED = Value("int", unsigned=True)
DOUBLE = Value("double")
BYTES = Value("bytes")
JSON = Value("json")
JSON_TEXT = Value("text", collation=BINARY)


def session_text(*, caseless: bool = False) -> Value:
    """Return a text of ASCII characters in the connection's character set."""
    return Value("text", collation=SESSION, ascii=True, caseless=caseless)


def of_column(column: Column, *, odd: bool) -> Value:
    """Return the value of a stored column.

    :param odd: whether the copy may have rows in which the column contains a date that does not exist.
    :raises Dependent: the column's type is not supported in expressions.
    """
    declared = parse(column.type)
    name = declared.name if declared is not None else ""
    assert declared is not None
    digits = declared.number(0, 0) if name in ("datetime", "time") else 0
    if name in _INTEGERS:
        return Value("int", unsigned=declared.unsigned, direct=True)
    if name == "year":
        return Value("int", unsigned=True, direct=True)
    if name == "bit":
        # In a numeric context, a value of this type is a number. In a text context, a value of this type is a byte
        # string.
        return Value("bytes", unsigned=True, direct=True)
    if name == "decimal":
        return Value("decimal", unsigned=declared.unsigned, direct=True)
    if name in ("float", "double"):
        return Value("double", unsigned=declared.unsigned, scaled=bool(declared.arguments), direct=True)
    if name in ("date", "datetime"):
        return Value(name, odd=odd, digits=digits, direct=True)
    if name in ("time", "timestamp"):
        return Value(name, digits=digits, direct=True)
    if name == "char":
        pad_space = "_0900_" not in str(column.details.get("collation", "_0900_"))
        return Value("text", padded=True, pad_space=pad_space, direct=True)
    if name in _TEXTS:
        return Value("text", direct=True)
    if name in _BYTES:
        return Value("bytes", direct=True)
    if name == "json":
        return Value("json", direct=True)
    if name in _GEOMETRIES:
        return Value("geometry", direct=True)
    raise Dependent(f"{column.name} has the type {column.type}, which is not supported in expressions")


def is_literal_of(kind: str, value: Value) -> bool:
    """Whether ``value`` is a literal that means the same date or time in every session."""
    if value.kind != "text" or value.literal is None or kind not in _LITERALS:
        return False
    match = _LITERALS[kind].fullmatch(value.literal)
    if match is None or kind == "time":
        return match is not None
    try:
        date(*map(int, match.groups()[:3]))
    except ValueError:
        return False
    return True


def merged(values: Sequence[Value]) -> Value:
    """Return the value of CASE, IF, IFNULL or COALESCE, which choose one of ``values``.

    :raises Dependent: the conversion to a common type depends on the session.
    """
    known = [value for value in values if value.kind != "null"]
    if not known:
        return NULL
    if any(value.padded for value in known):
        return joined(known)
    kinds = {value.kind for value in known}
    first = known[0]
    if any(value.wraps for value in known):
        raise Dependent(DIFFERENCE)
    if "timestamp" in kinds or "geometry" in kinds:
        if kinds == {"geometry"}:
            return Value("geometry")
        raise Dependent(ZONE)
    if kinds <= NUMBERS:
        return promoted(known)
    if kinds <= DATES or kinds == {"time"}:
        if len(kinds) > 1 and any(v.odd for v in known):
            raise Dependent(CONVERTED)
        kind = "datetime" if "datetime" in kinds else first.kind
        odd, as_text = any(value.odd for value in known), any(value.as_text for value in known)
        return Value(kind, odd=odd, digits=max(value.digits for value in known), as_text=as_text)
    if "time" in kinds and kinds & DATES:
        # If a TIME is converted to a date, the result has the current date.
        raise Dependent(CONVERTED)
    moments = [value for value in known if value.is_moment]
    if len({value.kind for value in moments}) == 1:
        kind = moments[0].kind
        if all(value.is_moment or is_literal_of(kind, value) for value in known):
            odd, digits = any(value.odd for value in moments), max(value.digits for value in moments)
            return Value(kind, odd=odd, digits=digits, as_text=True)
    if kinds == {"json"}:
        return JSON
    return joined(known)


def promoted(values: Sequence[Value]) -> Value:
    """Return the number that results from arithmetic with ``values``."""
    kinds = {value.kind for value in values}
    if kinds <= {"int"}:
        return Value("int", unsigned=any(value.unsigned for value in values))
    if kinds <= {"int", "decimal"} | MOMENTS:
        return Value("decimal", unsigned=any(value.unsigned for value in values))
    return Value("double", scaled=any(value.scaled for value in values))


def joined(values: Sequence[Value]) -> Value:
    """Return the text, or the bytes, that CONCAT of ``values`` returns.

    :raises Dependent: a value is a CHAR column, or the text of a value depends on the session.
    """
    for value in values:
        check_text(value)
    if any(value.kind == "bytes" for value in values):
        return BYTES
    texts = [value for value in values if value.kind in ("text", "json")]
    if not texts:
        return session_text()
    collations = {value.collation if value.kind == "text" else BINARY for value in texts}
    ascii_only = all(value.ascii or value.is_number or value.is_moment for value in values)
    caseless = all(value.caseless or value.is_number for value in values)
    # A column's collation overrides all others. The connection's collation overrides the collations of JSON values and
    # of literals.
    collation = next(one for one in (CAST, COLUMN, SESSION, BINARY, LITERAL) if one in collations)
    return Value("text", collation=collation, ascii=ascii_only, caseless=caseless)


def check_text(value: Value) -> None:
    """Make sure that every session sees the same text of ``value``.

    :raises Dependent: the text may differ between sessions.
    """
    if value.padded:
        raise Dependent("the expression uses a CHAR, whose length depends on sql_mode (PAD_CHAR_TO_FULL_LENGTH)")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    if value.kind == "geometry":
        raise Dependent("the expression uses a geometry as text")
    if value.wraps:
        raise Dependent(DIFFERENCE)


CONNECTION_CHARSET = "the bytes of a computed text depend on the connection's character set"
ZONE = "the expression uses a TIMESTAMP, whose value depends on time_zone"
DIFFERENCE = "the difference of unsigned numbers depends on sql_mode (NO_UNSIGNED_SUBTRACTION)"
MISLABELLED = "the digits of CONV, BIN and OCT are misread if the connection's character set is utf16 or similar"
COMPARED = "the comparison of computed texts depends on the session's collation"
CONVERTED = "the conversion of dates and times depends on sql_mode and time_zone"
