"""Chunks: half-open key ranges that partition a table's key space.

A list of strictly increasing bounds ``b1 < b2 < … < bn`` makes the chunks ``(-∞, b1) [b1, b2) … [bn, ∞)``. Neighbours
share a bound, one side excludes it and the other includes it, so every key lies in exactly one chunk: no gap, no
overlap, whatever the bounds are and whether or not a row has them as its key. The one condition, *strictly increasing
under the order that the source compares with*, is checked by the source itself (see each ``chunks`` module); nothing
here orders a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KeyValue = int | str | bytes
"""One column of a bound. Decimals, dates and the like travel as text, which the source compares as their type."""

Bound = tuple[KeyValue, ...]
"""A point in key space: one value per key column that the chunks are cut by, in key order."""


@dataclass(frozen=True)
class KeyBytes:
    """Bytes of a bound as records hold them: JSON has none."""

    hex: str


Edge = tuple[int | str | KeyBytes, ...]
"""A bound as records hold it."""


@dataclass(frozen=True)
class Chunk:
    """The keys from ``lower`` (included) up to ``upper`` (excluded); None is unbounded. `bounds` has them as bounds.

    ``rows`` is an estimate, for the order of work and the progress display only.
    """

    number: int
    lower: Edge | None = None
    upper: Edge | None = None
    rows: int = 0

    @property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """``lower`` and ``upper``."""
        return _bound(self.lower), _bound(self.upper)

    def __str__(self) -> str:
        lower, upper = self.bounds
        low = "-∞" if lower is None else ", ".join(map(str, lower))
        high = "∞" if upper is None else ", ".join(map(str, upper))
        return f"chunk {self.number} [{low} … {high})"


def partition(bounds: Sequence[Bound], rows: Sequence[int] | None = None) -> list[Chunk]:
    """The chunks that strictly increasing ``bounds`` cut the key space into: one more than there are bounds.

    :param rows: estimated rows of each chunk, if known.
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
