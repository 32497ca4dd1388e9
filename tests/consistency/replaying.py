"""Replays published changes onto a copy in plain Python. It shares no code with the code that wrote them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

Row = tuple[Any, ...]


def rows_of(table: pa.Table) -> Counter[Row]:
    """The rows of a copy."""
    return Counter(_row(one) for one in table.to_pylist())


def replayed(rows: Counter[Row], key: Sequence[str], changes: pa.Table) -> Counter[Row]:
    """Return ``rows`` after ``changes``, applied in the order of their column ``order``.

    Each change must fit the rows at its turn: a removed row exists, and in a table with a ``key``, no row is added
    whose key exists.
    """
    kind = changes.schema.field("after").type
    places = [kind.get_field_index(name) for name in key]
    there: dict[Row, Counter[Row]] = {}

    def own(row: Row) -> Counter[Row]:
        return there.setdefault(tuple(row[place] for place in places), Counter())

    for row, count in rows.items():
        own(row)[row] += count
    ordered = sorted(changes.to_pylist(), key=lambda change: change["order"])
    for change in ordered:
        before, after = (None if change[name] is None else _row(change[name]) for name in ("before", "after"))
        assert (
            change["operation"]
            == {(True, False): "insert", (False, False): "update", (False, True): "delete"}[
                before is None, after is None
            ]
        )
        if before is not None:
            assert own(before)[before] > 0, f"it is not there: {change}"
            own(before)[before] -= 1
        if after is not None:
            assert not key or not +own(after), f"its key is there already: {change}"
            own(after)[after] += 1
    return Counter({row: count for rows in there.values() for row, count in rows.items() if count})


def _row(values: dict[str, Any]) -> Row:
    return tuple(map(_plain, values.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    # Iceberg tables have a duration and a time of day in microseconds.
    if isinstance(value, time):
        value = datetime.combine(date.min, value) - datetime.min
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    # -0.0 is not 0.0, and a NaN is a NaN.
    return repr(value) if isinstance(value, float) else value
