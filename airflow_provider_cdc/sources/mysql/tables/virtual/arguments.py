"""Checks of function arguments. With arguments that pass these checks, every session computes the same result."""

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
        kinds = DATES if name in functions.OF_DATES else MOMENTS
        if value.kind == "timestamp":
            raise Dependent(ZONE)
        if value.kind == "null" or is_literal_of("datetime", value):
            continue
        if value.kind not in kinds or value.as_text or (value.odd and not value.direct):
            raise Dependent(CONVERTED)
    return INT
