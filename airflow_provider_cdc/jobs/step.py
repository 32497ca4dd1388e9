"""What the three steps of a run have in common: the manifest, the source, the sink, and being done only once."""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.manifest import Manifest, RunTable
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.jobs.patience import persist
from airflow_provider_cdc.jobs.progress import say
from airflow_provider_cdc.sinks.parquet import ParquetSink
from airflow_provider_cdc.sources import open_source
from airflow_provider_cdc.sources.base import ConnectionSettings, Source


@dataclass(frozen=True)
class Plan:
    """The orders of a step, as JSON. Every record of a finished order carries the ``id`` of the plan it was given in:
    the same number means other work in another plan, which a try that was thought dead may still follow."""

    id: str
    orders: list[dict[str, Any]]


@dataclass
class Step:
    """A step in progress.

    ``run`` is the run's folder; the lake folder it publishes to lies two levels above (``<target>/_runs/<run_id>``).
    """

    spark: SparkSession
    run: Storage
    manifest: Manifest
    source: Source

    @property
    def tables(self) -> list[RunTable]:
        return self.manifest.tables

    @property
    def sink(self) -> ParquetSink:
        return ParquetSink(self.run.parent().parent())

    @property
    def slots(self) -> int:
        """How many tasks run at the same time."""
        return max(1, int(self.spark.sparkContext.defaultParallelism))

    @property
    def stamp(self) -> str:
        """A digest of all that this step rests on. A plan with another stamp does not count.

        Rows that were read for another initial position would make the rewind wrong, and so would changes read up to
        another bound than the one of the files.
        """
        grounds = [self.manifest.created_at, self.manifest.initial_position, self.manifest.steps]
        return hashlib.sha256(json.dumps(grounds, sort_keys=True).encode()).hexdigest()[:16]

    def plan(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> Plan:
        """The orders of this step, made once: a step that is taken up again must not cut its work elsewhere."""
        if self.run.exists(name):
            data = self.run.read_json(name)
            if data["stamp"] == self.stamp:
                return Plan(data["id"], data["orders"])
        plan = Plan(uuid.uuid4().hex, persist(f"plan {name}", make))
        self.run.write_json(name, {"stamp": self.stamp, "id": plan.id, "orders": plan.orders})
        return plan

    def finished(self, plan: Plan, names: Mapping[int, str]) -> dict[int, dict[str, Any]]:
        """The records of orders that earlier tries finished, by the number of the order.

        :param names: the name of each order's record.
        """
        folders = {name.rpartition("/")[0] for name in names.values()}
        present = {file for folder in folders for file in self.run.files(folder)}
        records = {number: self.run.read_json(name) for number, name in names.items() if name in present}
        return {number: record for number, record in records.items() if record["plan"] == plan.id}

    def found(self, task_id: str) -> dict[str, Any]:
        """What an earlier step found. Its ``record`` names the file with what is too much for the manifest.

        :raises ManifestError: it is not done.
        """
        if task_id not in self.manifest.steps:
            raise ManifestError(
                f"the step {task_id} of this run is not finished",
                where=self.run.uri,
                hint=f"run {task_id} first (clear it and the tasks after it)",
            )
        return self.manifest.steps[task_id]


def run_step(
    task_id: str,
    spark: SparkSession,
    run: Storage,
    settings: ConnectionSettings,
    work: Callable[[Step], dict[str, Any]],
) -> dict[str, Any]:
    """Do ``work`` unless the manifest says that it is done, record what it found, and return it.

    :raises SourceReplaced, LogGone, ExactnessError: the source is no longer what the run began on.
    """
    started = time.monotonic()
    manifest = Manifest.load(run)
    if task_id in manifest.steps:
        say(f"{task_id}: already done in this run; nothing to do")
        return manifest.steps[task_id]
    source = open_source(settings).of_run(manifest.identity, manifest.initial_position)
    persist(f"{task_id}: check the source", lambda: source.check_identity(manifest.identity, manifest.initial_position))
    found = work(Step(spark, run, manifest, source))
    found["seconds"] = round(time.monotonic() - started, 3)
    return manifest.finish_step(run, task_id, found)
