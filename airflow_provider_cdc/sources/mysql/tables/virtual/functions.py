"""The functions and operators that mean the same in every session, grouped by their arguments and results.

A function that is in none of these tables is rejected. Some functions are omitted on purpose, although their names look
harmless: DAYNAME and MONTHNAME (``lc_time_names``), AES_ENCRYPT (``block_encryption_mode``), JSON_SEARCH (an escape
character), STR_TO_DATE (``sql_mode``), FROM_UNIXTIME and CONVERT_TZ (time zones), CHARSET, COLLATION and COERCIBILITY
(they return properties of the session), JSON_STORAGE_SIZE (it depends on how the value is stored).
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.sources.mysql.tables.virtual.values import (
    BYTES,
    DOUBLE,
    INT,
    JSON,
    JSON_TEXT,
    UNSIGNED,
    Value,
    session_text,
)


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
