"""The keys that were touched since a copy, for tables whose log has only the keys of changed rows.

Such rows cannot be rewound to the position of the copy. So the keys that were touched between the copy and the end of
the reads are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.reread_passes import SORT_BYTES
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import TrackedTable


@dataclass(frozen=True)
class CopyOfRun:
    """A copy of this package: the run that made it, its position, and the identity of the server."""

    run_id: str
    position: str
    identity: Facts


def with_log_since(
    source: Source,
    point: InitialPoint,
    plans: Sequence[TablePlan],
    copy: CopyOfRun,
    options: StepOptions,
    run_id: str,
) -> InitialPoint:
    """Make the server keep the log since the copies of a run, and return the point that names this log.

    :raises PreflightError: the log no longer exists, or a table was altered since its copy.
    """
    based = [replace(plan, base=copy.run_id, base_position=copy.position, at_upper=True) for plan in plans]
    return source.keep_window(point, based, options, run_id)


def touched_since(step: Step, copy: CopyOfRun) -> tuple[StagedFile, ...]:
    """Write files with the keys that were touched between a copy and the end of the reads, and return these files.

    :raises ExactnessError: the log since the copy cannot be read, or has a change that is not a change of rows.
    """
    source, start = step.source, step.manifest.position_in(copy.position)
    source.check_since(copy.identity, start)
    tracked = [
        TrackedTable(index, entry.table, keys_only=True, forward=True)
        for index, entry in enumerate(step.tables)
        if not entry.table.keyless
    ]
    log_end = step.run.result_of(SnapshotResult).log_end
    with (
        step.staging.writer("delta/since", net_change_files.NET_SCHEMA, QUICKEST) as writer,
        source.follow(start, step.manifest.identity, tracked) as tail,
    ):
        for rows in net_change_files.gathered(tail.read(log_end), SORT_BYTES):
            writer.write(net_change_files.in_buckets(net_change_files.last(rows)))
    return tuple(writer.files)
