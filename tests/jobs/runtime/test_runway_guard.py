"""A run warns, and stops, before the source removes the log that the run needs; it never stops without need."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import RunwayTooShort
from airflow_provider_cdc.jobs.runtime import source_watch
from airflow_provider_cdc.jobs.runtime import source_watch as runway_guard
from airflow_provider_cdc.jobs.runtime.source_watch import RunwayGuard
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.source import NeededLog
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory

MIB = 2**20
HOUR = 3600.0


class Guarded:
    """A guard with a clock of its own, which is asked every minute."""

    def __init__(self, stops: bool = True) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.guard = RunwayGuard("snapshot", stops, lambda: self.now, self.lines.append)

    def minutes(self, count: int, needed: Any, seconds_left: float | None) -> None:
        for _ in range(count):
            self.guard.note(needed(self.now))
            self.guard.judge(seconds_left)
            self.now += 60


def aged(seconds: float) -> Any:
    return lambda now: NeededLog(0, 0, max(0.0, seconds - now), limit="binlog_expire_logs_seconds", hint="raise it")


def filling(per_second: float, room: float) -> Any:
    return lambda now: NeededLog(
        int(per_second * now), int(per_second * now), None, int(room - per_second * now), "max"
    )


def test_a_log_that_outlives_the_step_is_no_news() -> None:
    guarded = Guarded()
    guarded.minutes(60, aged(10 * HOUR), 2 * HOUR)
    guarded.minutes(60, filling(100.0, 1e9), 2 * HOUR)
    guarded.minutes(60, lambda now: NeededLog(int(now), 1), 100 * HOUR)
    assert not guarded.lines


def test_it_warns_at_once_and_stops_only_after_the_grace() -> None:
    guarded = Guarded()
    guarded.minutes(30, aged(3 * HOUR), 20 * HOUR)
    assert len(guarded.lines) == 3
    assert "WARNING" in guarded.lines[0]
    assert "in about 3 h 00 min" in guarded.lines[0]
    with pytest.raises(RunwayTooShort, match="in about 2 h 30 min, but the step snapshot needs about 20 h 00 min more"):
        guarded.minutes(1, aged(3 * HOUR), 20 * HOUR)


def test_the_room_of_a_slot_is_divided_by_the_measured_growth() -> None:
    guarded = Guarded()
    guarded.minutes(2, filling(MIB, 3600 * MIB), 2 * HOUR)
    assert len(guarded.lines) == 1
    assert "growing by 3,600.0 MiB per hour, room for 3,540.0 MiB more" in guarded.lines[0]
    with pytest.raises(RunwayTooShort):
        guarded.minutes(31, filling(MIB, 3600 * MIB), 4 * HOUR)


def test_a_stop_needs_a_shortage_that_no_estimate_explains() -> None:
    guarded = Guarded()
    # The log ends first, but the estimate of the time that is left may be wrong by that much.
    guarded.minutes(120, aged(10 * HOUR), 20 * HOUR)
    # Nobody knows how long the step takes.
    guarded.minutes(120, lambda now: NeededLog(0, 0, 60.0), None)
    assert guarded.lines


def test_an_operator_who_makes_the_log_stay_saves_the_run() -> None:
    guarded = Guarded()
    guarded.minutes(29, aged(3 * HOUR), 20 * HOUR)
    guarded.minutes(1, aged(100 * HOUR), 20 * HOUR)
    guarded.minutes(29, aged(3 * HOUR), 20 * HOUR)
    assert len(guarded.lines) > 3


def test_a_run_whose_spool_lets_log_go_needs_no_log_until_its_end() -> None:
    guarded = Guarded()
    guarded.minutes(15, lambda now: NeededLog(0, 0, HOUR, begins=str(now // 600)), 20 * HOUR)
    guarded.lines.clear()
    guarded.minutes(120, lambda now: NeededLog(0, 0, HOUR, begins=str(now // 600)), 20 * HOUR)
    assert not guarded.lines
    # The server keeps the log for less than ten minutes, but the spool is quicker.
    guarded.minutes(120, lambda now: NeededLog(int(now), 0, None, 60, begins=str(now // 600)), 20 * HOUR)
    assert guarded.lines
    # The spool has ended.
    with pytest.raises(RunwayTooShort):
        guarded.minutes(60, lambda now: NeededLog(0, 0, HOUR, begins="9"), 20 * HOUR)


def test_a_log_that_the_server_may_keep_for_good_stops_no_run() -> None:
    guarded = Guarded()
    guarded.minutes(120, lambda now: NeededLog(0, 0, HOUR, certain=False), 20 * HOUR)
    assert guarded.lines


def test_the_option_lets_the_run_go_on() -> None:
    guarded = Guarded(stops=False)
    guarded.minutes(170, aged(3 * HOUR), 20 * HOUR)
    assert len(guarded.lines) == 17


@pytest.mark.slow
def test_mysql_counts_from_the_time_at_which_the_first_needed_file_was_closed(
    mysql_factory: MysqlFactory, tmp_path: Path
) -> None:
    server = mysql_factory({"binlog_expire_logs_seconds": "3600"})
    run = begun(server, tmp_path)
    open_file = needed(run)
    assert open_file.seconds == 3600
    assert not open_file.certain
    server.query("FLUSH BINARY LOGS")
    time.sleep(2.1)
    server.query("INSERT INTO shop.orders VALUES (1)")
    closed = needed(run)
    assert closed.seconds is not None
    assert closed.certain
    assert closed.seconds <= 3598
    assert closed.kept > open_file.kept
    server.query("SET GLOBAL binlog_expire_logs_auto_purge = OFF")
    assert needed(run).seconds is None


def test_postgres_tells_the_room_of_the_slot_and_its_end(postgres_factory: PostgresFactory, tmp_path: Path) -> None:
    server = postgres_factory({"max_slot_wal_keep_size": "64MB"}, 18)
    run = begun(server, tmp_path)
    first = needed(run)
    assert first.room is not None
    server.query("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 20)")
    second = needed(run)
    assert second.room is not None
    assert second.written - first.written > 20_000_000
    assert first.room - second.room > 15_000_000
    assert second.seconds is None
    server.query("ALTER SYSTEM SET idle_replication_slot_timeout = 3600")
    server.query("SELECT pg_reload_conf()")
    while (idle := needed(run).seconds) is None:
        time.sleep(0.1)
    assert 3000 < idle <= 3600
    server.query("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)) FROM generate_series(1, 70)")
    server.query("SELECT pg_switch_wal()")
    server.query("SELECT pg_switch_wal()")
    over = needed(run)
    assert over.room is None or over.room <= 0, over
    run.release()


@pytest.mark.slow
def test_the_watch_of_a_step_stops_it_before_its_log_is_gone(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source_watch, "WATCH_SECONDS", 0.0)
    monkeypatch.setattr(runway_guard, "GRACE_SECONDS", 0.5)
    server = mysql_factory({"binlog_expire_logs_seconds": "2000"})
    pipeline = begun(server, tmp_path)
    server.query("SET GLOBAL binlog_expire_logs_auto_purge = OFF")
    server.query("FLUSH BINARY LOGS")
    server.query("SET GLOBAL binlog_expire_logs_seconds = 120")
    server.query("SET GLOBAL binlog_expire_logs_auto_purge = ON")
    run = Run.load(pipeline.run)
    source = pipeline.source.of_run(run.manifest.identity, run.manifest.initial)
    spark: Any = None
    watch = source_watch.SourceWatch(Step(spark, run, source))

    def look_on() -> None:
        while True:
            watch.poll(seconds_left=10 * HOUR)
            time.sleep(0.05)

    with pytest.raises(RunwayTooShort, match="binlog_expire_logs_seconds = 120 s"):
        look_on()
    assert "WARNING: the source may remove the log" in capfd.readouterr().out


def begun(server: MysqlServer | PostgresServer, folder: Path) -> Pipeline:
    """A run after lock_and_record."""
    server.query("CREATE SCHEMA shop")
    server.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY)")
    if isinstance(server, PostgresServer):
        server.query("ALTER TABLE shop.orders REPLICA IDENTITY FULL")
    spark: Any = None
    run = Pipeline(spark, settings_of(server), folder.as_uri(), ["shop.*"])
    run.record()
    return run


def needed(run: Pipeline) -> NeededLog:
    found = run.source.needed_log(Run.load(run.run).manifest.identity, [])
    assert found is not None
    return found
