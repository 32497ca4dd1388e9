"""Selects the bounds of chunks. The server must confirm that the bounds increase, with the same comparisons that chunk
reads use.

The query for this confirmation uses the same expressions, parameters and protocol as the reads, because the server may
interpret the same text differently in different places. For example, in a prepared statement, ``CAST('08:12:27' AS
TIME)`` of a parameter is the time of a date, 00:00:00. So the query also returns each bound, and the result must be
equal to the bound. A bound is dropped if the server reads it as another value, or cannot read it as a value of the
column's type.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from airflow_provider_cdc.core.tables.chunk import Bound, KeyValue
from airflow_provider_cdc.sources.mysql.chunking.axes import Axis
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.server.statement_size import batches, size_of

_BATCH = 64
"""Maximum number of bounds per statement."""


def increasing(connection: Connection, axes: Sequence[Axis], bounds: Sequence[Bound]) -> list[int]:
    """Return the indexes of the bounds to keep. A bound is kept only if the server interprets it as the intended value,
    and finds it greater than the previous kept bound."""
    increasing_indexes = list(range(len(bounds)))
    while True:
        greater: list[bool] = []
        pairs = list(pairwise([(), *(bounds[index] for index in increasing_indexes)]))
        checks = [_greater(axes, *pair) for pair in pairs]
        for some in batches(connection, checks, _size, _BATCH):
            greater += _answers(connection, some)
        if all(greater):
            return increasing_indexes
        # Keep a bound that follows a dropped bound, because it still has to be compared with the last kept bound.
        increasing_indexes = [
            index
            for index, is_greater, last_was in zip(increasing_indexes, greater, [True, *greater[:-1]], strict=True)
            if is_greater or not last_was
        ]


_Check = tuple[str, list[KeyValue]]


def _greater(axes: Sequence[Axis], before: Bound, bound: Bound) -> _Check:
    """Return SQL that is true if ``bound`` is greater than ``before`` and the server returns its values unchanged.

    If one bound is a prefix of the other bound, the longer bound is greater.
    """
    checks = ["TRUE"]
    params: list[KeyValue] = []
    for axis, value in zip(axes, bound, strict=False):
        # Compare as bytes: values that are equal in the collation may still be different bounds.
        back = axis.read.format(axis.bound.format("?"))
        checks.append(f"CAST({back} AS BINARY) = CAST(? AS BINARY)")
        params += [value, value]
    order = "TRUE" if len(before) < len(bound) else "FALSE"
    values: list[KeyValue] = []
    for axis, low, high in reversed(list(zip(axes, before, bound, strict=False))):
        parameter = axis.bound.format("?")
        order = f"({parameter} < {parameter} OR ({parameter} = {parameter} AND {order}))"
        values = [low, high, low, high, *values]
    return f"({' AND '.join([*checks, order])})", params + values


def _size(check: _Check) -> int:
    sql, values = check
    return len(sql.encode()) + size_of(values)


def _answers(connection: Connection, checks: Sequence[_Check]) -> list[bool]:
    # Let the query return one string, so that the form of the result does not depend on the number of checks.
    sql = ", ".join(f"IF({check}, 'Y', 'N')" for check, _ in checks)
    statement = PreparedStatement(connection, f"SELECT CAST(CONCAT({sql}) AS BINARY)")
    try:
        answers = statement.value([value for _, values in checks for value in values])
    finally:
        statement.close()
    return [answer == ord("Y") for answer in answers]
