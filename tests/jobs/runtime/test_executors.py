"""A Spark application that has lost all its executors for good ends, and one that still gets executors does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.compat import executor_count
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime import tasks
from airflow_provider_cdc.jobs.runtime.tasks import CHECK_SECONDS, LOST_SECONDS, ExecutorWatch

Watch = Callable[[int, float], None]


def watching(*, gives_up: bool = True) -> Watch:
    """Return a function that gives the application so many executors, and looks for so many seconds."""
    now, count = [0.0], [0]
    watch = ExecutorWatch(lambda: count[0], gives_up=gives_up, clock=lambda: now[0])

    def look(running: int, seconds: float) -> None:
        count[0], end = running, now[0] + seconds
        while now[0] < end:
            watch.poll("snapshot")
            now[0] += CHECK_SECONDS

    return look


def test_a_loss_of_all_executors_ends_the_step_and_a_gap_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    look = watching()
    look(2, 60)
    for _ in range(3):
        look(0, LOST_SECONDS - CHECK_SECONDS)
        look(1, CHECK_SECONDS)
    assert "has lost all its executors and waits for the cluster, for 1 min" in capsys.readouterr().out
    with pytest.raises(TransientError, match="lost all executors 5 min 00 s ago"):
        look(0, LOST_SECONDS + CHECK_SECONDS)


def test_a_wait_for_the_first_executor_and_a_busy_queue_are_only_reported(capsys: pytest.CaptureFixture[str]) -> None:
    watching()(0, 10 * LOST_SECONDS)
    assert "has no executor yet" in capsys.readouterr().out
    look = watching(gives_up=False)
    look(1, 60)
    look(0, 10 * LOST_SECONDS)


def test_an_application_without_work_may_have_no_executors() -> None:
    now, count = [0.0], [1]
    watch = ExecutorWatch(lambda: count[0], gives_up=True, clock=lambda: now[0])
    watch.poll("snapshot")
    count[0] = 0
    for _ in range(5):
        # No job runs, so nobody looks.
        now[0] += LOST_SECONDS
        watch.poll("extract_delta")


def test_spark_on_this_machine_needs_no_executors(spark: SparkSession) -> None:
    assert executor_count(spark.sparkContext) == 0
    tasks.check_executors(spark.sparkContext, "snapshot")
    assert spark.sparkContext not in tasks._watches
