"""Runs on a history in one target, and a cleaner for this target."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.cleaning import cleaner
from airflow_provider_cdc.cleaning.cleaner import Cleaner
from airflow_provider_cdc.cleaning.findings import CleaningReport
from airflow_provider_cdc.core.liveness import NOT_KNOWN, DagRunNames, DagRunState, note_dag_run
from airflow_provider_cdc.core.storage.folder import Storage, clock_of, entries
from airflow_provider_cdc.jobs.runtime.step import sink_of
from harness.s3_server import s3_environment
from tests.jobs.conftest import MakeRunner, Runner, _plain, here  # noqa: F401
from tests.jobs.history_run import begin_run
from tests.jobs.history_source import NAMES, HistorySource, Row, random_history


def night_id(number: int) -> str:
    return f"202601{number:02}T000000Z-00000000"


def _state(state: str) -> DagRunState:
    return DagRunState(True, state in ("failed", "success"), f"is {state}") if state else NOT_KNOWN


@dataclass
class Target:
    """The runs of one target.

    ``states`` has Airflow's states of DAG runs, by the ids of the DAG runs; a DAG run has the id of its night.
    """

    make: MakeRunner
    source: HistorySource
    lake: Storage
    later: timedelta = timedelta(days=8)
    states: dict[str, str] = field(default_factory=dict)

    def night(self, number: int, *, steps: int = 3, base: int = 0, dag_run: bool = False, **more: Any) -> Runner:
        """Begin the run of a night, and work through its first steps."""
        self.source.end = 5 * number
        bases = dict.fromkeys(NAMES, night_id(base)) if base else {}
        # The runner of the jobs' tests begins a run in a folder of its own; only its patches are needed.
        runner = self.make(self.source, 5 * number, run_id=night_id(number), name=f"unused-{number}")
        run = begin_run(self.lake, self.source, 5 * number, night_id(number), bases, **more)
        if dag_run:
            note_dag_run(run, DagRunNames("dag", night_id(number)))
        runner = replace(runner, target=self.lake, run=run)
        for step in runner.steps()[:steps]:
            step()
        return runner

    def cleaner(self, **more: Any) -> Cleaner:
        fields: Mapping[str, Any] = {
            "lake": self.lake,
            "scratch": self.lake.folder("_runs"),
            "source": self.source,
            "source_conn_id": "",
            "sink_of": sink_of,
            "state_of": lambda names: _state(self.states.get(names.dag_run_id, "")),
        }
        return Cleaner(**{**fields, **more})

    def clean(self, *, dry_run: bool = False, **more: Any) -> CleaningReport:
        with self.clock():
            return self.cleaner(**more).clean(dry_run=dry_run)

    @contextmanager
    def clock(self) -> Iterator[None]:
        """Let cleaners see this target's time in the block. Do not enter it in several threads at once."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cleaner, "clock_of", self._clock)
            yield

    def _clock(self, folder: Storage) -> datetime:
        return clock_of(folder) + self.later

    def runs(self) -> list[int]:
        """The nights that have a folder. (An object store may list empty folders.)"""
        scratch = self.lake.folder("_runs")
        on_disk = scratch.uri.startswith("file:")
        return [int(one[6:8]) for one in scratch.folders() if on_disk or entries(scratch.folder(one), recursive=True)]

    def published(self) -> list[Counter[Row]]:
        """The rows of each table, as readers find them through ``_latest.json``."""
        found = []
        for name in NAMES:
            folder = self.lake.at(self.lake.read_json(f"{name}/_latest.json")["path"])
            files = [pq.read_table(folder.path(file), filesystem=folder.filesystem) for file in folder.files()]
            rows = pa.concat_tables(files).to_pylist()
            found.append(Counter(tuple(_plain(value) for value in row.values()) for row in rows))
        return found

    def copies(self, name: str = NAMES[0]) -> list[int]:
        folders = [one.rpartition("snapshot=")[2] for one in self.lake.folders(name) if "/snapshot=" in one]
        return [int(folder[6:8]) for folder in folders if self.lake.files(f"{name}/snapshot={folder}")]


@pytest.fixture
def target(tmp_path: Any, here: MakeRunner) -> Target:  # noqa: F811
    """A target on a disk."""
    source = HistorySource(random_history(random.Random(5), 60), 5, segment_length=20)
    return Target(here, source, Storage((tmp_path / "lake").as_uri()))


@pytest.fixture
def target_on_s3(target: Target, s3: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Target:
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    return replace(target, lake=Storage(f"s3://lake/{tmp_path.name}"))


AnyTarget = Callable[[str], Target]


@pytest.fixture
def target_on(request: pytest.FixtureRequest) -> AnyTarget:
    """Returns the target on a disk or on S3."""
    return lambda store: request.getfixturevalue("target" if store == "disk" else "target_on_s3")
