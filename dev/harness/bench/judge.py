"""Judges copies of the bank: at which positions of the source's log is each table right?

A copy of a table is right at a position if it has exactly the rows that the table had there. The judge knows the state
of the source before the copy, and follows it commit by commit. At each position it counts the wrong rows:

- *missing*: the source had a row with this key, and the copy has none;
- *stale*: both have a row with this key, and the values differ;
- *phantom*: only the copy has a row with this key, or it has several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bench.bank import Row
from harness.bench.commits import Commit

Contents = Mapping[str, Sequence[Row]]
MISSING, STALE, PHANTOM = "missing", "stale", "phantom"


@dataclass(frozen=True)
class Counts:
    """The numbers of wrong rows of a table at one position."""

    missing: int = 0
    stale: int = 0
    phantom: int = 0

    @property
    def wrong(self) -> int:
        return self.missing + self.stale + self.phantom


@dataclass(frozen=True)
class Verdict:
    """The result for one copy. ``tables`` has, by table, the counts at its own best position, and ``right`` the tables
    that are right there. ``common`` has the wrong rows of all tables at the best common position. ``positions`` is the
    number of positions that were searched, and ``rows`` the number of rows of the copy."""

    tables: Mapping[str, Counts]
    common: int
    positions: int
    rows: int

    @property
    def right(self) -> list[str]:
        return [table for table, counts in self.tables.items() if not counts.wrong]


class _Table:
    """The differences between a table of the source, as it changes, and its copy."""

    def __init__(self, source: dict[Any, Row], rows: Sequence[Row]) -> None:
        self._source, self._copied = source, {row[0]: row for row in rows}
        self._counts = {MISSING: 0, STALE: 0, PHANTOM: len(rows) - len(self._copied)}
        self._wrong: dict[Any, str] = {}
        for key in source.keys() | self._copied.keys():
            self._compare(key)

    def apply(self, key: Any, row: Row | None) -> None:
        if row is None:
            self._source.pop(key, None)
        else:
            self._source[key] = row
        self._compare(key)

    def counts(self) -> Counts:
        return Counts(**self._counts)

    def _compare(self, key: Any) -> None:
        if (before := self._wrong.pop(key, None)) is not None:
            self._counts[before] -= 1
        there, here = self._source.get(key), self._copied.get(key)
        if there != here:
            kind = MISSING if here is None else PHANTOM if there is None else STALE
            self._wrong[key] = kind
            self._counts[kind] += 1


class Judge:
    """Follows the source from one state on."""

    def __init__(self, state: Contents) -> None:
        self._state = {table: {row[0]: row for row in rows} for table, rows in state.items()}

    def follow(self, commits: Sequence[Commit]) -> None:
        """Let the source change without judging."""
        for commit in commits:
            for table, key, row in commit.changes:
                if row is None:
                    self._state[table].pop(key, None)
                else:
                    self._state[table][key] = row

    def judge(self, contents: Contents, commits: Sequence[Commit]) -> Verdict:
        """Judge a copy at the present position, and at each position after one of ``commits``."""
        tables = {table: _Table(state, contents[table]) for table, state in self._state.items()}
        best = {table: one.counts() for table, one in tables.items()}
        common = sum(counts.wrong for counts in best.values())
        for commit in commits:
            for table, key, row in commit.changes:
                tables[table].apply(key, row)
            present = {table: one.counts() for table, one in tables.items()}
            best = {table: min(best[table], present[table], key=lambda counts: counts.wrong) for table in tables}
            common = min(common, sum(counts.wrong for counts in present.values()))
        return Verdict(best, common, len(commits) + 1, sum(map(len, contents.values())))
