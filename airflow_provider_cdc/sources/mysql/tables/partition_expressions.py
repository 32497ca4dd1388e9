"""Check whether a table's partitioning expression works for each row, with the same result in every session.

REBUILD, REORGANIZE and COALESCE PARTITION compute the partition of each row again. ADD PARTITION does the same for hash
partitions. If the expression raises an error for a row, the server drops the row. The statement still succeeds, and the
loss is not logged. When the row was stored, the expression raised no error. So only errors that depend on ``sql_mode``
matter. With ERROR_FOR_DIVISION_BY_ZERO in strict mode, a division by zero is an error. Without NO_UNSIGNED_SUBTRACTION,
a negative difference of unsigned numbers is an error. All other partitioning expressions fail in every session or in
none. If the computation of a VIRTUAL column fails, the whole statement fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

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
    """Whether a row that was stored in one session may belong to no partition in another session.

    :param method: PARTITION_METHOD or SUBPARTITION_METHOD of the information schema.
    :param expression: the expression as the information schema shows it.
    :param columns: the columns of the table.
    """
    scanned = _scan(method, expression, columns)
    return not scanned.known or scanned.is_unsigned_difference


def is_unsigned_difference(method: str, expression: str, columns: Iterable[Column]) -> bool:
    """Whether the sql_mode NO_UNSIGNED_SUBTRACTION may decide the value of the expression, or whether the expression
    fails.

    The server compiles the expression when a session opens the table, with the sql_mode of that session. Other sessions
    then use the same open table. So a session's own sql_mode does not determine how the server computes the expression.

    The parameters are those of `may_fail`.
    """
    return _scan(method, expression, columns).is_unsigned_difference


@dataclass(frozen=True)
class _Scanned:
    """The properties of a partitioning expression that its text shows.

    ``known``
        apart from subtractions, every session can compute all parts of the expression.
    ``is_unsigned_difference``
        the expression contains a subtraction, and the operands may be unsigned.
    """

    known: bool
    is_unsigned_difference: bool


def _scan(method: str, expression: str, columns: Iterable[Column]) -> _Scanned:
    if method.endswith(("KEY", "COLUMNS")):
        # These partitioning methods use the column values directly, without an expression.
        return _Scanned(known=True, is_unsigned_difference=False)
    types = {column.name.lower(): column.type for column in columns}
    at, end = 0, len(expression.rstrip())
    known, subtracts, signed, divides = True, False, True, False
    unknown = _Scanned(known=False, is_unsigned_difference="-" in expression)
    while at < end:
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            return unknown
        at = match.end()
        kind, text = match.lastgroup, match[match.lastgroup].lower()
        known &= not divides or (kind == "number" and int(text) != 0)
        divides = kind == "divided"
        if kind == "column":
            signed &= _SIGNED_COLUMN.fullmatch(types.get(text.replace("``", "`"), "")) is not None
        elif kind == "word":
            if text not in _FUNCTIONS:
                return unknown
            signed &= text not in _NEVER_NEGATIVE
        elif kind == "number":
            # The server may treat a number with more digits as unsigned.
            signed &= len(text) <= 18
        subtracts |= kind == "sign" and text == "-"
    return _Scanned(known, subtracts and not signed)
