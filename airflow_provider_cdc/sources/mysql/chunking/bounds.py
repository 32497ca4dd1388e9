"""Which bounds may cut a table: those that increase, as the server says in the way in which chunks are read.

The server is asked with the very expressions, parameters and protocol that read, because it takes the same text for
different values in different places: in a prepared statement, ``CAST('08:12:27' AS TIME)`` of a parameter is a date's
time, 00:00:00. So each bound must also come back as it went: one that the server takes for another value, or for none
that its type has, is dropped.
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
"""Bounds per statement, at most."""


def increasing(connection: Connection, axes: Sequence[Axis], bounds: Sequence[Bound]) -> list[int]:
    """The indexes of the bounds that are left when each one that the server does not find greater, or takes for
    something else, is dropped."""
    increasing_indexes = list(range(len(bounds)))
    while True:
        greater: list[bool] = []
        pairs = list(pairwise([(), *(bounds[index] for index in increasing_indexes)]))
        checks = [_greater(axes, *pair) for pair in pairs]
        for some in batches(connection, checks, _size, _BATCH):
            greater += _answers(connection, some)
        if all(greater):
            return increasing_indexes
        # One that follows a dropped one has yet to be compared with the one before that.
        increasing_indexes = [
            index
            for index, is_greater, last_was in zip(increasing_indexes, greater, [True, *greater[:-1]], strict=True)
            if is_greater or not last_was
        ]


_Check = tuple[str, list[KeyValue]]


def _greater(axes: Sequence[Axis], before: Bound, bound: Bound) -> _Check:
    """SQL that is true if ``bound`` is greater than ``before`` and the server takes its values for what they are.

    Of two bounds that agree as far as the shorter one goes, the longer one is the greater.
    """
    checks = ["TRUE"]
    params: list[KeyValue] = []
    for axis, value in zip(axes, bound, strict=False):
        # As bytes: what a collation finds equal may still be another bound.
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
    # As one string: then a result has the same form whatever is asked.
    sql = ", ".join(f"IF({check}, 'Y', 'N')" for check, _ in checks)
    statement = PreparedStatement(connection, f"SELECT CAST(CONCAT({sql}) AS BINARY)")
    try:
        answers = statement.value([value for _, values in checks for value in values])
    finally:
        statement.close()
    return [answer == ord("Y") for answer in answers]
