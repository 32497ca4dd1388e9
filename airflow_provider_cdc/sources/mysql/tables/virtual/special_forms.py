"""Functions and operators whose session independence depends on more than the types of their arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from airflow_provider_cdc.sources.mysql.tables.virtual import functions
from airflow_provider_cdc.sources.mysql.tables.virtual.functions import (
    BYTES,
    CAST,
    COLUMN,
    CONNECTION_CHARSET,
    CONVERTED,
    DATES,
    DOUBLE,
    INT,
    JSON,
    MOMENTS,
    SESSION,
    ZONE,
    Dependent,
    Value,
    as_number,
    check_text,
    is_literal_of,
    joined,
    of_bytes,
    of_json,
    of_moments,
    of_numbers,
    promoted,
    session_text,
)
from airflow_provider_cdc.sources.mysql.tables.virtual.grammar import Node

_DATE_OF_FORMAT = frozenset(["%Y-%m-%d", "%Y-%m-01", "%Y-01-01"])
_SIZES = re.compile(r"\((\d+)")


def _quotient(node: Node, values: Sequence[Value]) -> Value:
    numbers = [as_number(value) for value in values]
    kinds = {promoted([value]).kind for value in numbers if value.kind != "null"}
    if "double" not in kinds or any(value.scaled for value in numbers):
        raise Dependent("the digits of a quotient depend on div_precision_increment")
    return DOUBLE


def _dates(values: Sequence[Value]) -> None:
    of_moments("year", values)


def _extract(node: Node, values: Sequence[Value]) -> Value:
    unit = node.note
    if unit not in functions.UNITS or unit == "week":
        raise Dependent("the number of a week depends on default_week_format")
    return of_moments("year" if unit in ("year", "quarter", "month", "year_month", "day") else "hour", values)


def _timestampdiff(node: Node, values: Sequence[Value]) -> Value:
    if node.note not in functions.UNITS:
        raise Dependent(CONVERTED)
    _dates(values)
    return INT


def _week(node: Node, values: Sequence[Value]) -> Value:
    # Without a mode argument, the server uses default_week_format. In the expression, the server prints the mode that
    # it used when the table was created.
    if len(values) != 2 or node.arguments[1].kind != "number":
        raise Dependent("the number of a week depends on default_week_format")
    _dates(values[:1])
    return INT


def _interval(node: Node, values: Sequence[Value]) -> Value:
    when, amount = values
    if node.note not in functions.UNITS or amount.kind not in ("int", "decimal") or amount.wraps:
        raise Dependent(CONVERTED)
    _dates([when])
    if when.kind not in DATES:
        raise Dependent(CONVERTED)
    by_days = node.note in ("day", "week", "month", "quarter", "year", "year_month")
    digits = 6 if "microsecond" in node.note or amount.kind == "decimal" else when.digits
    return Value("date") if when.kind == "date" and by_days else Value("datetime", digits=digits)


def _last_day(node: Node, values: Sequence[Value]) -> Value:
    _dates(values)
    return Value("date")


def _makedate(node: Node, values: Sequence[Value]) -> Value:
    of_numbers(INT, values)
    return Value("date")


def _timediff(node: Node, values: Sequence[Value]) -> Value:
    if len({value.kind for value in values}) > 1:
        raise Dependent(CONVERTED)
    of_moments("hour", values)
    return Value("time", digits=max(value.digits for value in values))


def _sec_to_time(node: Node, values: Sequence[Value]) -> Value:
    if [value.kind for value in values] != ["int"] or values[0].wraps:
        raise Dependent(CONVERTED)
    return Value("time")


def _format(node: Node, values: Sequence[Value]) -> Value:
    text = node.arguments[1]
    plain = re.sub("%[%" + "".join(functions.DATE_FORMATS) + "]", "", text.name)
    if text.kind != "text" or "%" in plain or not plain.isascii():
        raise Dependent("names of days and months depend on lc_time_names")
    (of_moments)("year" if node.name == "date_format" else "hour", values[:1])
    if text.name in _DATE_OF_FORMAT and not values[0].odd and node.name == "date_format":
        return Value("date", as_text=True)
    return session_text()


def _trim(node: Node, values: Sequence[Value]) -> Value:
    first = values[0]
    spaces = len(values) == 1 or values[1].literal == " "
    if first.padded and spaces and node.note != "leading" and node.name != "ltrim":
        # Trimming removes the padding.
        first = replace(first, padded=False)
    return replace(joined([first, *values[1:]]), literal=None)


def _collate(node: Node, values: Sequence[Value]) -> Value:
    text = joined(values)
    if text.kind != "text" or text.collation == SESSION:
        raise Dependent(CONNECTION_CHARSET)
    return replace(text, collation=COLUMN)


def _convert(node: Node, values: Sequence[Value]) -> Value:
    return _as_text(values[0], node.note)


def _as_text(value: Value, charset: str) -> Value:
    check_text(value)
    if charset == "binary":
        return of_bytes(BYTES, [value])
    if value.kind == "bytes":
        raise Dependent("the result of casting bytes that are not text depends on sql_mode")
    # The collation is the default of the character set. For utf8mb4, a session can set this default
    # (default_collation_for_utf8mb4).
    collation = CAST if charset in ("", "utf8mb4") else COLUMN
    ascii_only = value.ascii or value.is_number or value.is_moment
    return Value("text", collation=collation, ascii=ascii_only, caseless=value.is_number or value.caseless)


def _cast(node: Node, values: Sequence[Value]) -> Value:
    value = values[0]
    name, _, charset = node.note.partition(" charset ")
    kind = re.split(r"[ (]", name)[0]
    size = _SIZES.search(name)
    digits = int(size[1]) if size else 0
    if name.endswith(" array"):
        raise Dependent("it creates an array")
    if kind in ("char", "nchar", "binary"):
        return _as_text(value, "binary" if kind == "binary" else "utf8mb3" if kind == "nchar" else charset)
    if kind in ("signed", "unsigned", "decimal", "double", "float", "real", "year"):
        of_numbers(INT, values)
        if kind == "year" and value.kind not in ("int", "null"):
            raise Dependent(CONVERTED)
        number = {"signed": "int", "unsigned": "int", "year": "int", "decimal": "decimal"}.get(kind, "double")
        return Value(number, unsigned=kind in ("unsigned", "year"))
    if kind == "json":
        return of_json(JSON, values)
    if kind not in MOMENTS:
        raise Dependent(f"the expression casts to {name.upper()}, and the result may depend on the session")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    if kind in DATES and is_literal_of("datetime", value):
        return Value(kind)
    accepted = {"date": DATES, "datetime": DATES, "time": {"datetime", "time"}}[kind]
    if value.kind not in accepted or value.odd or value.as_text or (kind != "date" and value.digits > digits):
        raise Dependent(CONVERTED)
    return Value(kind, digits=digits)


def _json_value(node: Node, values: Sequence[Value]) -> Value:
    of_json(JSON, values)
    kind = re.split(r"[ (]", node.note)[0]
    if kind in MOMENTS or any(value.is_moment for value in values):
        raise Dependent(CONVERTED)
    found = _cast(node, [JSON])
    return replace(found, collation=CAST) if found.kind == "text" else found


SPECIAL_FORMS: Mapping[str, Callable[[Node, Sequence[Value]], Value]] = {
    "/": _quotient,
    "cast": _cast,
    "convert": _convert,
    "collate": _collate,
    "extract": _extract,
    "timestampdiff": _timestampdiff,
    "datediff": _timestampdiff,
    "week": _week,
    "yearweek": _week,
    "interval +": _interval,
    "interval -": _interval,
    "last_day": _last_day,
    "makedate": _makedate,
    "timediff": _timediff,
    "sec_to_time": _sec_to_time,
    "date_format": _format,
    "time_format": _format,
    "trim": _trim,
    "rtrim": _trim,
    "json_value": _json_value,
    "st_x": lambda node, values: _geometric(DOUBLE, values),
    "st_y": lambda node, values: _geometric(DOUBLE, values),
    "st_latitude": lambda node, values: _geometric(DOUBLE, values),
    "st_longitude": lambda node, values: _geometric(DOUBLE, values),
    "st_srid": lambda node, values: _geometric(INT, values),
    "st_astext": lambda node, values: _geometric(session_text(), values),
    "st_geohash": lambda node, values: _geometric(session_text(), values[:1]),
    "space": lambda node, values: of_numbers(session_text(caseless=True), values),
}


def _geometric(result: Value, values: Sequence[Value]) -> Value:
    if [value.kind for value in values] != ["geometry"]:
        raise Dependent("it creates a geometry")
    return result
