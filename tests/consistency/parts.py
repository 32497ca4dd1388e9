"""Conditions for parts of the tables of histories, and the same conditions in Python, as the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Some rows and columns of a table. ``keeps`` returns whether a row, with all its columns, is one of them.
    ``columns`` are the requested columns; empty: all."""

    table: str
    where: str
    keeps: Callable[[Row], bool]
    columns: tuple[str, ...] = ()

    def of(self, names: Sequence[str], rows: Iterable[tuple[Any, ...]], key: Sequence[str]) -> Counter[tuple[Any, ...]]:
        """The part of ``rows``, which have these columns."""
        kept = [name for name in names if not self.columns or name in self.columns or name in key]
        found = (dict(zip(names, row, strict=True)) for row in rows)
        return Counter(tuple(row[name] for name in kept) for row in found if self.keeps(row))
