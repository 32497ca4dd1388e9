"""The driver follows the acts of operators, whatever fails beside it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import LoginRefused, RunStopped
from airflow_provider_cdc.jobs import spool as spooler_module
from airflow_provider_cdc.jobs.runtime import controller, turn
from airflow_provider_cdc.jobs.runtime.controller import Measured, Meter, controlled, measure
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.reread import ReadAgain
from airflow_provider_cdc.jobs.spool import Spooler
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history
from tests.soon import soon


@pytest.fixture
def step(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> Step:
    monkeypatch.setattr(controller, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(controller, "_TICK_SECONDS", 0.02)
    monkeypatch.setattr(turn, "READ_SECONDS", 0.0)
    runner = here(HistorySource(random_history(random.Random(1), 10), 1), 5)
    source: Any = runner.source
    spark: Any = None
    return Step(spark, Run.load(runner.run), source)


def test_an_unexpected_error_does_not_leave_a_run_paused(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> str:
        act_on(step.folder, "resume", "ann")
        raise ZeroDivisionError

    monkeypatch.setattr(controller, "held", failing)
    act_on(step.folder, "pause", "ann")
    with controlled("snapshot", step.run, step.source, step.token):
        assert True, "the run was resumed"


def test_what_an_earlier_try_published_before_its_end_does_not_stay(
    step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CHECKED_SECONDS", 0.0)
    with controlled("snapshot", step.run, step.source, step.token):
        # For example because a number of the source was above its threshold. Then this try was killed.
        effective.publish(step.folder, effective.Effective(effective.HOLD))
        soon(lambda: effective.read(step.folder), effective.UNLIMITED)


def test_a_stop_ends_a_step_that_waits_for_its_spool(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spooler_module, "POLL_SECONDS", 0.0)
    reading, ended = threading.Event(), threading.Event()

    def take(self: Spooler) -> None:
        reading.set()
        while not ended.is_set():
            # The wait begins once the stop is published.
            turn.ReadTurn(step.folder).wait()

    def work() -> None:
        spooler.start()
        reading.wait()
        act_on(step.folder, "stop", "ann")
        spooler.close(wait=True)

    monkeypatch.setattr(Spooler, "poll", take)
    spooler = Spooler(step)
    with pytest.raises(RunStopped), controlled("snapshot", step.run, step.source, step.token):
        work()
    ended.set()
    effective.publish(step.folder, effective.UNLIMITED)
    spooler._thread.join()


def test_the_last_chunk_of_a_part_counts_for_the_limits(here: MakeRunner) -> None:
    runner = here(HistorySource(random_history(random.Random(1), 10), 1), 5)
    runner.steps()[0]()
    worker = turn._workers[runner.run.uri]
    assert worker.ended >= worker.began > 0, "each part ends with its last chunk"


def test_a_number_that_is_none_counts_as_not_measured() -> None:
    class Broken:
        load_signals = frozenset({"threads_running"})

        def load(self, signals: object) -> Any:
            return {"threads_running": None}

    broken: Any = Broken()
    assert "TypeError" in measure(broken, {"threads_running": 1.0}).failed


def test_after_a_refused_login_the_governor_does_not_log_in_again() -> None:
    asked: list[object] = []

    class Refusing:
        def load(self, signals: object) -> Any:
            asked.append(signals)
            raise LoginRefused("another password")

    refusing: Any = Refusing()
    meter = Meter(refusing)
    found: list[Measured] = []
    while not found:
        found += [one for one in [meter.measured({"threads_running": 1.0})] if one]
    assert found == [Measured(failed="another password", is_last=True)]
    assert [meter.measured({"threads_running": 1.0}) for _ in range(3)] == [None, None, None]
    assert len(asked) == 1


def test_a_task_that_reads_rows_again_holds_no_session_while_it_waits_and_leaves(step: Step) -> None:
    class Kept:
        @contextmanager
        def one_session(self) -> Iterator[Any]:
            yield self

        def close_idle(self) -> None:
            effective.publish(step.folder, effective.Effective(limited=True))
            noted.append(True)

    noted: list[bool] = []
    kept: Any = Kept()
    effective.publish(step.folder, effective.Effective(effective.PAUSE))
    with ReadAgain(step.staging, kept, (), (), "", 0).session() as task:
        task((0, 1))
        assert noted == [True]
        assert step.folder.files(effective.READERS)
    assert not step.folder.files(effective.READERS)
