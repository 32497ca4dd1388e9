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
class Example:
    """A wrong row: its table, what is wrong, and the row in the copy and in the source. None: there is no such row."""

    table: str
    kind: str
    copied: Row | None
    source: Row | None

    def __str__(self) -> str:
        return f"{self.table}, {self.kind}: copy {self.copied or 'none'}, source {self.source or 'none'}"


@dataclass(frozen=True)
class Verdict:
    """The result for one copy. ``tables`` has, by table, the counts at its own best position, and ``right`` the tables
    that are right there. ``common`` has the wrong rows of all tables at the best common position. ``positions`` is the
    number of positions that were searched, and ``rows`` the number of rows of the copy. ``example`` is a row that is
    wrong at the best position of its own table, or else at the best common one; None: no row is wrong."""

    tables: Mapping[str, Counts]
    common: int
    positions: int
    rows: int
    example: Example | None = None

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

    def example(self, table: str) -> Example | None:
        """Return a row that is wrong at the present position. None: no row is wrong, or only rows that the copy has
        several times."""
        for key, kind in self._wrong.items():
            return Example(table, kind, self._copied.get(key), self._source.get(key))
        return None

    def _compare(self, key: Any) -> None:
        if (before := self._wrong.pop(key, None)) is not None:
            self._counts[before] -= 1
        there, here = self._source.get(key), self._copied.get(key)
        if there != here:
            kind = MISSING if here is None else PHANTOM if there is None else STALE
            self._wrong[key] = kind
            self._counts[kind] += 1


class Judge:
    """Follows the source from one state on. ``state`` has the rows of each table, by key."""

    def __init__(self, state: Contents) -> None:
        self.state = {table: {row[0]: row for row in rows} for table, rows in state.items()}

    def follow(self, commits: Sequence[Commit]) -> None:
        """Let the source change without judging."""
        for commit in commits:
            for table, key, row in commit.changes:
                if row is None:
                    self.state[table].pop(key, None)
                else:
                    self.state[table][key] = row

    def judge(self, contents: Contents, commits: Sequence[Commit]) -> Verdict:
        """Judge a copy at the present position, and at each position after one of ``commits``."""
        tables = {table: _Table(state, contents[table]) for table, state in self.state.items()}
        best: dict[str, Counts] = {}
        examples: dict[str, Example | None] = {}
        common, of_common = -1, None
        for commit in (Commit(), *commits):
            for table, key, row in commit.changes:
                tables[table].apply(key, row)
            present = {table: one.counts() for table, one in tables.items()}
            for table, counts in present.items():
                if table not in best or counts.wrong < best[table].wrong:
                    best[table], examples[table] = counts, tables[table].example(table)
            wrong = sum(counts.wrong for counts in present.values())
            if common < 0 or wrong < common:
                common = wrong
                of_common = next((found for name, one in tables.items() if (found := one.example(name))), None)
        example = next(filter(None, examples.values()), of_common)
        return Verdict(best, common, len(commits) + 1, sum(map(len, contents.values())), example)
