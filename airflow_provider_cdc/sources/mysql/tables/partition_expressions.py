"""Expressions that partition a table: whether the server can compute them for each row in every session.

REBUILD, REORGANIZE and COALESCE PARTITION, and ADD PARTITION of hashes, compute the partition of each row anew. A row
whose expression raises an error is dropped: the statement succeeds, and nothing is logged. The server took the row in a
session where the expression raised none. So what matters is what ``sql_mode`` decides: with a strict
ERROR_FOR_DIVISION_BY_ZERO a division by zero is an error, and without NO_UNSIGNED_SUBTRACTION an unsigned difference
below zero is one. All else that may partition a table fails in every session or in none; a VIRTUAL column that fails
makes the statement fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from airflow_provider_cdc.core.tables.table import Column

_FUNCTIONS = frozenset(
    "abs ceiling datediff dayofmonth dayofweek dayofyear extract floor hour microsecond minute month quarter second "
    "time_to_sec to_days to_seconds unix_timestamp weekday year yearweek".split()
)
_NEVER_NEGATIVE = frozenset("year yearweek".split())
_SIGNED_COLUMN = re.compile(r"(?:tiny|small|medium|big)?int(?:\(\d+\))?|date|datetime(?:\(\d\))?|time(?:\(\d\))?")
_TOKEN = re.compile(
    r"""\s*(?:`(?P<column>(?:[^`]|``)+)`
    | (?P<extract>extract\(\w+\ from)\b
    | (?P<divided>%|\bDIV\b)
    | (?P<number>\d+)\b
    | (?P<word>[a-z_]\w*)
    | (?P<sign>[-+*(),]))""",
    re.VERBOSE | re.IGNORECASE,
)


def may_fail(method: str, expression: str, columns: Iterable[Column]) -> bool:
    """Whether a row that one session stored may have no partition in another session.

    :param method: PARTITION_METHOD or SUBPARTITION_METHOD of the information schema.
    :param expression: as the information schema prints it.
    :param columns: those of the table.
    """
    if method.endswith(("KEY", "COLUMNS")):
        # Columns as they are.
        return False
    types = {column.name.lower(): column.type for column in columns}
    return not _is_sure(expression, types)


def _is_sure(expression: str, types: Mapping[str, str]) -> bool:
    at, end = 0, len(expression.rstrip())
    subtracts, signed, divides = False, True, False
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            return False
        at = match.end()
        kind, text = match.lastgroup, match[match.lastgroup].lower()
        if divides and not (kind == "number" and int(text)):
            return False
        divides = kind == "divided"
        if kind == "column":
            signed &= _SIGNED_COLUMN.fullmatch(types.get(text.replace("``", "`"), "")) is not None
        elif kind == "word":
            if text not in _FUNCTIONS:
                return False
            signed &= text not in _NEVER_NEGATIVE
        elif kind == "number":
            # A number of more digits may be unsigned itself.
            signed &= len(text) <= 18
        subtracts |= kind == "sign" and text == "-"
    return signed or not subtracts
