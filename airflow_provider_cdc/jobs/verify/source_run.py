"""The source's side of a verification: the rows of tables at the position of the copies.

A throw-away run reads the tables now, and rewinds them to the position, by the steps of every run. So the conditions
of a run apply: the log must reach back to the position, and the tables must be unchanged since then. The run publishes
nothing, and its folder is removed.

The window begins at the position of the copies and not at the begin of this read. The log of the whole window is read,
but only rows in the sampled ranges are compared, on both sides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, PreflightError
from airflow_provider_cdc.jobs.begin.initial_position import begin
from airflow_provider_cdc.jobs.consolidate.stage import stage
from airflow_provider_cdc.jobs.extract_delta.step import extract_delta
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.parts import Part, plan_parts
from airflow_provider_cdc.jobs.snapshot.step import PLAN, snapshot
from airflow_provider_cdc.jobs.verify.position import CopyOfRun, plans_of, record_position, touched_keys
from airflow_provider_cdc.jobs.verify.rows import LeftOut, RangeRows, Sample
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Source


@dataclass(frozen=True)
class TableRows:
    """The rows of a table at the run's position, in ``files``, and the keys that the window touched."""

    files: tuple[RangeRows, ...]
    touched: LeftOut


@dataclass
class SourceRun:
    """A throw-away run.

    ``selections`` has the part of each table that was copied, by the table's name. With ``since``, the log has only the
    keys of changed rows. The run is then exact where its reads end, and the keys that were touched since the copy
    ``since`` are noted. ``refused`` gets the reasons why tables cannot be verified.
    """

    spark: SparkSession
    settings: ConnectionSettings
    scratch: Storage
    run_id: str
    source_conn_id: str
    selections: Mapping[TableName, Selection]
    table_options: TableOptions
    options: StepOptions
    since: CopyOfRun | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source: Source = open_source(self.settings)
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        assert self._run is not None
        return self._run

    def begin(self) -> bool:
        """Fix the position of the run. Return whether a table can be verified."""
        # An earlier attempt may have left its slot and its files.
        self.remove()
        tables = list(self.selections)
        while tables := [table for table in tables if str(table) not in self.refused]:
            try:
                plans = plans_of(
                    self.source, {name: self.selections[name] for name in tables}, self.table_options, self.options
                )
                self._run = begin(
                    self.source,
                    plans,
                    self.options,
                    partial(record_position, self.source, plans, self.since, self.options, self.run_id),
                    run_id=self.run_id,
                    lake=self.scratch.uri,
                    scratch=self.scratch.uri,
                    source_conn_id=self.source_conn_id,
                )
                return True
            except PreflightError as error:
                self._refuse(tables, error)
        return False

    def table_of(self, error: CdcError) -> str | None:
        """Return the table whose history or values are the cause of an error, if another table may be verified without
        it; otherwise None."""
        return named_in(error.where, [str(table) for table in self.selections if str(table) not in self.refused])

    def _refuse(self, tables: Sequence[TableName], error: PreflightError) -> None:
        """Leave out the tables that the problems name. If a problem concerns no table, no table can be verified."""
        names = [str(table) for table in tables]
        reasons = defaultdict[str, list[str]](list)
        for problem in error.problems:
            own = problem.table if problem.table in names else named_in(problem.where, names)
            for name in names if own is None else [own]:
                reasons[name].append(f"{problem.where}: {problem.what}")
        self.refused |= {name: "; ".join(own) for name, own in reasons.items()}

    def table(self, name: str) -> Table:
        """Return a table as the run recorded it."""
        return next(entry.table for entry in self.run.manifest.tables if str(entry.table.name) == name)

    def schema(self, name: str) -> pa.Schema:
        """Return the columns of a table, as they are published."""
        table = self.table(name)
        return published_schema(table, self.source.arrow_schema(table))

    def can_sample(self, name: str) -> bool:
        """Return whether ranges of the table's key can be read."""
        table = self.table(name)
        return not table.needs_one_position and bool(self.source.key_range(table, 0, 1))

    def read(self, samples: Mapping[str, Sample]) -> dict[str, TableRows]:
        """Read the tables, and rewind them to the position.

        :param samples: the ranges to read, by the name of the table. Other tables are read in full.
        """
        step = self._step()
        step.plan(PLAN, Part, lambda: self._parts(step, samples))
        snapshot(self.spark, self.run.folder, self.settings)
        extract_delta(self.spark, self.run.folder, self.settings)
        step = self._step()
        decision, touched = stage(step), touched_keys(step, self.since)
        self.refused |= decision.skipped
        rows = {}
        for index, entry in enumerate(step.tables):
            name = str(entry.table.name)
            if name in decision.files:
                files = tuple(RangeRows(self.run.folder, file.name, file.bytes) for file in decision.files[name])
                rows[name] = TableRows(files, LeftOut(self.run.folder, touched, index))
        return rows

    def _step(self) -> Step:
        self._run = Run.load(self.run.folder)
        manifest = self.run.manifest
        return Step(self.spark, self.run, self.source.of_run(manifest.identity, manifest.initial))

    def _parts(self, step: Step, samples: Mapping[str, Sample]) -> list[Part]:
        def chunks_of(source: Source, table: Table) -> list[Chunk]:
            sample = samples.get(str(table.name))
            if sample is None:
                return retry(f"plan {table.name}", lambda: source.plan_chunks(table, self.options.chunk_rows))
            ranges = [chunk for one in sample.ranges for chunk in source.key_range(table, one.low, one.high)]
            rows = max(1, table.rows // sample.total)
            return [Chunk(number, chunk.lower, chunk.upper, rows) for number, chunk in enumerate(ranges)]

        with step.source.one_session() as source:
            chunks = [chunks_of(source, entry.table) for entry in step.tables]
        return plan_parts(step.tables, chunks, step.slots)

    def remove(self) -> None:
        """Remove what the run created on the server, and its folder. An error is only logged: it must not hide the
        result."""
        self._tried(lambda: self.source.release(self.run_id))
        self._tried(lambda: self.scratch.delete_folder(self.run_id))

    def _tried(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (CdcError, OSError) as error:
            log(f"verify: could not remove what the run {self.run_id} left: {error}")


def text_without_hint(error: CdcError) -> str:
    """Return an error without its hint, which is about runs."""
    return f"{error.where}: {error.message}" if error.where else error.message


def named_in(where: str, names: Sequence[str]) -> str | None:
    """Return the table with which the description of a place begins; None: it names none of them."""
    found = [name for name in names if f"{where} ".startswith((f"{name} ", f"{name}."))]
    return found[0] if len(found) == 1 else None
