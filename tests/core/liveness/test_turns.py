"""Of runs that share tables, one goes on and the others wait; a dead run holds up nobody."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.liveness import (
    FOLDER,
    NOT_KNOWN,
    DagRunNames,
    DagRunState,
    TableTurn,
    Turns,
    note_dag_run,
)
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import StorageUnavailable
from harness.s3_server import s3_environment
from tests.runs import commit, manifest_of, publish

RUNNING, FAILED = DagRunState(True, False, "is running"), DagRunState(True, True, "is failed")


@pytest.fixture
def lake(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.long)])
def any_lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    if request.param == "s3":
        for name, value in s3_environment(request.getfixturevalue("s3")).items():
            monkeypatch.setenv(name, value)
    return Storage(tmp_path.as_uri() if request.param == "disk" else f"s3://lake/{tmp_path.name}")


class Runs:
    """Runs of one target, and Airflow's states of their DAG runs."""

    def __init__(self, lake: Storage) -> None:
        self.lake = lake
        self.states: dict[str, DagRunState] = {}

    def turn(self, number: int, *tables: str) -> TableTurn:
        return TableTurn(f"202601{number:02}T000000Z-00000000", tables or ("s.t",), DagRunNames("d", str(number)))

    @property
    def turns(self) -> Turns:
        return Turns(self.lake.folder("_runs"), self.lake.uri, lambda names: self.states.get(names.dag_run_id, RUNNING))

    def begin(self, turn: TableTurn, with_dag_run: bool = True) -> Run:
        tables = [Table(TableName.parse(name), (Column("id", "int", False),), ("id",)) for name in turn.tables]
        entries = tuple(RunTable(table, "watermark", "") for table in tables)
        run = Run.create(manifest_of(self.lake, turn.run_id, tables=entries))
        if with_dag_run:
            note_dag_run(run.folder, turn.dag_run)
        return run

    def waits_for(self, turn: TableTurn) -> list[str]:
        return [other.run_id[6:8] for other in self.turns.before(self.turns.take(turn), turn)]


@pytest.mark.slow
def test_runs_that_share_tables_are_never_under_way_together(any_lake: Storage) -> None:
    runs, rng = Runs(any_lake), random.Random(3)
    under_way: set[str] = set()
    seen: list[str] = []
    guard = threading.Lock()

    def work(number: int) -> None:
        turns = runs.turns
        turn = runs.turn(number, *rng.sample(["s.a", "s.b", "s.c", "s.d"], 2))
        for _ in range(2_000):
            # A task is tried again if the store fails.
            with suppress(StorageUnavailable):
                if not turns.before(turns.take(turn), turn):
                    break
            time.sleep(0.02)
        with guard:
            assert not under_way & {*turn.tables}
            under_way.update(turn.tables)
        run = runs.begin(turn)
        with guard:
            under_way.difference_update(turn.tables)
            seen.append(turn.run_id)
            publish(run)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(1, 13)))
    assert len(seen) == 12
    assert len(any_lake.files(f"_runs/{FOLDER}")) <= 4, "the turns of ended runs go"


def test_a_run_waits_for_those_before_it_that_share_a_table(lake: Storage) -> None:
    runs = Runs(lake)
    first, second, third = runs.turn(1, "s.a", "s.b"), runs.turn(2, "s.b", "s.c"), runs.turn(3, "s.c")
    assert [runs.waits_for(turn) for turn in (first, second, third)] == [[], ["01"], ["02"]]
    run = runs.begin(first)
    assert runs.waits_for(second) == ["01"]
    publish(run)
    assert [runs.waits_for(turn) for turn in (second, third)] == [[], ["02"]]
    # A run that gave up goes to the end of the queue if it is cleared.
    runs.turns.give_up(runs.turns.take(second), second)
    assert runs.waits_for(third) == []
    assert runs.waits_for(second) == ["03"]


def test_a_dead_run_holds_up_nobody(lake: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(lake)
    dead, begun, later = runs.turn(1), runs.turn(2), runs.turn(3)
    for turn in (dead, begun, later):
        runs.turns.take(turn)
    runs.begin(begun)
    assert runs.waits_for(later) == ["01", "02"]
    runs.states["1"] = FAILED
    assert runs.waits_for(later) == ["02"]
    # Airflow does not know the DAG run: only a week of silence tells that its run is dead.
    runs.states["2"] = NOT_KNOWN
    assert runs.waits_for(later) == ["02"]
    monkeypatch.setattr(retention, "LIFELESS", timedelta(seconds=-1))
    assert runs.waits_for(later) == []
    # The run that was taken for dead is cleared: now it is its turn to wait.
    runs.states.clear()
    assert "03" in runs.waits_for(dead)


def test_a_run_without_a_turn_is_seen_by_its_manifest(lake: Storage) -> None:
    runs = Runs(lake)
    runs.begin(runs.turn(1))
    runs.begin(runs.turn(4, "s.other"))
    old = runs.begin(runs.turn(5), with_dag_run=False)
    mine = runs.turn(2)
    assert runs.waits_for(mine) == ["01", "05"]
    runs.states["1"] = FAILED
    assert runs.waits_for(mine) == ["05"]
    commit(old)
    assert runs.waits_for(mine) == ["05"]
    publish(old)
    assert runs.waits_for(mine) == []


def test_a_waiting_run_that_another_deployment_took_for_dead_has_waited_too_long(lake: Storage) -> None:
    runs = Runs(lake)
    first, second = runs.turn(1), runs.turn(2)
    number, _ = runs.turns.take(first), runs.turns.take(second)
    runs.states["1"] = FAILED
    assert runs.waits_for(second) == []
    assert runs.turns.waited(number) == timedelta.max
