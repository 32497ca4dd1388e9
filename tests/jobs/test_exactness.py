"""Whatever the history, and whenever its chunks are read, the published tables are those of the initial position."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_cdc.jobs.consolidate import stage
from airflow_provider_cdc.jobs.extract_delta import read_window
from airflow_provider_cdc.jobs.snapshot import read
from tests.jobs.conftest import MakeRunner
from tests.jobs.history_source import HistorySource, random_history
from tests.seeds import seeds


def make_source(seed: int, length: int = 60) -> tuple[HistorySource, int]:
    rng = random.Random(seed)
    source = HistorySource(random_history(rng, length), seed, segment_length=rng.choice([3, 7, 20, 1000]))
    return source, rng.randrange(length // 3, length)


@pytest.mark.slow
@pytest.mark.parametrize("block", seeds(0))
def test_random_histories(here: MakeRunner, block: int) -> None:
    for seed in range(block * 10, block * 10 + 6):
        source, initial = make_source(seed)
        runner = here(source, initial, name=f"lake-{seed}")
        runner.all()
        assert runner.published() == runner.expected(), f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(1))
def test_random_histories_on_spark(on_spark: MakeRunner, seed: int) -> None:
    source, initial = make_source(seed, 150)
    runner = on_spark(source, initial)
    runner.all()
    assert runner.published() == runner.expected()


@pytest.mark.slow
def test_tasks_that_run_twice_change_nothing(here: MakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with speculation: the other try reads after the bound, and leaves the last record of its part."""

    def twice(
        spark: Any, title: str, orders: Sequence[Any], work: Any, done: Any = lambda result: None, **how: Any
    ) -> list[Any]:
        first = []
        for order in orders:
            first.append(work(order))
            done(first[-1])
            if title == "read chunks":
                again = copy.copy(work.source)
                again.late = True
                replace(work, source=again)(order)
            else:
                work(order)
        return first

    for seed in range(5):
        source, initial = make_source(seed)
        source.end = initial + (len(source.history.entries) - initial) // 2
        runner = here(source, initial, name=f"lake-{seed}")
        for module in (read, read_window, stage):
            monkeypatch.setattr(module, "run_tasks", twice)
        runner.all()
        assert runner.published() == runner.expected(), f"seed {seed}"
