"""Fixtures for runs of the jobs on a history, in this process or on Spark."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.parquet import writer
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.apply import rewind, touched_rows
from airflow_provider_cdc.jobs.certificate import build, scrub
from airflow_provider_cdc.jobs.consolidate import rewound_files, stage
from airflow_provider_cdc.jobs.consolidate import step as consolidate
from airflow_provider_cdc.jobs.extract_delta import change_feed, read_window
from airflow_provider_cdc.jobs.extract_delta import change_feed as feed_slices
from airflow_provider_cdc.jobs.extract_delta import step as extract_delta
from airflow_provider_cdc.jobs.log import read_segment
from airflow_provider_cdc.jobs.roll_forward import merge, task
from airflow_provider_cdc.jobs.roll_forward import merge as image_buffer
from airflow_provider_cdc.jobs.roll_forward import plan as forward
from airflow_provider_cdc.jobs.roll_forward import task as roll
from airflow_provider_cdc.jobs.runtime import step, verify_files
from airflow_provider_cdc.jobs.snapshot import read
from airflow_provider_cdc.jobs.snapshot import step as snapshot
from tests.jobs import history_source
from tests.jobs.history_run import begin_run
from tests.jobs.history_source import NAMES, SETTINGS, HistorySource, Row


@dataclass
class Runner:
    """Runs the steps of one run on a history."""

    spark: Any
    target: Storage
    monkeypatch: pytest.MonkeyPatch
    source: HistorySource
    run: Storage

    def steps(self) -> list[Callable[[], Any]]:
        jobs = snapshot.snapshot, extract_delta.extract_delta, consolidate.consolidate
        return [partial(job, self.spark, self.run, SETTINGS) for job in jobs]

    def all(self) -> Any:
        for one in self.steps():
            found = one()
        return found

    def published(self) -> list[Counter[Row]]:
        """The rows of each table, as readers find them through ``_latest.json``."""
        return [self.rows(name) for name in NAMES]

    def rows(self, name: str) -> Counter[Row]:
        folder = Storage(self.target.read_json(f"{name}/_latest.json")["path"])
        files = [pq.read_table(folder.path(file)) for file in folder.files()]
        assert all(file.schema.equals(files[0].schema) for file in files)
        assert files[0].schema.equals(history_source.SCHEMAS[NAMES.index(name)])
        rows = pa.concat_tables(files).to_pylist()
        return Counter(tuple(_plain(value) for value in row.values()) for row in rows)

    def expected(self) -> list[Counter[Row]]:
        return self.source.history.state(self.source.initial)


def _plain(value: Any) -> Any:
    return str(value) if type(value).__name__ == "Decimal" else value


MakeRunner = Callable[..., Runner]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRunner:
    """Makes runs whose tasks are called in this process, with files and row groups of a few rows."""

    def run_here(
        spark: Any,
        title: str,
        orders: Sequence[Any],
        work: Any,
        done: Any = lambda result: None,
        *,
        meanwhile: Any = lambda: None,
        **arguments: Any,
    ) -> list[Any]:
        results = [work(order) for order in orders]
        for result in results:
            done(result)
            meanwhile()
        return results

    for module in (read, read_window, stage, change_feed, forward, merge, verify_files, build, scrub):
        monkeypatch.setattr(module, "run_tasks", run_here)
    monkeypatch.setattr(writer, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(writer.ParquetWriter.__init__, "__defaults__", (300,))
    for module in (rewind, roll):
        monkeypatch.setattr(module, "TOUCHED_ROWS", 2)
        monkeypatch.setattr(module, "DECODED_ROWS", 2)
    for module in (change_feed, task):
        monkeypatch.setattr(module, "DECODED_ROWS", 2)
    # Every feed is cut into slices.
    monkeypatch.setattr(feed_slices, "SPLIT_BYTES", -1)
    monkeypatch.setattr(feed_slices, "SLICE_ROWS", 4)
    monkeypatch.setattr(forward, "ROLL_BYTES", 500)
    monkeypatch.setattr(forward, "LOOKED_AT", 2)
    monkeypatch.setattr(touched_rows, "BLOCK_ROWS", 7)
    monkeypatch.setattr(touched_rows, "TOUCHED_BYTES", 200)
    monkeypatch.setattr(image_buffer, "HELD_BYTES", 300)
    monkeypatch.setattr(rewound_files, "RESTORE_ROWS", 3)
    monkeypatch.setattr(read_segment, "SORT_BYTES", 400)
    monkeypatch.setattr(read_segment, "GATHERED_BYTES", 300)
    monkeypatch.setattr(read_segment, "COMPOSED_ROWS", 3)
    monkeypatch.setattr(read_window, "COMPOSE_BYTES", 3000)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    return lambda source, initial, **more: make_runner(spark, tmp_path, monkeypatch, source, initial, **more)


@pytest.fixture
def on_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeRunner:
    """Makes runs on Spark, whose workers get the test's source by value."""
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules["tests.jobs.history_source"])
    return lambda source, initial, **more: make_runner(spark, tmp_path, monkeypatch, source, initial, **more)


def make_runner(
    spark: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: HistorySource,
    initial: int,
    name: str = "lake",
    run_id: str = "20260101T000000Z-00000000",
    bases: Mapping[str, str] | None = None,
    **options: Any,
) -> Runner:
    monkeypatch.setattr(step, "open_source", lambda settings: source)
    target = Storage((folder / name).as_uri())
    return Runner(spark, target, monkeypatch, source, begin_run(target, source, initial, run_id, bases, **options))
