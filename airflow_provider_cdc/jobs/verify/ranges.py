"""Samples of a table: ranges of the first column of the key, drawn at random.

Only keys whose first column is a whole number are sampled, because every program sorts such values in the same way.
The ranges cover all keys: the first and the last range are unbounded. How many rows a range has affects only the work.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_RANGES = 20_000
_LARGEST = 2**63 - 1
"""The largest bound: sources take bounds as signed integers."""
_SURE = 0.95


@dataclass(frozen=True)
class KeyRange:
    """The keys from ``low`` (included) to ``high`` (excluded). None: unbounded."""

    low: int | None
    high: int | None


@dataclass(frozen=True)
class Sample:
    """Some ranges of the column ``column``, in ascending order, of ``total`` ranges of the table."""

    column: str
    ranges: tuple[KeyRange, ...]
    total: int

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """Return which rows are in one of the ranges. A null is in no range."""
        column = rows.column(self.column)
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        found = np.zeros(len(values), bool)
        for one in self.ranges:
            inside = np.ones(len(values), bool)
            if one.low is not None:
                inside &= values >= one.low
            if one.high is not None:
                inside &= values < one.high
            found |= inside
        return pc.and_(pa.array(found), column.is_valid())

    def may_have(self, least: Any, greatest: Any) -> bool:
        """Return whether a value from ``least`` to ``greatest`` may be in one of the ranges."""
        return any(
            (one.low is None or greatest >= one.low) and (one.high is None or least < one.high) for one in self.ranges
        )

    @property
    def confidence(self) -> str:
        """A statement of the faults that this sample finds."""
        drawn, total = len(self.ranges), self.total
        least = next(count for count in range(1, total + 1) if chance_to_find(drawn, total, count) >= _SURE)
        return (
            f"{drawn:,} of {total:,} ranges: a fault in one range is found with a chance of {drawn / total:.1%}, and "
            f"faults in {least / total:.1%} of the ranges with a chance of {_SURE:.0%}"
        )


def chance_to_find(drawn: int, total: int, faulty: int) -> float:
    """Return the chance that a sample has at least one of the faulty ranges."""
    return 1 - comb(total - faulty, drawn) / comb(total, drawn)


def cut(groups: Iterable[tuple[int, int, int]], range_rows: int) -> list[KeyRange]:
    """Divide the keys into ranges of about ``range_rows`` rows.

    :param groups: the least key, the greatest key and the number of rows of each group of rows, such as a row group.
    """
    ordered = sorted(groups)
    rows = max(range_rows, -(-sum(group[2] for group in ordered) // MOST_RANGES))
    bounds: set[int] = set()
    for least, greatest, count in ordered:
        pieces = -(-count // rows)
        bounds.update(least + (greatest - least) * piece // pieces for piece in range(pieces))
    edges: list[int | None] = [None, *sorted(bound for bound in bounds if bound <= _LARGEST)[1:], None]
    return [KeyRange(low, high) for low, high in pairwise(edges)]


def draw(column: str, ranges: Sequence[KeyRange], count: int, seed: int, table: str) -> Sample | None:
    """Draw ``count`` ranges. None: all rows are to be compared, because the sample would have all ranges."""
    if not count or count >= len(ranges):
        return None
    chosen = sorted(random.Random(f"{seed} {table}").sample(range(len(ranges)), count))
    return Sample(column, tuple(ranges[index] for index in chosen), len(ranges))
