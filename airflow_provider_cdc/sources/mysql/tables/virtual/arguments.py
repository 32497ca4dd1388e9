"""What functions require of their arguments, so that every session makes the same of them."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.sources.mysql.tables.virtual import functions
from airflow_provider_cdc.sources.mysql.tables.virtual.values import (
    BINARY,
    COLUMN,
    CONNECTION_CHARSET,
    CONVERTED,
    DATES,
    DIFFERENCE,
    DOUBLE,
    INT,
    LITERAL,
    MOMENTS,
    SESSION,
    ZONE,
    Dependent,
    Value,
    check_text,
    is_literal_of,
    joined,
)


def as_number(value: Value) -> Value:
    """``value`` where a number is wanted.

    :raises Dependent: sessions may take it for different numbers.
    """
    if value.kind == "geometry" or value.wraps:
        raise Dependent(DIFFERENCE if value.wraps else "it takes a geometry for a number")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    if value.is_moment and value.as_text:
        raise Dependent(CONVERTED)
    if value.kind == "bytes":
        return Value("int", unsigned=True) if value.unsigned else DOUBLE
    return value


def of_numbers(result: Value, values: Sequence[Value]) -> Value:
    """``result``, of a function that takes ``values`` for numbers.

    :raises Dependent: sessions may take one for different numbers.
    """
    for value in values:
        if as_number(value).is_moment and value.digits:
            raise Dependent(CONVERTED)
    return result


def of_bytes(result: Value, values: Sequence[Value]) -> Value:
    """``result``, of a function that looks at the bytes of ``values``.

    :raises Dependent: they may be others in another session.
    """
    for value in values:
        check_text(value)
        if value.kind == "text" and value.collation == SESSION and not value.ascii:
            raise Dependent(CONNECTION_CHARSET)
    return result


def letters(values: Sequence[Value]) -> Value:
    """The text that LOWER, UPPER or SOUNDEX makes of ``values``.

    :raises Dependent: which letters belong together depends on the session.
    """
    text = joined(values)
    if text.kind != "text" or text.caseless or text.collation in (COLUMN, BINARY):
        return text
    # Both collations that default_collation_for_utf8mb4 may name have the same letters in ASCII.
    if text.collation == LITERAL and text.ascii:
        return text
    raise Dependent("which letters are alike depends on the session's collation")


def of_json(result: Value, values: Sequence[Value]) -> Value:
    """``result``, of a function of documents, paths, and values that become parts of documents.

    :raises Dependent: sessions may make different documents of them.
    """
    for value in values:
        check_text(value)
        if value.is_moment and value.as_text:
            raise Dependent(CONVERTED)
    return result


def of_moments(name: str, values: Sequence[Value]) -> Value:
    """A number, which the function ``name`` takes out of dates and times.

    Of a TIME only the hour and smaller units: its year is that of today.

    :raises Dependent: sessions may take ``values`` for different dates.
    """
    for value in values:
        kinds = DATES if name in functions.OF_DATES else MOMENTS
        if value.kind == "timestamp":
            raise Dependent(ZONE)
        if value.kind == "null" or is_literal_of("datetime", value):
            continue
        if value.kind not in kinds or value.as_text or (value.odd and not value.direct):
            raise Dependent(CONVERTED)
    return INT
