"""Two concurrent tries of one step, or of two steps: the copy is exact and complete, whichever is faster."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.errors import CdcError, FileDamaged
from airflow_provider_cdc.jobs.consolidate import step as consolidate
from airflow_provider_cdc.jobs.consolidate.stage import stage
from airflow_provider_cdc.sinks import parquet
from tests.interrupting import Interrupted
from tests.jobs.conftest import MakeRunner, Runner
from tests.jobs.history_source import NAMES, HistorySource, at, random_history, tables
from tests.jobs.turns import Turns
from tests.seeds import seeds

LENGTH, INITIAL = 40, 15
SNAPSHOT, EXTRACT, PUBLISH = range(3)


class SeenApart(HistorySource):
    """Every read sees the tables at another position, so two tries read different rows."""

    def reader(self, table: Any, consistency: str, lock: Any) -> Any:
        self.seed += 1
        return super().reader(table, consistency, lock)


@pytest.fixture
def source() -> HistorySource:
    return SeenApart(random_history(random.Random(5), LENGTH), 5)


def begin(here: MakeRunner, source: HistorySource, done: int) -> Runner:
    runner = here(source, INITIAL)
    for step in runner.steps()[:done]:
        step()
    return runner


def race(runner: Runner, monkeypatch: pytest.MonkeyPatch, seed: int, steps: list[int], pause: float) -> list[Any]:
    """What each of some steps found, all of them begun at the same time."""
    turns = Turns(seed, pause)
    with monkeypatch.context() as patch:
        turns.patch(patch)
        # Files are moved in other threads, which take no turns.
        patch.setattr(parquet, "_MOVERS", 1)
        patch.setattr(parquet, "ThreadPoolExecutor", _Inline)
        return turns.run([runner.steps()[step] for step in steps])


class _Inline:
    def __init__(self, workers: int) -> None: ...

    def __enter__(self) -> _Inline:
        return self

    def __exit__(self, *error: object) -> None: ...

    def map(self, work: Any, orders: Any) -> list[Any]:
        own = list(orders)
        # Those of a set come in another order in every process.
        done = {index: work(own[index]) for index in sorted(range(len(own)), key=lambda index: str(own[index]))}
        return [done[index] for index in range(len(own))]


def check(runner: Runner) -> None:
    """The copy is exact in every folder that readers see, and matches its record."""
    assert runner.published() == runner.expected()
    found = Run.load(runner.run).result_of(ConsolidateResult)
    for name in NAMES:
        visible = list(Path(runner.target.path(name)).rglob("*.parquet"))
        assert {path.parent.name for path in visible} == {"snapshot=20260101T000000Z-00000000"}
        assert sum(pq.read_metadata(path).num_rows for path in visible) == found.rows[name]
    assert not list(Path(runner.target.path()).rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "pause"), [(0, 0.0), (1, 0.0), (2, 0.05)])
@pytest.mark.parametrize("step", [SNAPSHOT, EXTRACT, PUBLISH])
def test_two_tries_of_a_step(
    step: int, seed: int, pause: float, here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = begin(here, source, step)
    first, second = race(runner, monkeypatch, seed, [step, step], pause)
    assert first == second == Run.load(runner.run).steps[["snapshot", "extract_delta", "consolidate"][step]]
    for later in runner.steps()[step + 1 :]:
        later()
    check(runner)


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0))
@pytest.mark.parametrize("late", [SNAPSHOT, EXTRACT])
def test_a_step_that_wakes_up_beside_later_ones(
    late: int, seed: int, here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The try that was presumed dead began before its step was done, and goes on while later steps run."""
    runner = begin(here, source, late)
    own = runner.steps()[late]
    turns = Turns(seed, 0.1)

    def others() -> list[Any]:
        return [step() for step in runner.steps()[late:]]

    with monkeypatch.context() as patch:
        turns.patch(patch)
        patch.setattr(parquet, "ThreadPoolExecutor", _Inline)
        zombie, found = turns.run([own, others])
    assert not isinstance(found, Exception), found
    assert zombie == found[0]
    check(runner)


@pytest.mark.slow
def test_an_error_does_not_matter_if_another_try_has_committed(
    here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A try fails while it stages files, because another one commits at that moment, and is killed before it publishes.
    The first one completes this commit."""
    runner = begin(here, source, PUBLISH)
    publish = runner.steps()[PUBLISH]

    def killed(*arguments: Any) -> None:
        raise Interrupted

    def overtaken(step: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(consolidate, "stage", stage)
            patch.setattr(consolidate, "publish", killed)
            with pytest.raises(Interrupted):
                publish()
        raise FileDamaged("a file is gone")

    monkeypatch.setattr(consolidate, "stage", overtaken)
    publish()
    assert "has taken the run further" in capsys.readouterr().out
    check(runner)
    # Nobody has gone on: the error counts.
    other = begin(partial(here, run_id="20260102T000000Z-00000000"), source, PUBLISH)
    monkeypatch.setattr(consolidate, "stage", lambda step: (_ for _ in ()).throw(FileDamaged("a file is gone")))
    with pytest.raises(FileDamaged):
        other.steps()[PUBLISH]()


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_a_try_of_a_beginning_that_was_given_up_never_publishes(
    seed: int, here: MakeRunner, source: HistorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lock_and_record starts over while consolidate still works for the first start: only one of them counts."""
    runner = begin(here, source, 2)
    first = Run.load(runner.run)
    anew = replace(
        first.manifest,
        initial_position=str(at(INITIAL + 3)),
        created_at="2026-01-01T00:00:07+00:00",
        tables=tuple(RunTable(table, "lock" if table.keyless else "watermark", "") for table in tables()),
    )
    turns = Turns(seed, 0.1)
    with monkeypatch.context() as patch:
        turns.patch(patch)
        patch.setattr(parquet, "ThreadPoolExecutor", _Inline)
        published, begun = turns.run([runner.steps()[PUBLISH], lambda: Run.create(anew, after=first)])
    if isinstance(begun, Run):
        assert isinstance(published, CdcError)
        assert not list(Path(runner.target.path()).rglob("snapshot=*/*"))
        source.initial = INITIAL + 3
        runner.all()
    else:
        assert isinstance(begun, RunRestarted)
        assert published == Run.load(runner.run).steps["consolidate"]
    check(runner)
