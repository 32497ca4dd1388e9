"""A run without Airflow: the same steps in the same order, for tests and benchmarks that inspect the steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.lake import LakeOptions, MergeOptions
from airflow_provider_cdc.core.options.run import (
    AUTO,
    FeedOptions,
    LimitOptions,
    LockPolicy,
    LogOptions,
    StepOptions,
    TableOptions,
)
from airflow_provider_cdc.core.run.manifest import MissedPast, TablePlan
from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.run import Run, scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.records import encode
from airflow_provider_cdc.jobs.begin.base_selection import choose
from airflow_provider_cdc.jobs.begin.initial_position import begin
from airflow_provider_cdc.jobs.begin.preparation import lake_format
from airflow_provider_cdc.jobs.consolidate.step import consolidate
from airflow_provider_cdc.jobs.extract_delta.step import extract_delta
from airflow_provider_cdc.jobs.snapshot.step import snapshot
from airflow_provider_cdc.operators.planning.missing_past import record_or_miss
from airflow_provider_cdc.sinks.registry import open_sink, settings_of_options
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.planning.point import check_point, record_point
from airflow_provider_cdc.sources.planning.selections import requested, select
from airflow_provider_cdc.sources.planning.shards import lake_names, with_shards, without_vanished
from airflow_provider_cdc.sources.planning.survey import Survey, layouts
from harness.mysql_server import MysqlServer
from harness.postgres_server import SUPERUSER, PostgresServer


class Pipeline:
    """One run of ``tables`` (patterns) into ``target``. Call the steps in their order. Each may be called again."""

    def __init__(
        self,
        spark: SparkSession,
        settings: ConnectionSettings,
        target: str,
        tables: Sequence[str],
        *,
        scratch: str = "",
        run_id: str = "20260101T000000Z-00000000",
        consistency: str = "auto",
        unrepresentable: str = "error",
        arrays: str = "text",
        chunk_rows: int = 100_000,
        chunk_pause: float = 0.0,
        lock: LockPolicy | None = None,
        limits: LimitOptions | None = None,
        as_of: str = "",
        on_table_error: str = "fail",
        on_schema_change: str = "restart_table",
        standing_slot: str = "",
        standing_slot_hours: int = 48,
        refresh: str = "full",
        changes: bool = False,
        on_feed_gap: str = "fail",
        keep: int = 0,
        where: Mapping[str, str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        lake: LakeOptions | None = None,
        format: str = "parquet",
        merging: MergeOptions | None = None,
        spool: str = AUTO,
        source_conn_id: str = "",
    ) -> None:
        self.target = Storage(target)
        self.run = Storage(scratch or scratch_of(target)).folder(run_id)
        self.source = open_source(settings)
        self.found: dict[str, dict[str, Any]] = {}
        self.plans: list[TablePlan] = []
        self._spark = spark
        self._settings = settings
        self._tables = tables
        self._table_options = TableOptions(consistency, unrepresentable, arrays)
        self._lock = lock or LockPolicy()
        self._options = StepOptions(
            chunk_rows,
            chunk_pause,
            as_of,
            standing_slot=standing_slot,
            standing_slot_hours=standing_slot_hours,
            refresh=refresh,
            changes=changes,
            feeds=FeedOptions(on_feed_gap),
            keep=keep,
            lock=self._lock,
            limits=limits or LimitOptions(),
            log=LogOptions(spool),
            lake=lake or LakeOptions(format),
            on_table_error=on_table_error,
            on_schema_change=on_schema_change,
            merging=merging or MergeOptions(),
        )
        self._run_id = run_id
        self._source_conn_id = source_conn_id
        self._may_miss_past = False
        self._selected = where, columns
        self._lake = settings_of_options(self._options.lake.format, self._options.lake, None, "")
        self.sink = open_sink(self._lake, self.target)

    def preflight(self) -> list[TablePlan]:
        """Execute preflight, the first part of `record`."""
        plans = self.source.preflight(self._tables, self._table_options, requested(*self._selected))
        plans = select(self.source, plans, [], *self._selected)
        found = with_shards(self.source, Survey(plans, {}), self._options, self._source_conn_id or self._settings.kind)
        plans = without_vanished(self.sink, found, self._options).plans
        self.plans = choose(self.source, self.sink, self.run.parent().uri, plans, self._options)
        check_point(self.source, self.plans, self._options)
        return self.plans

    def record(self) -> str:
        """Execute preflight and lock_and_record, and return the initial position."""
        self.preflight()
        return self.lock_and_record()

    def lock_and_record(self, *, may_miss_past: bool = False) -> str:
        """Execute lock_and_record, after `preflight`, and return the initial position."""
        self._may_miss_past = may_miss_past
        if may_miss_past:
            return record_or_miss(self.source, self.plans, self._options, self._begin).manifest.initial_position
        return self._begin(self.plans, self._options, None).manifest.initial_position

    def _begin(self, plans: Sequence[TablePlan], options: StepOptions, missed_past: MissedPast | None) -> Run:
        laid_out = layouts(lake_names(plans), [], options.lake)
        return begin(
            self.source,
            plans,
            options,
            partial(record_point, self.source, options, plans, self._run_id),
            run_id=self._run_id,
            lake=self.target.uri,
            scratch=self.run.parent().uri,
            source_conn_id=self._source_conn_id,
            heads=self.sink,
            lake_format=lake_format(self._lake.format, self.sink, self._run_id, self.source, laid_out),
            missed_past=missed_past,
            may_miss_past=self._may_miss_past,
        )

    def snapshot(self) -> dict[str, Any]:
        self.found["snapshot"] = encode(snapshot(self._spark, self.run, self._settings))
        return self.found["snapshot"]

    def extract_delta(self) -> dict[str, Any]:
        self.found["extract_delta"] = encode(extract_delta(self._spark, self.run, self._settings))
        return self.found["extract_delta"]

    def consolidate(self) -> dict[str, Any]:
        self.found["consolidate"] = encode(consolidate(self._spark, self.run, self._settings))
        Run.load(self.run).record_announced()
        return self.found["consolidate"]

    def release(self) -> None:
        """Release the run on the server, as Airflow does when a run has finally failed."""
        release(self.run, self.source.release)

    def finish(self) -> dict[str, Any]:
        """Execute the steps after ``record``."""
        self.snapshot()
        self.extract_delta()
        return self.consolidate()


def published(uri: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the column names and the rows of a published table, read only from its files."""
    folder = Storage(uri)
    tables = [pq.read_table(folder.path(name), filesystem=folder.filesystem) for name in folder.files()]
    names = tables[0].column_names
    rows = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return names, rows


def published_counts(uri: str) -> tuple[list[str], Counter[tuple[Any, ...]]]:
    """Return the result of ``published`` with the rows as a multiset."""
    names, rows = published(uri)
    return names, Counter(rows)


def settings_of(server: MysqlServer | PostgresServer, user: str = "", password: str = "") -> ConnectionSettings:
    """Return the connection settings of a server, by default for its superuser."""
    if isinstance(server, MysqlServer):
        return ConnectionSettings("mysql", server.host, server.port, user or "root", password)
    return ConnectionSettings("postgres", server.host, server.port, user or SUPERUSER, password, "postgres")
