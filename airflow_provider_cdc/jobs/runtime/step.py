"""Code that the three steps of a run share: the manifest, the source, the sink, and the record that a step is done.

Two tries of a step may run at the same time, if the task of one try was presumed dead. Such tries share only those
records that exactly one try can create. All other files have different names in each try. So both tries continue until
one try has recorded its result. The other try then ends with this result. If a try ends with an error, it looks again
whether the run went on without it (`run_step`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.control.acts import check_not_stopped
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT, Manifest, RunTable
from airflow_provider_cdc.core.run.results import CONSOLIDATE, Skipped, StepResult
from airflow_provider_cdc.core.run.run import Run, RunRestarted, is_published
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter, table_files
from airflow_provider_cdc.core.shards.copy_tables import copy_names
from airflow_provider_cdc.core.shards.published import files_of_copy
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, LogGone, ManifestError
from airflow_provider_cdc.jobs.runtime.controller import controlled
from airflow_provider_cdc.jobs.runtime.driver import catalog_from_environment
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sinks.registry import sink_of_run
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source

Order = TypeVar("Order")
DoneOrder = TypeVar("DoneOrder", bound="Done")
Result = TypeVar("Result", bound=StepResult)


@dataclass(frozen=True)
class Plan(Generic[Order]):
    """The orders of a step.

    Every record of a finished order has the ``id`` of its plan. The same order number means different work in another
    plan, and a try that was presumed dead may still follow another plan."""

    stamp: str
    id: str
    orders: tuple[Order, ...]


class Done(Protocol):
    """The record of a finished order."""

    @property
    def plan(self) -> str:
        """The id of the plan that contains the order."""


@dataclass
class Step:
    """A step in progress. ``token`` identifies this try. ``altered`` has the tables that were altered while this step
    read them, by name, each with the reason (`jobs.restart`). ``ends`` has, for tables that were read in full, an end
    of the log after the read (`jobs.reads`)."""

    spark: SparkSession
    run: Run
    source: Source
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    altered: dict[str, str] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        return self.run.manifest

    @property
    def tables(self) -> tuple[RunTable, ...]:
        return self.manifest.tables

    @property
    def left_out(self) -> Skipped:
        """The tables that the run left out when it moved, by name, each with the reason."""
        names = [str(entry.table.name) for entry in self.tables if entry.left_out]
        return {name: self.manifest.skipped[name] for name in names}

    @property
    def folder(self) -> Storage:
        """The folder of the run."""
        return self.run.folder

    @property
    def staging(self) -> Staging:
        return Staging(self.folder, self.manifest.options.lake.compression)

    def files_of(self, index: int) -> TableFileWriter:
        """The data files of the table with this index."""
        entry = self.tables[index]
        return table_files(self.staging, entry, self.source.arrow_schema(entry.table))

    @property
    def sink(self) -> Sink:
        return sink_of(self.manifest)

    @property
    def slots(self) -> int:
        """The number of tasks that run at the same time."""
        # A deferred session knows them without Spark.
        return int(getattr(self.spark, "slots", 0) or max(1, self.spark.sparkContext.defaultParallelism))

    @property
    def stamp(self) -> str:
        """A digest of all inputs of this step. A plan with another stamp does not count.

        The rewind would be wrong if rows were read for another initial position. It would also be wrong if the changes
        and the rows were read up to different bounds.
        """
        return records.digest_of(self.run.state.inputs)

    def plan(self, name: str, kind: type[Order], make: Callable[[], Sequence[Order]]) -> Plan[Order]:
        """Return the plan of this step. The plan is made once, because a later try must divide the work in the same
        way.

        :param kind: the type of the orders.
        :param make: makes the orders, and does its own retries. Do not add retries around `plan`, because they would
            multiply the time until a failure.
        """
        # If the run was started again, an earlier try that was presumed dead may still be running with its own plan.
        for file_name in (name, f"{name.removesuffix('.json')}-{self.stamp}.json"):
            if not self.folder.exists(file_name):
                # If two tries make a plan at the same time, only the work of one of them is lost.
                new_plan = Plan(self.stamp, uuid.uuid4().hex, tuple(make()))
                self.folder.create_json(file_name, records.encode(new_plan), settle=0)
            plan: Plan[Order] = records.read(Plan[kind], self.folder, file_name)  # type: ignore[valid-type]
            if plan.stamp == self.stamp:
                return plan
        raise ManifestError(
            "the recorded plan was made for other input", where=self.folder.uri_of(name), hint=records.HINT
        )

    def finished(self, plan: Plan[Any], kind: type[DoneOrder], names: Mapping[int, str]) -> dict[int, DoneOrder]:
        """Return the records of orders that earlier tries finished, by the number of the order.

        :param kind: the type of the records.
        :param names: the name of each order's record.
        """
        folders = {name.rpartition("/")[0] for name in names.values()}
        present = {file for folder in folders for file in self.folder.files(folder)}
        done = {number: records.read(kind, self.folder, name) for number, name in names.items() if name in present}
        return {number: record for number, record in done.items() if record.plan == plan.id}


def sink_of(manifest: Manifest) -> Sink:
    """Open the sink with which a run publishes."""
    return sink_of_run(manifest, catalog_from_environment() if manifest.options.lake.catalog_conn_id else None)


def run_step(
    task_id: str,
    spark: SparkSession,
    folder: Storage,
    settings: ConnectionSettings,
    work: Callable[[Step], Result],
) -> Result:
    """Execute ``work``, record its result, and return it. If the run already has a record of the result, return the
    recorded result.

    If the work fails although a concurrent attempt has taken the run further meanwhile, the error does not matter: the
    work begins again from the present state of the run.

    :param folder: the folder of the run.
    :raises SourceReplaced, LogGone, ExactnessError: the source has been replaced, or no longer has what the run needs.
    """
    started = time.monotonic()
    while True:
        run = Run.load(folder)
        if task_id in run.steps:
            log(f"{task_id}: already done in this run; nothing to do")
            return cast(Result, run.steps[task_id])
        try:
            return run_task(task_id, spark, run, settings, work, started)
        except RunRestarted:
            log(f"{task_id}: the run has moved, or a concurrent attempt was first; this attempt looks again")
        except Exception as error:
            if not _went_on(run, error):
                raise
            log(
                f"{task_id}: a concurrent attempt has taken the run further, so this attempt looks again "
                f"({type(error).__name__}: {error})"
            )


def run_task(
    task_id: str,
    spark: SparkSession,
    run: Run,
    settings: ConnectionSettings,
    work: Callable[[Step], Result],
    started: float,
) -> Result:
    """Do the work of `run_step` from the state of ``run``.

    :raises RunRestarted: the run is in another state now.
    """
    manifest, folder = run.manifest, run.folder
    check_not_stopped(folder)
    if run.ended:
        raise ManifestError(
            "the run was stopped or cleaned up, and has not begun anew",
            where=folder.uri,
            hint="clear the task `lock_and_record` and all tasks after it",
        )
    source = open_source(settings)
    if source.kind != manifest.kind:
        raise ConfigurationError(
            f"the run began on a {manifest.kind} source, but the connection is to a {source.kind} source",
            where=folder.uri,
            hint="correct the connection, or trigger a new run",
        )
    source = source.of_run(run.expected_identity(), manifest.initial)
    if not run.committed:
        retry(
            f"{task_id}: check the source",
            lambda: source.check_identity(run.expected_identity(), manifest.initial),
        )
    step = Step(spark, run, source)
    with controlled(task_id, run, source, step.token):
        result = replace(work(step), seconds=round(time.monotonic() - started, 3))
    recorded = run.finish_step(task_id, result)
    if recorded != result:
        log(f"{task_id}: a concurrent attempt finished first, so the run uses the result of that attempt")
    if is_published(run) and task_id != CONSOLIDATE:
        clean(run)
    return recorded


def _went_on(run: Run, error: Exception) -> bool:
    """Return whether other attempts have recorded decisions since the state of ``run`` was read, so that ``error`` does
    not matter. Pieces of the log are no decisions. But the source of an attempt does not know pieces that others have
    recorded meanwhile, so it may look for log that the run no longer needs."""
    before = run.state
    try:
        run.refresh()
    except RunRestarted:
        return True
    except (CdcError, OSError):
        # Do not report this second error, because the caller reports the original error.
        return False
    now = run.state
    if isinstance(error, LogGone) and now.pieces != before.pieces:
        return True
    return (now.inputs, now.commit, now.ended) != (before.inputs, before.commit, before.ended)


def clean(run: Run) -> None:
    """Remove the files that only a run in progress needs. The run is published, so a failure does not fail the step."""
    try:
        run.clean()
        if run.committed and run.manifest.lake_format != LAKE_FORMAT:
            _clean_places(run)
    except (CdcError, OSError) as error:
        log(f"consolidate: could not remove the work files in {run.folder.uri}: {error}")


def _clean_places(run: Run) -> None:
    """Remove the data files that the run wrote at their final place and did not publish."""
    decision, sink = decision_of(run), sink_of(run.manifest)
    for name in copy_names(run.manifest.tables):
        sink.clean(run.run_id, name, [part for file in files_of_copy(run, decision, name) for part in file.parts])
