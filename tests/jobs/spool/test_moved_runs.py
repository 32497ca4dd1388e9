"""What may happen to a run around a move: tables vanish, log is removed, attempts are killed, and transactions stay
prepared. On MySQL, finished reads of altered tables are carried."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.runtime import source_watch
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot import read
from airflow_provider_cdc.jobs.snapshot import step as snapshot
from airflow_provider_cdc.sources.mysql.log import replaced
from airflow_provider_cdc.sources.mysql.tables import identity
from harness.lake_readers import iceberg_rows
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory
from tests.jobs.spool import test_restarts
from tests.jobs.spool.spooled_run import Server, make_tables, purge, rotate
from tests.jobs.spool.test_prepared import prepare
from tests.jobs.spool.test_restarts import RestartedRun

pytestmark = pytest.mark.slow


class CarriedRun(RestartedRun):
    """A run in which tables are altered one to one after their reads have ended, at the last moment of the first
    read."""

    def __init__(self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        super().__init__(server, folder, monkeypatch, **options)
        self.last: list[Callable[[], None]] = []
        kind = type(self.pipeline.source)
        bound_reads = kind.bound_reads

        def bound(source: Any) -> Any:
            while self.last:
                self.last.pop(0)()
            return bound_reads(source)

        monkeypatch.setattr(kind, "bound_reads", bound)

    def alter_after_reads(self, *names: str) -> None:
        def act() -> None:
            self.change()
            rotate(self.server)
            self.change()
            for name in names:
                column = "b" if name == "events" else "note"
                self.server.query(f"ALTER TABLE shop.{name} MODIFY {column} VARCHAR(1000)")
            self.change()

        self.last.append(act)

    @property
    def carried(self) -> list[set[str]]:
        return [{name.partition(".")[2] for name in restart.carried} for restart in self.present.restarts]


@pytest.fixture
def mysql_server(mysql_factory: MysqlFactory) -> MysqlServer:
    server = mysql_factory({})
    make_tables(server)
    return server


def test_a_table_that_was_dropped_is_left_out_when_the_run_moves(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no key, so it is locked when the later position is fixed."""
    run = RestartedRun(mysql_server, tmp_path, monkeypatch, on_table_error="skip")

    def act() -> None:
        run.names = run.changed = ("orders", "visits")
        mysql_server.query("DROP TABLE shop.events")

    run.acts = {1: [run.change] * 14 + [act]}
    run.pipeline.snapshot()
    assert list(run.present.skipped) == ["shop.events"]
    run.finish()


def test_a_table_that_was_dropped_while_its_identity_is_compared_is_left_out(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RestartedRun(mysql_server, tmp_path, monkeypatch, on_table_error="skip")
    held = identity.held

    def act() -> None:
        mysql_server.query("OPTIMIZE TABLE shop.visits")
        run.alter()

    def dropped(*arguments: Any) -> Any:
        run.names = run.changed = ("orders", "events")
        mysql_server.query("DROP TABLE IF EXISTS shop.visits")
        return held(*arguments)

    monkeypatch.setattr(replaced, "held", dropped)
    run.acts = {1: [run.change] * 14 + [act]}
    run.finish()
    assert list(run.present.skipped) == ["shop.visits"]


def test_a_table_whose_partition_column_was_renamed_is_left_out(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the patterns of the options match no table of the run."""
    lake = LakeOptions("iceberg", partition_by={"*.orders": ["truncate(9, note)"]}, sort_by={"*.orders": ["note"]})
    run = RestartedRun(mysql_server, tmp_path, monkeypatch, on_table_error="skip", lake=lake)

    def act() -> None:
        run.names = run.changed = ("visits",)
        mysql_server.query("ALTER TABLE shop.orders RENAME COLUMN note TO text")
        run.change()

    run.acts = {1: [run.change] * 14 + [act]}
    run.pipeline.finish()
    assert list(run.present.skipped) == ["shop.orders"]
    _, copied = iceberg_rows(tmp_path, "shop.visits", run.present.run_id)
    assert Counter(copied) == run.expected["visits"]


def test_all_tables_are_carried_and_nothing_is_read_again(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CarriedRun(mysql_server, tmp_path, monkeypatch)
    run.alter_after_reads("orders", "events", "visits")
    run.pipeline.snapshot()
    assert run.carried == [{"orders", "events", "visits"}]
    run.finish()


@pytest.mark.long
def test_the_log_of_carried_tables_is_removed_after_the_move(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = CarriedRun(mysql_server, tmp_path, monkeypatch)
    run.alter_after_reads("orders")
    run.pipeline.snapshot()
    assert run.carried == [{"orders"}]
    run.change()
    purge(mysql_server)
    run.finish()
    assert run.carried == [{"orders"}, set()]


@pytest.mark.long
def test_tables_whose_log_is_in_pieces_stay_read_if_the_log_of_carried_tables_is_removed(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were read from the same start. A third table is altered before and after that."""
    run = CarriedRun(mysql_server, tmp_path, monkeypatch)
    removed = purge

    def spool() -> None:
        run.same_source = run.reading_source
        run.spool()

    def first() -> None:
        mysql_server.query("ALTER TABLE shop.orders MODIFY note VARCHAR(1000)")
        mysql_server.query("TRUNCATE TABLE shop.events")
        run.change()

    def second() -> None:
        monkeypatch.setattr(test_restarts, "purge", removed)
        spool()
        run.changed = ("orders", "visits")
        mysql_server.query("ALTER TABLE shop.events ADD COLUMN c INT")
        run.change()

    # The server keeps the log until the tables are carried.
    monkeypatch.setattr(test_restarts, "purge", lambda server: None)
    run.acts = {1: [run.change, spool, spool, lambda: run.last.append(first)], 2: [second]}
    run.pipeline.snapshot()
    assert run.carried == [{"orders"}, set()]
    assert run.kept == {"visits": "1"}
    run.finish()


@pytest.mark.long
def test_an_attempt_is_killed_after_the_move(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor goes on with the carried reads. A transaction is prepared before the schema change, and is
    committed after the move."""
    run = CarriedRun(mysql_server, tmp_path, monkeypatch)
    prepare(mysql_server, "early", "INSERT INTO shop.visits VALUES (-2, 'early')")
    run.alter_after_reads("orders")
    run.last.insert(0, lambda: prepare(mysql_server, "late", "INSERT INTO shop.visits VALUES (-1, 'late')"))

    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "tidy", die_after_the_move)
        with pytest.raises(Died):
            run.pipeline.snapshot()
    assert Run.load(run.pipeline.run).generation == 2
    mysql_server.query("XA COMMIT 'early'")
    mysql_server.query("XA COMMIT 'late'")
    run.finish()
    assert len(run.points) == 1
    assert run.carried == [{"orders"}]


class Died(BaseException):
    """Ends an attempt, as the end of its process does: no handler of errors sees it."""


def die_after_the_move(step: Step) -> None:
    if step.manifest.restarts:
        raise Died


class AtOnce:
    """A thread that has ended when it has begun."""

    def __init__(self, target: Callable[[], None], **options: Any) -> None:
        self.start = target

    def is_alive(self) -> bool:
        return False


@pytest.mark.long
def test_the_check_of_each_minute_finds_a_table_that_was_read(
    mysql_server: MysqlServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other tables are still read. The finished read is carried."""
    run = CarriedRun(mysql_server, tmp_path, monkeypatch)
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(read, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(source_watch, "threading", SimpleNamespace(Thread=AtOnce))
    monkeypatch.setattr(run.random, "sample", lambda numbers, count: sorted(numbers, key=last_visits))
    rounds: list[int] = []

    def last_visits(number: int) -> tuple[bool, int]:
        return number < len(run.read_parts) and run.read_parts[number].table == 2, number

    def alter() -> None:
        mysql_server.query("ALTER TABLE shop.orders MODIFY note VARCHAR(1000)")
        rounds.append(len(run.read_parts))
        run.change()

    run.acts = {1: [run.change] * 9 + [alter]}
    run.pipeline.snapshot()
    # The reads of the other table went on in a second round.
    assert rounds == [15]
    assert len(run.read_parts) < 15
    assert run.carried == [{"orders"}]
    assert len(run.points) == 1
    run.finish()


@pytest.mark.parametrize("spools", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_later_attempt_drops_what_a_killed_attempt_kept_on_the_server(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spools: bool
) -> None:
    """The attempt was killed when it had moved the run. No read of the first manifest counts, or those of a table count
    whose log was recorded."""
    server = postgres_factory()
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def act() -> None:
        if not spools:
            server.query("TRUNCATE shop.visits")
        run.alter()

    run.acts = {1: [run.spool if spools else run.change] * 3 + [act]}
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "tidy", die_after_the_move)
        with pytest.raises(Died):
            run.pipeline.snapshot()
    assert run.present.restarts
    assert len(_slots(server)) == 2
    run.pipeline.snapshot()
    slots = _slots(server)
    assert len(slots) == (2 if spools else 1)
    assert min(slots) >= run.points[0].position
    run.finish()


def _slots(server: PostgresServer) -> list[Lsn]:
    """How far each slot has let log go."""
    rows = server.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary")
    return [Lsn.parse(position) for (position,) in rows]
