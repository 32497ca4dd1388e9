"""The column types that can be copied, and the types whose values the reader can only skip in row images."""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.sources.mysql.tables.charsets import bytes_per_character
from airflow_provider_cdc.sources.mysql.tables.declarations import are_labels, parse
from airflow_provider_cdc.sources.mysql.tables.hidden_labels import LABELS, may_hide_labels

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
    return "" if column in table.key else "leave the column out with the option `columns`, "


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
