"""Check whether every session converts the value of an expression to the type of its column in the same way."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.core.tables.table import Column
from airflow_provider_cdc.sources.mysql.tables.declarations import parse as parse_type
from airflow_provider_cdc.sources.mysql.tables.virtual.arguments import of_bytes
from airflow_provider_cdc.sources.mysql.tables.virtual.values import (
    BYTES,
    CONVERTED,
    DATES,
    MISLABELLED,
    NUMBERS,
    ZONE,
    Dependent,
    Value,
    check_text,
    of_column,
)


def check_stored(value: Value, column: Column) -> None:
    """Make sure that every session converts an expression's ``value`` to the virtual ``column`` in the same way.

    :raises Dependent: sessions may convert the value differently.
    """
    declared = parse_type(column.type)
    kind = declared.name if declared is not None else ""
    if kind == "timestamp":
        raise Dependent("the column is a TIMESTAMP, which is converted with the session's time_zone")
    if value.kind == "timestamp":
        raise Dependent(ZONE)
    target = of_column(column, odd=False)
    if value.kind == "null":
        return
    if value.mislabelled and target.kind not in ("text", *NUMBERS):
        raise Dependent(MISLABELLED)
    if target.kind == "geometry" or value.kind == "geometry":
        if target.kind != value.kind:
            raise Dependent("the expression uses a geometry as another type")
    elif target.is_moment:
        fits = value.kind == target.kind or (value.kind in DATES and target.kind in DATES)
        if not fits or value.odd or value.digits > target.digits or (value.digits and target.kind == "date"):
            raise Dependent(CONVERTED)
    elif target.is_number:
        # The year of a TIME is the current year.
        if value.is_moment and (value.digits or value.as_text or (kind == "year" and value.kind == "time")):
            raise Dependent(CONVERTED)
    elif target.padded:
        if not value.padded:
            check_text(replace(value, wraps=False))
    elif target.kind == "json":
        if value.kind not in {"json", "text", *NUMBERS} or value.wraps:
            raise Dependent("the value that is converted to a JSON document may depend on the session")
        check_text(value)
    else:
        check_text(replace(value, wraps=False))
        if target.kind == "bytes":
            of_bytes(BYTES, [replace(value, wraps=False)])
