"""Check whether the server can compute a table's partitioning expression for each row in every session.

REBUILD, REORGANIZE and COALESCE PARTITION, and ADD PARTITION of hashes, compute the partition of each row again. If the
expression raises an error for a row, the server drops the row: the statement succeeds, and nothing is logged. The row
was stored in a session in which the expression raised no error. So only errors that depend on ``sql_mode`` matter: with
a strict ERROR_FOR_DIVISION_BY_ZERO, a division by zero is an error; without NO_UNSIGNED_SUBTRACTION, a negative
difference of unsigned numbers is an error. All other partitioning expressions fail in every session or in none. If a
VIRTUAL column fails, the statement fails.
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
    :param expression: the expression as the information schema shows it.
    :param columns: the columns of the table.
    """
    if method.endswith(("KEY", "COLUMNS")):
        # These methods use the column values directly, without an expression.
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
            # A number with more digits may be unsigned itself.
            signed &= len(text) <= 18
        subtracts |= kind == "sign" and text == "-"
    return signed or not subtracts
