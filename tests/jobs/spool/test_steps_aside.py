"""What would be no problem without the spool is no problem with it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.errors import LogGone, RunStopped, ValueNotRepresentable
from airflow_provider_cdc.jobs import spool as spooler_module
from airflow_provider_cdc.jobs.log.read_segment import ReadSegment, SegmentRecord
from airflow_provider_cdc.jobs.runtime import controller
from airflow_provider_cdc.jobs.runtime.turn import ReadTurn
from airflow_provider_cdc.sources.api.window import LogSegment
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory
from tests.jobs.spool.spooled_run import SpooledRun, make_tables, purge, rotate


@pytest.fixture
def dated(postgres_factory: PostgresFactory) -> PostgresServer:
    """A server whose table without a key has a date."""
    server = postgres_factory()
    make_tables(server)
    server.query("ALTER TABLE shop.events ADD COLUMN c DATE DEFAULT '2020-01-01'")
    return server


INFINITE = "INSERT INTO shop.events VALUES (7, 'x', 'infinity')"
GONE = "DELETE FROM shop.events WHERE a = 7"


@pytest.mark.slow
def test_a_value_that_came_and_went_in_one_piece_does_not_matter(
    dated: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SpooledRun(dated, tmp_path, monkeypatch)
    spooler = run.spooler()
    dated.query(INFINITE)
    dated.query(GONE)
    run.change()
    assert spooler.take()
    assert len(run.links()) == 1
    run.between = run.change
    run.finish()


@pytest.mark.slow
@pytest.mark.parametrize("where", [{}, {"shop.events": "b <> 'z'"}])
def test_a_value_that_came_in_one_piece_and_went_later_ends_the_spool_only(
    dated: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, str]
) -> None:
    run = SpooledRun(dated, tmp_path, monkeypatch, where=where, on_table_error="skip")
    spooler = run.spooler()
    assert spooler.take()
    dated.query(INFINITE)
    with pytest.raises(ValueNotRepresentable):
        spooler.take()
    dated.query(GONE)
    assert len(run.links()) == 1
    run.between = run.change
    run.finish()


@pytest.mark.slow
def test_the_spool_leaves_a_slot_to_the_exported_snapshot(
    postgres_factory: PostgresFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    server = postgres_factory({"max_replication_slots": "2"})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    monkeypatch.setattr(spooler_module, "PIECE_BYTES", 1)
    spooler = run.spooler()

    def between() -> None:
        run.change(3)
        spooler.poll()
        assert not run.links()

    run.between = between
    run.finish()
    assert capfd.readouterr().out.count("spool: no piece for now: fewer than 2 replication slots are free") == 1


def test_a_run_that_is_stopped_does_not_wait_for_the_piece_under_way(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_factory()
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    monkeypatch.setattr(controller, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(spooler_module, "POLL_SECONDS", 0.01)
    spooler = run.spooler()
    step = spooler._step
    reading = threading.Event()

    def look() -> None:
        reading.set()
        # The reader of a piece waits like this after each batch, and forever if the run is stopped.
        while True:
            ReadTurn(step.folder).wait()

    def end_spool_after_a_stop() -> None:
        with controller.controlled("snapshot", step.run, step.source, step.token):
            spooler.start()
            assert reading.wait(60)
            act_on(step.folder, "stop", "ann")
            spooler.close(wait=True)

    monkeypatch.setattr(spooler, "poll", look)
    with pytest.raises(RunStopped):
        end_spool_after_a_stop()


@pytest.mark.slow
def test_a_step_that_began_before_the_log_was_let_go_bounds_its_reads_after_a_restart(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    spooler = run.spooler()
    unspooled = run.pipeline.source.of_run(run.manifest.identity, run.manifest.initial)
    for _ in range(2):
        rotate(server)
        run.change()
        assert spooler.take()
        purge(server)
    server.restart()
    assert spooler._step.source.bound_reads().incarnation
    with pytest.raises(LogGone):
        unspooled.bound_reads()
    run.finish()


@pytest.mark.slow
def test_the_reads_do_not_wait_for_a_long_piece_that_spark_reads_faster(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_tables(server)
    run = SpooledRun(server, tmp_path, monkeypatch)
    for _ in range(3):
        run.change()
        rotate(server)
    monkeypatch.setattr(spooler_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(spooler_module, "FINISH_SECONDS", 0.0)
    reading, go_on = threading.Event(), threading.Event()
    read = ReadSegment.read

    def slow(work: ReadSegment, segment: LogSegment) -> SegmentRecord:
        reading.set()
        assert go_on.wait(60)
        return read(work, segment)

    spooler = run.spooler()
    monkeypatch.setattr(spooler, "poll", spooler.take)
    with monkeypatch.context() as patch:
        patch.setattr(ReadSegment, "read", slow)
        spooler.start()
        assert reading.wait(60)
        run.pipeline.snapshot()
        spooler.close(wait=True)
        assert not run.links()
    run.pipeline.extract_delta()
    # The piece comes too late: extract_delta has read this log.
    go_on.set()
    spooler._thread.join()
    assert not run.links()
    run.finish()
