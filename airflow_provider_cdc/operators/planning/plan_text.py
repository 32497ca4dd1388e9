"""The plan of a run in words: the table that preflight logs, and the summary with ``plan_only``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.copies.plan_checks import IF_LATEST
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.run.manifest import MissedPast, TablePlan
from airflow_provider_cdc.core.run.results import ConsolidateResult, DeltaResult, SnapshotResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.operators.base import log_skipped
from airflow_provider_cdc.operators.planning.checks import Places
from airflow_provider_cdc.operators.planning.lake_checks import log_leftovers, warn_of_readers
from airflow_provider_cdc.operators.planning.missing_past import log_missed_past
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.planning.survey import Survey

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.base import Sink

LONG_VIEW_SECONDS = 60
"""Preflight warns of a snapshot that stays open for more than this number of seconds. The server cannot remove old row
versions that the snapshot still sees."""

_LOOKED_AT = 20
"""The number of tables whose latest copies are used to measure the speed of earlier runs."""
_SHORT_VIEW_SECONDS = 1.0
"""The number of seconds for which a snapshot stays open if rows are only looked up in it by their keys."""
_ROWS_PER_SECOND, _MEASURED_ROWS = 200_000, 100_000
"""The assumed speed of reads in the snapshot, and a minimum number of rows. If an earlier run read at least this number
of rows, its speed is used instead of the assumed speed.
"""


def readable(plans: Sequence[TablePlan]) -> str:
    """Return a text table with one line for each planned table: how the table is read, its rows and size, and the
    reason. The shards of a merged table are below its own line."""
    by_copy: dict[TableName, list[TablePlan]] = {}
    for plan in plans:
        by_copy.setdefault(plan.copy_name, []).append(plan)
    rows = [("table", "method", "rows (about)", "MB", "reason")]
    for name, own in by_copy.items():
        merged = own[0].shard is not None
        if merged:
            size, count = sum(plan.bytes for plan in own), sum(plan.rows for plan in own)
            rows.append((str(name), "merge", f"{count:,}", f"{size / 1e6:,.1f}", format_count(len(own), "shard")))
        rows += [
            (
                f"└ {plan.table}" if merged else str(plan.table),
                _way(plan),
                f"{plan.rows:,}",
                f"{plan.bytes / 1e6:,.1f}",
                plan.reason,
            )
            for plan in own
        ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        f"  {row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
        for row in rows
    )


def log_feed_gaps(log: Any, plans: Sequence[TablePlan], *, past: bool = False) -> None:
    """Log a warning for each table whose row changes will begin anew.

    :param past: whether the run copies the past.
    """
    place = "the position of this run" + (IF_LATEST if past else "")
    for plan in plans:
        if (gap := plan.feed_gap) is not None:
            log.warning("%s: %s", plan.table, gap.described(place))


def summary(source: Source, sink: Sink, scratch: Storage, plans: Sequence[TablePlan], options: StepOptions) -> str:
    """Return a description of what a run over these tables would do: the position, the amount of data, the duration,
    and the source's runway.

    :param scratch: the folder that contains the folders of runs.
    """
    read = [plan for plan in plans if not plan.base]
    size = sum(plan.bytes for plan in read)
    at_upper = any(plan.at_upper for plan in plans)
    rows = sum(plan.rows for plan in read)
    exact_at = options.as_of or ("where its reads end" if at_upper else "the present of the run")
    forward = len(plans) - len(read)
    lines = [
        f"exact at: {exact_at}",
        f"in total: {format_count(len(plans), 'table')}, {forward:,} of them rolled forward",
        f"to read: about {format_count(rows, 'row')}, {size / 1e6:,.1f} MB",
    ]
    pace = pace_of(sink, scratch, plans)
    seconds = pace.seconds(rows) if pace else None
    if pace is None or seconds is None:
        lines.append("time: unknown, because no run has read tables into this target yet")
    else:
        lines.append(
            f"time: about {_duration(seconds)} without Spark's start-up, because the run {pace.run_id} read "
            f"{pace.rows_per_second:,.0f} rows/s and took {_duration(pace.rest)} for the other steps"
        )
    if gaps := [str(plan.table) for plan in plans if plan.feed_gap is not None]:
        lines.append(f"changes: begin anew for {', '.join(gaps)}{IF_LATEST if options.as_of else ''}")
    limits = options.limits
    if told := limits.text():
        lines.append(f"limits: {told}")
    if limits.max_rows_per_second:
        least = rows / limits.max_rows_per_second
        lines[-1] += f"; to read the rows takes at least {_duration(least)}"
        seconds = max(seconds or 0.0, least)
    if view := view_of(plans, pace):
        lines.append(f"view: {view}")
    lines.append(_runway(source, seconds))
    if told := source.after_failover(options):
        lines.append(f"failover: {told}")
    return "\n".join(f"  {line}" for line in lines)


@dataclass(frozen=True)
class View:
    """The snapshot at the end of a run. In this snapshot, the run reads touched rows again.

    ``seconds`` is the approximate time for which the snapshot is open. ``whole`` has the tables that are read in the
    snapshot as a whole, because the log has no keys for their changed rows. The largest table is first.
    """

    seconds: float
    whole: tuple[TablePlan, ...]

    @property
    def is_long(self) -> bool:
        return self.seconds > LONG_VIEW_SECONDS

    def __str__(self) -> str:
        if not self.whole:
            return f"one snapshot of about {_duration(self.seconds)}, in which the last touched rows are read"
        most = self.whole[0]
        size = sum(plan.bytes for plan in self.whole)
        return (
            f"one snapshot of about {_duration(self.seconds)}, in which {format_count(len(self.whole), 'table')} "
            f"without keys in the log must be read as a whole ({size / 1e6:,.1f} MB; the largest is {most.table}, "
            f"{most.bytes / 1e6:,.1f} MB)"
        )


def view_of(plans: Sequence[TablePlan], pace: Pace | None) -> View | None:
    """Return the snapshot at the end of a run over these tables. None: the run needs no snapshot at its end.

    Before this snapshot, the run reads touched rows again in several passes, until about `FEW_KEYS` keys are left. So
    the number of touched keys does not matter here.
    """
    if not any(plan.at_upper for plan in plans):
        return None
    whole = sorted(
        (plan for plan in plans if plan.at_upper and plan.consistency == "exported"), key=_size, reverse=True
    )
    rows_per_second = pace is not None and pace.rows >= _MEASURED_ROWS and pace.rows_per_second
    rate = pace.rows_per_second if pace is not None and rows_per_second else _ROWS_PER_SECOND
    return View(_SHORT_VIEW_SECONDS + sum(plan.rows for plan in whole) / rate, tuple(whole))


def _size(plan: TablePlan) -> int:
    return plan.bytes


@dataclass(frozen=True)
class Pace:
    """The speed of an earlier run. ``rows`` is the number of rows that the run read. ``rest`` is the number of seconds
    that its other steps took."""

    run_id: str
    rows_per_second: float
    rest: float
    rows: int

    def seconds(self, rows: int) -> float | None:
        if not rows:
            return self.rest
        return rows / self.rows_per_second + self.rest if self.rows_per_second else None


def pace_of(sink: Sink, scratch: Storage, plans: Sequence[TablePlan]) -> Pace | None:
    """Consider the runs that made the latest copies of these tables. Return the pace of the run that read the most
    rows."""
    pace_by_table: dict[str, tuple[int, Pace]] = {}
    for plan in plans[:_LOOKED_AT]:
        # Skip a copy or run that cannot be read, because it must not fail the plan.
        with suppress(CdcError, OSError):
            head = sink.latest(plan.copy_name)
            if head is None or head.run_id in pace_by_table:
                continue
            run = Run.load(scratch.folder(head.run_id))
            read, rest = (
                run.result_of(SnapshotResult),
                run.result_of(DeltaResult).seconds + run.result_of(ConsolidateResult).seconds,
            )
            rate = read.rows / read.seconds if read.seconds else 0.0
            pace_by_table[head.run_id] = read.rows, Pace(head.run_id, rate, rest, read.rows)
    return max(pace_by_table.values(), key=lambda one: one[0])[1] if pace_by_table else None


def _runway(source: Source, seconds: float | None) -> str:
    runway = source.runway()
    if runway.seconds is None:
        return f"runway: {runway.why}"
    lasts = f"runway: the source keeps its log for {_duration(runway.seconds)} from now on ({runway.why})"
    if seconds is not None and seconds > runway.seconds:
        return f"{lasts}, which is LESS THAN THE RUN WOULD TAKE: configure the source to keep its log longer"
    return lasts


def _way(plan: TablePlan) -> str:
    return "forward" if plan.base else plan.consistency


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} s"


def log_plan(
    log: Any,
    source: Source,
    places: Places,
    found: Survey,
    options: StepOptions,
    missed: MissedPast | None,
    *,
    plan_only: bool,
) -> str | None:
    """Log the plan of a run, with warnings. Return the `summary` with ``plan_only``; otherwise None."""
    plans, sink, scratch = found.plans, places.sink, Storage(places.scratch)
    log_leftovers(scratch)
    warn_of_readers(places.lake, options.lake.format, source, plans)
    log_skipped(log, found.left_out)
    log_missed_past(log, missed)
    log_feed_gaps(log, plans, past=bool(options.as_of) and missed is None)
    if any(plan.at_upper for plan in plans):
        view = view_of(plans, pace_of(sink, scratch, plans))
        if view is not None and view.is_long:
            log.warning(
                "At its end, the run opens %s. While this snapshot is open, the server cannot remove dead rows from "
                "any table. To make the snapshot short, add a primary key to these tables. To avoid the snapshot, "
                "set REPLICA IDENTITY FULL on all tables of the run.",
                view,
            )
    if plan_only:
        text = summary(source, sink, scratch, plans, options)
        log.info("Plan (nothing is copied, because plan_only is set):\n%s\n%s", readable(plans), text)
        return text
    log.info("%s will be copied:\n%s", format_count(len(plans), "table"), readable(plans))
    return None
