"""Random nights on a primary whose standby takes over before a random step, with or without the last transactions.

The oracle is plain SQL: the driver alone writes, so the rows right after a position was recorded are those of the
position. Changes are replayed in plain Python.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.lake import open_dataset, read_changes, read_latest
from harness.pipeline import Pipeline
from tests.consistency.replaying import Row, replayed, rows_of

KEYS = {"stock": ("id",), "visits": ()}
STEPS = ("preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate")
OPTIONS: dict[str, Any] = {"changes": True, "on_feed_gap": "begin_anew", "on_schema_change": "fail", "chunk_rows": 7}


class Servers(Protocol):
    schema: str
    refusals: tuple[type[CdcError], ...]
    """What steps may raise in a night with a takeover or a schema change."""
    goes_on: bool
    """Whether copies are rolled forward on a standby that lost no transactions."""

    def do(self, *statements: str) -> None:
        """Execute statements on the primary."""

    def write(self, note: str) -> None: ...

    def select(self, table: str, columns: Sequence[str]) -> list[Row]:
        """The rows of a table on the primary."""

    def begin(self, *, again: bool) -> Pipeline:
        """The next run, or the last one again, on the present primary."""

    def has_standby(self) -> bool: ...

    def cut_off(self) -> None:
        """Let the standby get no more transactions."""

    def promote(self, *, lost: bool, again: bool) -> None:
        """Stop the primary for good, and promote the standby. It has all transactions unless some are ``lost``.

        :param again: the new primary gives the lost positions again, to other changes of the same rows.
        """


class History:
    """Random nights. ``check`` compares each published copy, and what is published of its changes."""

    def __init__(self, servers: Servers, seed: int) -> None:
        self.servers, self.chance = servers, random.Random(seed)
        self.place = f"seed {seed}"
        self.cut_off = False
        self.writes = self.columns = 0
        self.before: dict[str, pa.Table] = {}
        self.position = ""
        self.takeovers = self.continued = 0
        self.has_lost = self.is_calm = False
        self.refused: Counter[str] = Counter()

    def write(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self.writes += 1
            self.servers.write(f"write {self.writes}")
        if self.servers.has_standby() and not self.cut_off and self.chance.random() < 0.15:
            self.servers.cut_off()
            self.cut_off = True

    def alter(self) -> None:
        self.columns += 1
        self.is_calm = False
        table = self.chance.choice(list(KEYS))
        column = f"more{self.columns}"
        self.servers.do(f"ALTER TABLE {table} ADD COLUMN {column} INT", f"UPDATE {table} SET {column} = 1")

    def take_over(self) -> None:
        if not self.cut_off and self.chance.random() < 0.5:
            self.servers.cut_off()
            self.cut_off = True
        if self.cut_off:
            self.write()
        self.servers.promote(lost=self.cut_off, again=self.chance.random() < 0.5)
        self.has_lost |= self.cut_off
        self.cut_off = self.is_calm = False
        self.takeovers += 1
        if self.chance.random() < 0.7:
            self.write()

    def night(self) -> None:
        """A run with a takeover before a random step, steps that are executed twice, and schema changes."""
        self.is_calm, late = True, self.cut_off
        self.write()
        if self.chance.random() < 0.2:
            self.alter()
        if self.servers.has_standby() and not self.cut_off and self.chance.random() < 0.3:
            # The standby will lack the position of this night.
            self.servers.cut_off()
            self.cut_off = True
            self.write()
        due = self.chance.choice([*STEPS, ""]) if self.servers.has_standby() else ""
        if late:
            # The copy of the last night is lost, too.
            due = self.chance.choice(STEPS[:2])
        elif self.cut_off and self.chance.random() < 0.5:
            due = ""
        run, number, tries = self.servers.begin(again=False), 0, 0
        rows: dict[str, list[Row]] = {}
        while number < len(STEPS):
            step = STEPS[number]
            if step == due:
                due = ""
                self.take_over()
                plans = run.plans
                run = self.servers.begin(again=True)
                run.plans = plans
            try:
                getattr(run, step)()
                if step in ("snapshot", "extract_delta") and self.chance.random() < 0.2:
                    getattr(run, step)()
            except self.servers.refusals as error:
                self.refused[f"{step}: {type(error).__name__}"] += 1
                tries += 1
                if self.is_calm or tries == 4:
                    raise AssertionError(self.place) from error
                # The task is cleared, or a new run is triggered.
                run = self.servers.begin(again=tries == 1)
                number = 0
                continue
            if step == "lock_and_record":
                if self.before and self.servers.goes_on and not self.has_lost:
                    assert all(plan.base for plan in run.plans), (self.place, [plan.reason for plan in run.plans])
                rows = {name: self.servers.select(name, ["*"]) for name in KEYS}
                self.write()
            elif step == "snapshot":
                if self.chance.random() < 0.1:
                    self.alter()
                self.write()
            number += 1
        self.check(run, rows)

    def check(self, run: Pipeline, rows: dict[str, list[Row]]) -> None:
        found = run.found["consolidate"]
        for name, key in KEYS.items():
            full, place = f"{self.servers.schema}.{name}", f"{self.place}, night {found['position']}, {name}"
            latest = read_latest(run.target.uri, full)
            assert latest is not None
            assert latest.position == found["position"], place
            copy = open_dataset(latest).to_table()
            assert rows_of(copy) == Counter(rows[name]), place
            if name in self.before:
                count, gaps = found["changes"][full], found["feed_gaps"]
                assert (count is None) == (full in gaps), f"{place}: {count} changes, gaps {gaps}"
                if count is not None:
                    self.continued += 1
                    changes = read_changes(run.target.uri, full)
                    assert (changes.from_position, changes.position) == (self.position, found["position"]), place
                    if self.before[name].column_names == copy.column_names and changes.files:
                        told = open_dataset(changes).to_table()
                        assert replayed(rows_of(self.before[name]), key, told) == rows_of(copy), place
            self.before[name] = copy
        self.position, self.has_lost = found["position"], False
