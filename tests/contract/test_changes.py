"""The log yields each single change of a window once, in commit order, and no change from before or after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, TrackedTable
from tests.contract.begun import Begin, Begun, sent
from tests.contract.databases import Database
from tests.seeds import seeds

Row = tuple[int, int]
Change = tuple[str, Row | None, Row | None]
"""The table, the row before and the row after."""


@dataclass
class Shop:
    """Two tables, one with a key and one without, and what is in them. All rows of the latter differ."""

    db: Database
    chance: random.Random
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"orders": [], "visits": []})
    _next: int = 0

    def transaction(self, ends: str = "COMMIT") -> list[Change]:
        """Changes of one row each; returns those that count."""
        before = {name: list(own) for name, own in self.rows.items()}
        done = [self._change() for _ in range(self.chance.choice([1, 1, 2, 5]))]
        self.db.transaction(*(statement for statement, _ in done), end=ends)
        if ends != "COMMIT":
            self.rows = before
            return []
        return [change for _, change in done]

    def _change(self) -> tuple[str, Change]:
        name = self.chance.choice(["orders", "visits"])
        own = self.rows[name]
        self._next += 1
        kind = self.chance.choice(["insert", "update", "move", "delete"]) if own else "insert"
        if kind == "insert":
            own.append((self._next, self._next))
            return f"INSERT INTO {name} VALUES ({self._next}, {self._next})", (name, None, own[-1])
        row = own.pop(self.chance.randrange(len(own)))
        where = f"WHERE id = {row[0]} AND n = {row[1]}"
        if kind == "delete":
            return f"DELETE FROM {name} {where}", (name, row, None)
        new = (row[0], self._next) if kind == "update" else (self._next, row[1])
        own.append(new)
        return f"UPDATE {name} SET id = {new[0]}, n = {new[1]} {where}", (name, row, new)


@dataclass
class Told:
    """The changes that a source yields for a window."""

    changes: list[list[Change]]
    positions: list[str]
    times: list[datetime]


def told(run: Begun, log_end: LogEnd, upper: Position) -> Told:
    """The changes up to ``upper``, by the position of their transaction."""
    tables = list(run.tables.values())
    tracked = [TrackedTable(index, table, upper, forward=True, changes=True) for index, table in enumerate(tables)]
    found = Told([], [], [])
    for segment in run.source.segments(Start(run.position, run.identity), AT_START, log_end):
        batches: list[pa.RecordBatch] = []
        with sent(run.source).read_segment(sent(segment), run.position, sent(tracked), batches.append) as reader:
            for _ in reader:
                pass
        orders: dict[int, int] = {}
        rows = list(_decoded(run, batches))
        for table, order, *_ in rows:
            assert order > orders.get(table, -1), "changes of a table do not come in their order"
            orders[table] = order
        for table, _, position, when, before, after in sorted(rows, key=lambda row: row[1]):
            if not found.positions or found.positions[-1] != position:
                found.positions.append(position)
                found.times.append(when)
                found.changes.append([])
            assert when == found.times[-1]
            found.changes[-1].append((tables[table].name.name, before, after))
    return found


def _decoded(
    run: Begun, batches: list[pa.RecordBatch]
) -> Iterator[tuple[int, int, str, datetime, Row | None, Row | None]]:
    tables = list(run.tables.values())
    for batch in batches:
        assert batch.schema.equals(CHANGE_SCHEMA)
        for one in batch.to_pylist():
            assert one["pending"] is None
            rows: list[Row | None] = []
            for image in (one["before"], one["after"]):
                if image is None:
                    rows.append(None)
                else:
                    decoded = run.source.decode_images(tables[one["table"]], pa.array([image], pa.binary()))
                    (row,) = decoded.to_pylist()
                    rows.append((row["id"], row["n"]))
            yield one["table"], one["order"], one["position"], one["commit_time"], rows[0], rows[1]


@pytest.mark.parametrize("seed", seeds(0))
def test_each_change_of_the_window_is_told_once_and_in_order(db: Database, begin: Begin, seed: int) -> None:
    chance = random.Random(seed)
    db.create("orders", "id INT PRIMARY KEY, n INT")
    db.create("visits", "id INT, n INT")
    shop = Shop(db, chance)
    for _ in range(5):
        shop.transaction()
    began = datetime.now(UTC)
    run = begin("orders", "visits")
    expected = []
    for _ in range(40):
        ends = "ROLLBACK" if chance.random() < 0.15 else "COMMIT"
        if changes := shop.transaction(ends):
            expected.append(changes)
        if chance.random() < 0.1:
            db.rotate_log()
    bound = run.source.bound_reads()
    for _ in range(5):
        shop.transaction()
    # On MySQL it is the position that ends a window: files are read beyond it.
    end = run.log_end() if db.kind == "mysql" else bound.log_end
    found = told(run, end, bound.upper)
    assert found.changes == expected
    assert len({*found.positions}) == len(expected)
    # The clocks of the servers are that of this machine.
    slack = timedelta(seconds=1)
    assert all(began - slack <= when <= datetime.now(UTC) + slack for when in found.times)
    # Every read yields the same changes.
    assert told(run, end, bound.upper) == found
