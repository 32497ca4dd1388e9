"""What the three steps of a run have in common: the manifest, the source, the sink, and being done only once.

Two tries of a step may be at work at the same time: the task of one was presumed dead. All that they share are records
that only one of them can make; files have names that no other try writes. So both go on until the first one has
recorded what it found; the other one then ends with that.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, cast

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.results import CONSOLIDATE, StepResult
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import Source

Order = TypeVar("Order")
DoneOrder = TypeVar("DoneOrder", bound="Done")
Result = TypeVar("Result", bound=StepResult)


@dataclass(frozen=True)
class Plan(Generic[Order]):
    """The orders of a step. Every record of a finished order carries the ``id`` of the plan it was given in: the same
    number means other work in another plan, which a try that was presumed dead may still follow."""

    stamp: str
    id: str
    orders: tuple[Order, ...]


class Done(Protocol):
    """The record of an order that was done."""

    @property
    def plan(self) -> str:
        """The id of the plan that it was given in."""


@dataclass
class Step:
    """A step in progress.

    ``token`` is this try's own.
    """

    spark: SparkSession
    run: Run
    source: Source
    token: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def manifest(self) -> Manifest:
        return self.run.manifest

    @property
    def tables(self) -> tuple[RunTable, ...]:
        return self.manifest.tables

    @property
    def folder(self) -> Storage:
        """The run's."""
        return self.run.folder

    @property
    def staging(self) -> Staging:
        return Staging(self.folder)

    @property
    def sink(self) -> Sink:
        return sink_of(self.manifest)

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
        return records.digest_of(self.run.rests_on)

    def plan(self, name: str, kind: type[Order], make: Callable[[], Sequence[Order]]) -> Plan[Order]:
        """The orders of this step, made once: a step that is taken up again must not cut its work elsewhere.

        :param kind: of the orders.
        :param make: has a patience of its own; another one around it would multiply the time until a step gives up.
        """
        # The run may have begun anew, and tries that were presumed dead may still follow the plan that it had.
        for file_name in (name, f"{name.removesuffix('.json')}-{self.stamp}.json"):
            if not self.folder.exists(file_name):
                # If two tries make it at the same time, one of them does some work in vain, and nothing worse.
                new_plan = Plan(self.stamp, uuid.uuid4().hex, tuple(make()))
                self.folder.create_json(file_name, records.encode(new_plan), settle=0)
            plan: Plan[Order] = records.read(Plan[kind], self.folder, file_name)  # type: ignore[valid-type]
            if plan.stamp == self.stamp:
                return plan
        raise ManifestError("the plan is that of other work", where=self.folder.uri_of(name), hint=records.HINT)

    def finished(self, plan: Plan[Any], kind: type[DoneOrder], names: Mapping[int, str]) -> dict[int, DoneOrder]:
        """The records of orders that earlier tries finished, by the number of the order.

        :param kind: of the records.
        :param names: the name of each order's record.
        """
        folders = {name.rpartition("/")[0] for name in names.values()}
        present = {file for folder in folders for file in self.folder.files(folder)}
        done = {number: records.read(kind, self.folder, name) for number, name in names.items() if name in present}
        return {number: record for number, record in done.items() if record.plan == plan.id}


def sink_of(manifest: Manifest) -> Sink:
    """The sink that a run publishes with."""
    return open_sink(manifest.lake_format, Storage(manifest.lake))


def run_step(
    task_id: str,
    spark: SparkSession,
    folder: Storage,
    settings: ConnectionSettings,
    work: Callable[[Step], Result],
) -> Result:
    """Do ``work`` unless the run has a record that it is done, record what it found, and return it.

    :param folder: the run's.
    :raises SourceReplaced, LogGone, ExactnessError: the source is no longer what the run began on.
    """
    started = time.monotonic()
    run = Run.load(folder)
    manifest = run.manifest
    if task_id in run.steps:
        say(f"{task_id}: already done in this run; nothing to do")
        return cast(Result, run.steps[task_id])
    if run.abandoned:
        raise ManifestError(
            "the run began anew, but has no new manifest yet",
            where=folder.uri,
            hint="clear lock_and_record and the tasks after it",
        )
    source = open_source(settings)
    if source.kind != manifest.kind:
        raise ConfigurationError(
            f"the run began on a {manifest.kind} source, and this is a {source.kind} one",
            where=folder.uri,
            hint="correct the connection, or trigger a new run",
        )
    source = source.of_run(manifest.identity, manifest.initial)
    if not run.committed:
        persist(
            f"{task_id}: check the source",
            lambda: source.check_identity(manifest.identity, manifest.initial),
        )
    step = Step(spark, run, source)
    try:
        result = replace(work(step), seconds=round(time.monotonic() - started, 3))
        counts = run.finish_step(task_id, result, step.token)
    except Exception as error:
        # Whatever came in the way of this try: a concurrent one that is done has left nothing to do.
        if (recorded_result := _found_by_another(run, task_id)) is None:
            raise
        say(f"{task_id}: a concurrent attempt is done, and this one gives up ({type(error).__name__}: {error})")
        counts = cast(Result, recorded_result)
    else:
        if counts != result:
            say(f"{task_id}: a concurrent attempt was done before; what that one found counts")
    if is_published(run) and task_id != CONSOLIDATE:
        clean(run)
    return counts


def _found_by_another(run: Run, task_id: str) -> StepResult | None:
    try:
        run.refresh()
    except (CdcError, OSError):
        # What came in the way of the work is what counts.
        return None
    return run.steps.get(task_id)


def clean(run: Run) -> None:
    """Remove what only a run in progress needs. The run is published, so failing to do so does not fail the step."""
    try:
        run.clean()
    except (CdcError, OSError) as error:
        say(f"consolidate: work files are left in {run.folder.uri}: {error}")
