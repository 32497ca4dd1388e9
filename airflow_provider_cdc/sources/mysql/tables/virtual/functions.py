"""The functions and operators that mean the same in every session, grouped by their arguments and results.

A function that is in none of these tables is rejected. Some functions are omitted on purpose, although their names look
harmless: DAYNAME and MONTHNAME (``lc_time_names``), AES_ENCRYPT (``block_encryption_mode``), JSON_SEARCH (an escape
character), STR_TO_DATE (``sql_mode``), FROM_UNIXTIME and CONVERT_TZ (time zones), CHARSET, COLLATION and COERCIBILITY
(they return properties of the session), JSON_STORAGE_SIZE (it depends on how the value is stored).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.sources.mysql.tables.labels import parse

# The values of the parts of an expression. Each value has the properties that decide whether it is the same in every
# session.


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


def _each(names: str, value: Value) -> dict[str, Value]:
    return dict.fromkeys(names.split(), value)


_DIGITS = session_text(caseless=True)
_ASCII = session_text()
_CONVERTED_WHEN_STORED = replace(_DIGITS, mislabelled=True)

LOGICAL = frozenset("and or xor not".split())
"""Operators on numbers and on values that can be converted to numbers."""

OF_NUMBERS = {
    **_each("sign interval", INT),
    **_each("& | ^ ~ << >>", UNSIGNED),
    **_each("pow power sqrt exp ln log log2 log10 sin cos tan cot asin acos atan atan2 degrees radians pi", DOUBLE),
    **_each("inet_ntoa format", _DIGITS),
    **_each("bin oct", _CONVERTED_WHEN_STORED),
    **_each("char", BYTES),
    **_each("bit_count", INT),
}
"""Functions of numbers, and of texts that are converted to numbers."""

ARITHMETIC = frozenset("+ - * % mod div".split())
SAME_NUMBER = frozenset("abs round truncate floor ceil ceiling negate".split())

OF_BYTES = {
    **_each("length octet_length bit_length ascii ord", INT),
    **_each("crc32 uncompressed_length", UNSIGNED),
    **_each("sha sha1 sha2 md5 hex bin_to_uuid", _DIGITS),
    **_each("inet6_ntoa to_base64", _ASCII),
    **_each("compress uncompress", BYTES),
}
"""Functions of bytes, or of the bytes of a text. They treat a number as the text of its digits."""

OF_CHARACTERS = {
    **_each("char_length character_length is_ipv4 is_ipv6 is_uuid", INT),
    **_each("inet_aton", UNSIGNED),
    **_each("unhex from_base64 uuid_to_bin inet6_aton", BYTES),
    **_each("conv", _CONVERTED_WHEN_STORED),
}
"""Functions of the characters of a text, independent of its character set."""

EDITING = frozenset("concat concat_ws replace reverse repeat lpad rpad ltrim substring_index insert quote".split())
"""Functions that return a text made from the characters of their arguments."""
PARTS = frozenset("left right substr substring mid".split())
"""Functions that return a part of their first argument; the other arguments are numbers."""
LETTERS = frozenset("lower upper lcase ucase soundex".split())
"""Functions that map letters; the mapping depends on the collation."""

COMPARISONS = frozenset("= <=> <> != < > <= >= in between strcmp".split())
SEARCHES = frozenset(
    "locate instr like find_in_set regexp regexp_like regexp_instr regexp_substr regexp_replace".split()
)
"""Functions that search for a text; the collation decides which texts are equal."""
CHOICES = frozenset("if ifnull coalesce case".split())

OF_JSON = {
    **_each("json_length json_depth json_valid json_contains json_contains_path json_overlaps", INT),
    **_each("json_type json_unquote json_quote json_pretty", JSON_TEXT),
    **_each(
        "json_extract json_keys json_array json_object json_set json_insert json_replace json_remove "
        "json_merge_patch json_merge_preserve json_array_append json_array_insert",
        JSON,
    ),
    "member of": INT,
}

OF_DATES = _each("year month dayofmonth day dayofyear quarter to_days to_seconds weekday dayofweek weekofyear", INT)
"""Functions of a date or a datetime."""
OF_TIMES = _each("hour minute second microsecond time_to_sec", INT)
"""Functions of a time, a datetime or a date."""

DATE_FORMATS = frozenset("YmdHisfjUuVvXxwycekIlprThS")
"""The letters that may follow ``%`` in DATE_FORMAT, except the letters for the names of days and months, which depend
on ``lc_time_names``."""
UNITS = frozenset(
    "microsecond second minute hour day week month quarter year second_microsecond minute_microsecond minute_second "
    "hour_microsecond hour_second hour_minute day_microsecond day_second day_minute day_hour year_month".split()
)
"""Units of EXTRACT, TIMESTAMPDIFF and intervals. EXTRACT of a week depends on ``default_week_format``."""

NUMBERS_AND_DATES = frozenset(
    """
    & | ^ ~ << >> sign bit_count nullif week yearweek last_day extract timestampdiff datediff field greatest least
    length octet_length bit_length char_length character_length ascii ord crc32 locate instr like find_in_set interval
    pow power sqrt exp ln log log2 log10 sin cos tan cot asin acos atan atan2 degrees radians pi
""".split()
).union(
    OF_DATES, OF_TIMES, ARITHMETIC, SAME_NUMBER, LOGICAL, CHOICES, COMPARISONS,
    ["case of", "is null", "is not null", "is true", "is not true", "is false", "is not false"],
)  # fmt: skip
"""Functions that return numbers, dates, or one of their arguments. The results are short, or at most as long as a
stored value."""


# Checks of function arguments. With arguments that pass these checks, every session computes the same result.


def as_number(value: Value) -> Value:
    """Return ``value`` as a number.

    :raises Dependent: sessions may convert the value to different numbers.
    """
    if value.kind == "geometry" or value.wraps:
        raise Dependent(DIFFERENCE if value.wraps else "the expression uses a geometry as a number")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    if value.is_moment and value.as_text:
        raise Dependent(CONVERTED)
    if value.kind == "bytes":
        return Value("int", unsigned=True) if value.unsigned else DOUBLE
    return value


def of_numbers(result: Value, values: Sequence[Value]) -> Value:
    """Check the arguments ``values`` of a function that uses them as numbers, and return ``result``.

    :raises Dependent: sessions may convert a value to different numbers.
    """
    for value in values:
        if as_number(value).is_moment and value.digits:
            raise Dependent(CONVERTED)
    return result


def of_bytes(result: Value, values: Sequence[Value]) -> Value:
    """Check the arguments ``values`` of a function that uses their bytes, and return ``result``.

    :raises Dependent: the bytes may differ between sessions.
    """
    for value in values:
        check_text(value)
        if value.kind == "text" and value.collation == SESSION and not value.ascii:
            raise Dependent(CONNECTION_CHARSET)
    return result


def letters(values: Sequence[Value]) -> Value:
    """Return the text that LOWER, UPPER or SOUNDEX makes from ``values``.

    :raises Dependent: the mapping of letters depends on the session.
    """
    text = joined(values)
    if text.kind != "text" or text.caseless or text.collation in (COLUMN, BINARY):
        return text
    # Both possible values of default_collation_for_utf8mb4 map ASCII letters in the same way.
    if text.collation == LITERAL and text.ascii:
        return text
    raise Dependent("the result of LOWER, UPPER and SOUNDEX depends on the session's collation")


def of_json(result: Value, values: Sequence[Value]) -> Value:
    """Check the arguments ``values`` of a JSON function, and return ``result``. The arguments are documents, paths, and
    values that become parts of documents.

    :raises Dependent: sessions may make different documents from the values.
    """
    for value in values:
        check_text(value)
        if value.is_moment and value.as_text:
            raise Dependent(CONVERTED)
    return result


def of_moments(name: str, values: Sequence[Value]) -> Value:
    """Return the number that the function ``name`` extracts from dates and times.

    A TIME allows only the hour and smaller units, because its date is the current date.

    :raises Dependent: sessions may convert ``values`` to different dates.
    """
    for value in values:
        kinds = DATES if name in OF_DATES else MOMENTS
        if value.kind == "timestamp":
            raise Dependent(ZONE)
        if value.kind == "null" or is_literal_of("datetime", value):
            continue
        if value.kind not in kinds or value.as_text or (value.odd and not value.direct):
            raise Dependent(CONVERTED)
    return INT
