"""Chunks: half-open key ranges that partition a table's key space.

A list of strictly increasing bounds ``b1 < b2 < … < bn`` makes the chunks ``(-∞, b1) [b1, b2) … [bn, ∞)``. Neighbouring
chunks share a bound: one excludes it, and the other includes it. So every key lies in exactly one chunk, without gaps
or overlaps. This holds for any bounds, even if no row has such a key. The only condition is that the bounds are
*strictly increasing in the source's own comparison order*. The source checks this itself (see each ``chunks`` module);
this module does not compare keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KeyValue = int | str | bytes
"""One column of a bound. Decimals, dates and similar types are text here; the source compares them as their type."""

Bound = tuple[KeyValue, ...]
"""A point in key space: one value for each key column that bounds the chunks, in key order."""


@dataclass(frozen=True)
class KeyBytes:
    """Bytes of a bound in a record, as hexadecimal digits, because JSON has no bytes."""

    hex: str


Edge = tuple[int | str | KeyBytes, ...]
"""A bound in a record."""


@dataclass(frozen=True)
class Chunk:
    """The keys from ``lower`` (included) to ``upper`` (excluded); None: unbounded. `bounds` converts both to bounds.

    ``rows`` is an estimate, used only for the order of work and the progress display.
    """

    number: int
    lower: Edge | None = None
    upper: Edge | None = None
    rows: int = 0

    @property
    def bounds(self) -> tuple[Bound | None, Bound | None]:
        """``lower`` and ``upper`` as bounds."""
        return _bound(self.lower), _bound(self.upper)

    def __str__(self) -> str:
        lower, upper = self.bounds
        low = "-∞" if lower is None else ", ".join(map(str, lower))
        high = "∞" if upper is None else ", ".join(map(str, upper))
        return f"chunk {self.number} [{low} … {high})"


def partition(bounds: Sequence[Bound], rows: Sequence[int] | None = None) -> list[Chunk]:
    """Cut the key space at strictly increasing ``bounds``; return the chunks, one more than there are bounds.

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
