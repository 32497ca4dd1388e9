"""Chunks: half-open key ranges that partition a table's key space.

A list of strictly increasing bounds ``b1 < b2 < … < bn`` makes the chunks ``(-∞, b1) [b1, b2) … [bn, ∞)``. Neighbouring
chunks share a bound: the lower chunk excludes the bound, and the upper chunk includes it. So every key lies in exactly
one chunk, without gaps or overlaps. This is true for any bounds, even if no row has the key of a bound. The only
condition is that the bounds are *strictly increasing in the source's own comparison order*. Each source checks this
condition (see its ``chunks`` module), because this module does not compare keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.tables.value_range import ValueRange

KeyValue = int | str | bytes
"""The value of one column in a bound. Decimals, dates and similar values are text here. The source compares them by
their own type."""

Bound = tuple[KeyValue, ...]
"""A point in the key space. It has one value for each key column that the bounds use, in key order."""


@dataclass(frozen=True)
class KeyBytes:
    """Bytes in the record of a bound, written as hexadecimal digits, because JSON has no type for bytes."""

    hex: str


Edge = tuple[int | str | KeyBytes, ...]
"""A bound in a record."""


@dataclass(frozen=True)
class Chunk:
    """The keys from ``lower`` (included) to ``upper`` (excluded); None: unbounded. `bounds` converts both to bounds.

    ``rows`` is an estimate, used only for the order of work and the progress display. ``within`` is the range of values
    that the chunk has, if a keyless table is divided by values.
    """

    number: int
    lower: Edge | None = None
    upper: Edge | None = None
    rows: int = 0
    within: ValueRange | None = None

    @property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """``lower`` and ``upper`` as bounds."""
        return _bound(self.lower), _bound(self.upper)

    def __str__(self) -> str:
        if self.within is not None:
            return f"chunk {self.number} {self.within}"
        lower, upper = self.bounds
        low = "-∞" if lower is None else ", ".join(map(str, lower))
        high = "∞" if upper is None else ", ".join(map(str, upper))
        return f"chunk {self.number} [{low} … {high})"


def partition(bounds: Sequence[Bound], rows: Sequence[int] | None = None) -> list[Chunk]:
    """Cut the key space at strictly increasing ``bounds``, and return the chunks. There is one more chunk than there
    are bounds.

    :param rows: the estimated number of rows of each chunk, if known.
    """
    edges = [None, *map(_edge, bounds), None]
    estimates = rows if rows is not None else [0] * (len(edges) - 1)
    return [
        Chunk(number, lower, upper, estimate)
        for number, (lower, upper, estimate) in enumerate(zip(edges[:-1], edges[1:], estimates, strict=True))
    ]


def _edge(bound: Bound) -> Edge:
    return tuple(KeyBytes(value.hex()) if isinstance(value, bytes) else value for value in bound)


def _bound(edge: Edge | None) -> Bound | None:
    if edge is None:
        return None
    return tuple(bytes.fromhex(value.hex) if isinstance(value, KeyBytes) else value for value in edge)
