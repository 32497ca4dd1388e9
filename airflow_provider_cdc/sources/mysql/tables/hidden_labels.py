"""Read the labels (members) of enum and set columns that the server's catalog cannot show.

The catalog stores types in utf8mb3. The catalog shows ``?`` for a character beyond U+FFFF, and for a code without a
character. The table itself stores the real labels. A recursive query can show these labels without reading any row,
because the columns of such a query have the types of its first part. Here, this is the type of the enum or set column.
A number that is assigned to an enum or set becomes the member, or the set of members, with that number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pymysql

from airflow_provider_cdc.core.tables.table import Column, TableName
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, quote
from airflow_provider_cdc.sources.mysql.tables.charsets import bytes_per_character, has_gaps
from airflow_provider_cdc.sources.mysql.tables.declarations import are_labels, labels, parse

LABELS = "labels"
"""The key in ``Column.details`` for a JSON array of the labels, in order."""

_DENIED = frozenset({1044, 1142, 1143})
_FALLBACKS = frozenset({"?", "\ufffd"})


def may_hide_labels(column: Column) -> bool:
    """Whether the server may show a replacement character in the type of ``column``."""
    declared = parse(column.type)
    if declared is None or declared.name not in ("enum", "set") or not are_labels(declared.arguments):
        return False
    charset = str(column.details.get("charset", ""))
    return bool(_FALLBACKS & {*declared.arguments}) and (bytes_per_character(charset) == 4 or has_gaps(charset))


def with_labels(connection: Connection, name: TableName, columns: Iterable[Column]) -> list[Column]:
    """Return ``columns`` of the table ``name``, with the labels in the details of columns whose type may hide labels.

    The details of a column stay unchanged if this user may not read the column, or if a label contains a code without a
    character.
    """
    return [_with_labels(connection, name, column) if may_hide_labels(column) else column for column in columns]


def _with_labels(connection: Connection, name: TableName, column: Column) -> Column:
    declared = parse(column.type)
    assert declared is not None  # `may_hide_labels` has checked it
    count = len(labels(declared.arguments))
    numbers = [1 << place if declared.name == "set" else place + 1 for place in range(count)]
    charset = column.details.get("charset")
    try:
        rows = query(
            connection,
            f"WITH RECURSIVE members AS (SELECT t.{quote(column.name)} AS label, CAST(0 AS UNSIGNED) AS number "
            f"FROM (SELECT 1) AS one LEFT JOIN {quote(name.schema, name.name)} AS t ON FALSE "
            "UNION ALL SELECT numbers.number, numbers.number FROM members "
            "JOIN JSON_TABLE(%s, '$[*]' COLUMNS (number BIGINT UNSIGNED PATH '$')) AS numbers "
            "WHERE members.number = 0) "
            "SELECT number, CAST(CONVERT(label USING utf8mb4) AS BINARY), "
            f"CAST(CONVERT(CONVERT(label USING utf8mb4) USING {charset}) AS BINARY) = CAST(label AS BINARY) "
            "FROM members WHERE number > 0",
            (json.dumps(numbers),),
        )
    except (pymysql.OperationalError, pymysql.ProgrammingError) as error:
        if error.args[0] in _DENIED:
            return column
        raise
    found = {int(number): bytes(label).decode() for number, label, alike in rows if alike}
    if found.keys() != {*numbers}:
        return column
    return replace(column, details={**column.details, LABELS: json.dumps([found[number] for number in numbers])})
