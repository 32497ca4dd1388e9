"""Errors of tasks come home as what they are, terminal ones at once, and others only after further tries."""

from __future__ import annotations

import gc
import os
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.errors import LockNotGranted, SchemaChanged, TransientError
from airflow_provider_cdc.jobs import tasks
from airflow_provider_cdc.jobs.tasks import run_tasks


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "PAUSE_SECONDS", 0.01)


# The functions that tasks run are made inside the tests: what is local travels to the workers by value.


def test_results_come_in_the_order_of_the_orders_and_each_is_told_once(spark: Any) -> None:
    told: list[int] = []
    assert run_tasks(spark, "square", list(range(7)), lambda number: number * number, told.append) == [
        number * number for number in range(7)
    ]
    assert sorted(told) == [number * number for number in range(7)]


def test_nothing_to_do_is_done(spark: Any) -> None:
    assert run_tasks(spark, "nothing", [], lambda number: number) == []


def test_a_terminal_error_stops_the_job_and_keeps_its_words(spark: Any, tmp_path: Path) -> None:
    def work(number: int) -> int:
        if number == 1:
            raise SchemaChanged("a column was added", where="s.t at log:4", hint="run again")
        time.sleep(0.4)
        (tmp_path / str(number)).touch()
        return number

    orders = [0, 1, *range(2, 60)]
    with pytest.raises(SchemaChanged) as caught:
        run_tasks(spark, "stop", orders, work)
    assert str(caught.value) == "s.t at log:4: a column was added\n  Hint: run again"
    time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 30


@pytest.mark.parametrize("error", [LockNotGranted("busy"), ValueError("what else")])
def test_what_may_pass_is_tried_again_and_only_that(spark: Any, tmp_path: Path, error: Exception) -> None:
    def work(number: int) -> int:
        with (tmp_path / str(number)).open("a") as file:
            file.write("x")
        if number == 2 and (tmp_path / "2").stat().st_size < 3:
            raise error
        return number

    assert run_tasks(spark, "again", list(range(4)), work) == [0, 1, 2, 3]
    assert [(tmp_path / str(number)).stat().st_size for number in range(4)] == [1, 1, 3, 1]


def test_what_does_not_pass_is_given_up(spark: Any) -> None:
    def work(number: int) -> int:
        raise LockNotGranted("busy", where="s.t")

    with pytest.raises(LockNotGranted, match=r"s\.t: busy"):
        run_tasks(spark, "given up", [1, 2], work)


def test_an_error_that_is_none_of_ours_is_named_with_its_order(spark: Any) -> None:
    def work(number: int) -> float:
        return 1 / 0

    with pytest.raises(TransientError, match="a Spark task for 7: ZeroDivisionError: division by zero"):
        run_tasks(spark, "bug", [7], work)


def test_a_worker_that_dies_is_reported_in_few_words(spark: Any) -> None:
    with pytest.raises(TransientError, match="Spark gave the job up") as caught:
        run_tasks(spark, "death", [1], lambda number: os._exit(9))
    assert len(str(caught.value)) < 800
    assert "\tat " not in str(caught.value)
    assert run_tasks(spark, "life", [1], lambda number: number) == [1]


def test_modules_are_kept_out_of_the_garbage_collection_after_each_task_and_garbage_is_not(spark: Any) -> None:
    def work(number: int) -> tuple[int, list[int]]:
        class Ring:
            pass

        # Whoever comes later in the same worker sees what became of the garbage of those before.
        rings = vars(gc).setdefault("rings", [])
        alive = [at for at, reference in enumerate(rings) if reference() is not None]
        ring = Ring()
        ring.itself = ring  # type: ignore[attr-defined]
        rings.append(weakref.ref(ring))
        return gc.get_freeze_count(), alive

    run_tasks(spark, "the first tasks of all workers", list(range(8)), work)
    found = run_tasks(spark, "later tasks", list(range(8)), work)
    assert min(frozen for frozen, _ in found) > 10_000
    assert not any(alive for _, alive in found)
