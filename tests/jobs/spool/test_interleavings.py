"""Two attempts of a run, of which one works at a random instant of the other one.

All of this happens in one thread: at the n-th call of the ledger, the storage or the source, an attempt stands still,
and something else happens. So, unlike in chaos tests, each instant between two calls is hit equally often, and a seed
always hits the same one. Meanwhile, tables are altered, and the source removes log behind pieces that other attempts
record. The oracle is the server, which is asked while nobody writes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.run.ledger import Ledger
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import SchemaChanged
from harness.mysql_server import MysqlServer
from harness.pipeline import published
from harness.postgres_server import PostgresServer
from tests.jobs.spool.spooled_run import Server, purge, rotate
from tests.jobs.spool.test_restarts import Killed, RestartedRun
from tests.seeds import seeds
from tests.soon import soon

pytestmark = pytest.mark.timeout(300)

STEPS = ("snapshot", "extract_delta", "consolidate")
CALLS = (
    *("acknowledge", "altered_in_log", "bound_reads", "carry_read", "check_continued", "check_identity"),
    *("check_replaced", "check_since", "check_tables", "discard", "ends_of_reads", "key_reader", "note_tables"),
    *("place_of", "plan_chunks", "read_segment", "reader", "refresh_identities", "release", "segments", "share_reads"),
)
"""Methods of a source. The attempt stands still before and after each of their calls."""
MOST_CALLS = 350
"""The number of instants of a run whose position moves twice, about."""


class Interrupted(RestartedRun):
    """A run whose first attempt stands still at the instant number ``at``, where ``act`` happens.

    ``expected_at`` has the rows at each position that an attempt has fixed.
    """

    def __init__(self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        super().__init__(server, folder, monkeypatch)
        self.expected_at = {self.manifest.initial_position: self.expected}
        self.act: Callable[[], None] = lambda: None
        self._columns = 0
        self._left = at
        self._is_watched = False
        kind = type(self.pipeline.source)
        for cls, names in ((kind, CALLS), (Ledger, ("append", "state")), (Storage, ("create_json", "write_json"))):
            for name in names:
                monkeypatch.setattr(cls, name, self._interrupting(getattr(cls, name)))

    def _interrupting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._instant()
            result = function(*arguments, **options)
            self._instant()
            return result

        return call

    def _instant(self) -> None:
        if self._is_watched:
            self._left -= 1
            if self._left == 0:
                self._is_watched = False
                self.act()

    def record_point(self, *arguments: Any) -> InitialPoint:
        watched, self._is_watched = self._is_watched, False
        point = super().record_point(*arguments)
        self.expected_at[str(point.position)] = self.expected
        self._is_watched = watched
        return point

    def attempt(self, step: str) -> None:
        """Execute a step in the first attempt, and in a second one if the first was killed."""
        self._is_watched = True
        try:
            getattr(self.pipeline, step)()
        except Killed:
            getattr(self.pipeline, step)()
        self._is_watched = False

    def spool_elsewhere(self) -> None:
        """Record the log in another attempt, and let the server remove it. The spool ends at a statement that alters a
        table, and when the reads have ended."""
        self.change(2)
        rotate(self.server)
        # This instant may be one within another attempt, so there may be more log at the end.
        end = self.server.query("SHOW BINARY LOGS")[-1][0] if isinstance(self.server, MysqlServer) else ""
        spooler = self.spooler()
        with suppress(SchemaChanged):
            if all(spooler.take(line) for line in spooler.lines):
                purge(self.server, end)

    def alter(self) -> None:
        self._columns += 1
        self.server.query(f"ALTER TABLE shop.orders ADD COLUMN new{self._columns} INT")

    def truncate(self) -> None:
        self.server.query("TRUNCATE TABLE shop.visits")
        self.server.query("INSERT INTO shop.visits VALUES (1, 'later'), (2, 'later')")


@pytest.mark.parametrize("seed", seeds())
def test_whatever_happens_at_an_instant_of_an_attempt_the_copy_is_exact(
    seed: int, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    run = Interrupted(server, tmp_path, monkeypatch, chance.randrange(1, MOST_CALLS))
    change, spool = run.change, run.spool_elsewhere
    early, late = chance.choice([(run.truncate, run.alter), (run.alter, run.truncate), (run.alter, run.alter)])
    pause = [chance.choice([change, spool]) for _ in range(chance.randrange(12))]
    run.acts = {1: [*pause, early, spool], 2: [spool, change, late, spool], 3: [spool]}
    now = "snapshot"

    def die() -> None:
        raise Killed

    def work() -> None:
        # While one attempt publishes, the other one waits for it.
        if now != STEPS[-1]:
            getattr(run.pipeline, now)()

    acts = {"spooled": spool, "truncated": run.truncate, "altered": run.alter, "works": work, "killed": die}
    drawn = chance.sample(["spooled", "truncated", "altered"], chance.randrange(3))
    drawn.append(chance.choice(["works", "killed"]))

    def act() -> None:
        for name in drawn:
            acts[name]()

    run.act = act
    for now in STEPS:
        run.attempt(now)
    found = run.pipeline.found["consolidate"]
    expected = run.expected_at[found["position"]]
    for name in run.names:
        _, copied = published(found["published"][f"shop.{name}"])
        assert Counter(copied) == expected[name], f"{name}: {drawn} at {found['position']}"
    if isinstance(server, PostgresServer):
        left = "SELECT slot_name::text FROM pg_replication_slots UNION ALL SELECT pubname::text FROM pg_publication"
        soon(lambda: server.query(left), [])
