"""Plans the run of a verification and fixes its position.

If the log has only the keys of changed rows, the rows cannot be rewound to the position of the copy. So the keys that
were touched between the copy and the end of the reads are left out on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.options.run import StepOptions, TableOptions
from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.reread_passes import SORT_BYTES
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.planning.patterns import exactly
from airflow_provider_cdc.sources.planning.point import late_problems
from airflow_provider_cdc.sources.planning.selections import requested, select


@dataclass(frozen=True)
class CopyOfRun:
    """A copy of this package: the run that made it, its position, and the identity of the server."""

    run_id: str
    position: str
    identity: Facts


def plans_of(
    source: Source, selections: Mapping[TableName, Selection], table_options: TableOptions, options: StepOptions
) -> list[TablePlan]:
    """Plan the run of a verification.

    :param selections: the part of each table that was copied.
    :raises PreflightError: a table cannot be verified.
    """
    parts = {exactly(table): selection for table, selection in selections.items()}
    where = {name: part.condition for name, part in parts.items() if part.where is not None}
    columns = {name: part.columns for name, part in parts.items() if part.columns}
    plans = source.preflight(list(parts), table_options, requested(where, columns))
    plans = select(source, plans, [], where, columns)
    if problems := late_problems(plans, options):
        raise PreflightError(problems)
    if (point := as_of.parse(options.as_of)) is not None:
        source.check_past(point, plans, options)
    return plans


def record_position(
    source: Source, plans: Sequence[TablePlan], since: CopyOfRun | None, options: StepOptions, run_id: str
) -> InitialPoint:
    """Fix the position of a verification's run. With ``since``, the server keeps the log since this copy.

    :raises PreflightError: the log no longer exists, or a table was altered since its copy.
    """
    past = as_of.parse(options.as_of)
    if past is not None:
        return source.record_past(past, plans, options, run_id)
    point = source.record_initial(plans, options.lock, run_id)
    if since is None:
        return point
    based = [replace(plan, base=since.run_id, base_position=since.position, at_upper=True) for plan in plans]
    return source.keep_window(point, based, options, run_id)


def touched_keys(step: Step, since: CopyOfRun | None) -> tuple[StagedFile, ...]:
    """Return files with the keys that the window of the run touched, and that were touched since the copy ``since``."""
    files = net_change_files.read_net_change(step.run).files
    return files if since is None else files + _touched_since(step, since)


def _touched_since(step: Step, copy: CopyOfRun) -> tuple[StagedFile, ...]:
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
