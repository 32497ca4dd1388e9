"""Chunks: half-open key ranges that partition a table's key space.

A list of strictly increasing bounds ``b1 < b2 < … < bn`` makes the chunks ``(-∞, b1) [b1, b2) … [bn, ∞)``. Neighbours
share a bound, one side excludes it and the other includes it, so every key lies in exactly one chunk: no gap, no
overlap, whatever the bounds are and whether or not a row has them as its key. The one condition, *strictly increasing
under the order that the source compares with*, is checked by the source itself (see each ``chunks`` module); nothing
here orders a key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

KeyValue = int | str | bytes
"""One column of a bound. Decimals, dates and the like travel as text, which the source compares as their type."""

Bound = tuple[KeyValue, ...]
"""A point in key space: one value per key column that the chunks are cut by, in key order."""


@dataclass(frozen=True)
class Chunk:
    """The keys from ``lower`` (included) up to ``upper`` (excluded); None is unbounded.

    ``rows`` is an estimate, for the order of work and the progress display only.
    """

    number: int
    lower: Bound | None = None
    upper: Bound | None = None
    rows: int = 0

    def __str__(self) -> str:
        low = "-∞" if self.lower is None else ", ".join(map(str, self.lower))
        high = "∞" if self.upper is None else ", ".join(map(str, self.upper))
        return f"chunk {self.number} [{low} … {high})"

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "lower": _bound_to_json(self.lower),
            "upper": _bound_to_json(self.upper),
            "rows": self.rows,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Chunk:
        return cls(data["number"], _bound_from_json(data["lower"]), _bound_from_json(data["upper"]), data["rows"])


def partition(bounds: Sequence[Bound], rows: Sequence[int] | None = None) -> list[Chunk]:
    """The chunks that strictly increasing ``bounds`` cut the key space into: one more than there are bounds.

    :param rows: estimated rows of each chunk, if known.
    """
    edges: list[Bound | None] = [None, *bounds, None]
    estimates = rows if rows is not None else [0] * (len(edges) - 1)
    return [
        Chunk(number, lower, upper, estimate)
        for number, (lower, upper, estimate) in enumerate(zip(edges[:-1], edges[1:], estimates, strict=True))
    ]


def _bound_to_json(bound: Bound | None) -> list[Any] | None:
    if bound is None:
        return None
    return [{"hex": value.hex()} if isinstance(value, bytes) else value for value in bound]


def _bound_from_json(data: Sequence[Any] | None) -> Bound | None:
    if data is None:
        return None
    return tuple(bytes.fromhex(value["hex"]) if isinstance(value, dict) else value for value in data)
