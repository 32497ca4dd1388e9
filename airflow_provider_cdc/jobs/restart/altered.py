"""Recognizes the tables that were altered, decides whether the run may read them again, and carries finished reads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_cdc.core.copies.plan_checks import BEGINS_ANEW, feeds_gapless
from airflow_provider_cdc.core.options.run import CHANGES, FAIL, GIVE_UP_PAST, StepOptions
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import (
    Basis,
    FeedGap,
    InitialPoint,
    Manifest,
    RunTable,
)
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, PLAIN, Layout, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    LogGone,
    PreflightError,
    SchemaChanged,
    TerminalError,
)
from airflow_provider_cdc.jobs.begin.preparation import place_of_carried
from airflow_provider_cdc.jobs.log.log import RunLog, logs_of
from airflow_provider_cdc.jobs.reads import read_record
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.planning.selections import check_still

LIMIT = 10
"""The greatest number of restarts of one run. A run whose tables are altered all the time would never end."""


def may_restart(step: Step) -> bool:
    """Return whether the run may move its position, and read altered tables again.

    A position that a user requested (``as_of``) never moves.
    """
    manifest = step.manifest
    option = manifest.options.on_schema_change
    movable = not manifest.options.as_of or (option == GIVE_UP_PAST and manifest.may_miss_past)
    return option != FAIL and movable and len(manifest.restarts) < LIMIT


def may_leave_out(step: Step) -> bool:
    """Return whether the run leaves altered tables out that it may not read again."""
    return step.manifest.options.on_schema_change != FAIL and step.manifest.options.skips


def must_be_rolled(options: StepOptions) -> bool:
    """Return whether a copy that the run rolls forward must not be read again instead."""
    return feeds_gapless(options) or options.refresh == CHANGES


def altered_table(step: Step, error: CdcError) -> str | None:
    """Return the table of the run that was altered, according to ``error``. None: the error names no such table, or the
    run may neither read the table again nor leave it out."""
    return next(iter(altered_tables(step, error)), None)


def altered_tables(step: Step, error: CdcError) -> dict[str, str]:
    """Return the tables of the run that were altered, according to ``error``, by name, each with the difference. Empty:
    the error has another reason, or the run may neither read one of the tables again nor leave it out.

    A table that must be rolled forward (``refresh`` = ``changes``) is never read again. If row changes must be
    published without a gap, the same is true for all tables that are rolled forward.
    """
    if not (may_restart(step) or may_leave_out(step)):
        return {}
    rolls = must_be_rolled(step.manifest.options)
    names = [str(entry.table.name) for entry in step.tables if not (entry.left_out or (rolls and entry.base))]
    if isinstance(error, PreflightError):
        of_tables = {problem.table: problem.what for problem in error.problems}
        return of_tables if of_tables.keys() <= {*names} else {}
    if isinstance(error, SchemaChanged) and (name := named(error, names)) is not None:
        return {name: described(error)}
    return {}


def named(error: CdcError, names: Iterable[str]) -> str | None:
    """Return the table that an error names; None: it names none of the tables."""
    fitting = [name for name in names if _names(error.where, name)]
    # The name of a table may contain the separators, so the longest name is meant.
    return max(fitting, key=len, default=None)


def _names(where: str, name: str) -> bool:
    return where == name or any(where.startswith(f"{name}{mark}") for mark in (" at ", ", ", "."))


def note_altered(step: Step, error: CdcError) -> bool:
    """Note in ``step.altered`` the tables that were altered while the step read tables. Return whether ``error`` is
    explained by this: the reads of the other tables go on.

    :param error: the error that stopped the reads.
    """
    if not (may_restart(step) or may_leave_out(step)):
        return False
    noted = len(step.altered)
    name = altered_table(step, error)
    if name is not None and isinstance(error, SchemaChanged):
        step.altered.setdefault(name, described(error))
    step.altered |= find_altered(step, [entry for entry in step.tables if entry.is_read or entry.at_upper])
    return len(step.altered) > noted


def find_altered(step: Step, entries: Sequence[RunTable]) -> dict[str, str]:
    """Return those of the tables whose definitions differ now, by name, each with the difference. Tables in
    ``step.altered`` are not looked at."""
    altered: dict[str, str] = {}
    unaltered = [entry for entry in entries if str(entry.table.name) not in step.altered]
    for one in logs_of(step, unaltered, refresh=True):
        while True:
            tables = [table for table in one.tables if str(table.name) not in altered]
            try:
                retry("check the tables", partial(one.source.check_tables, tables))
                break
            except SchemaChanged as error:
                name = altered_table(step, error)
                if name is None or name in altered or name not in {str(table.name) for table in tables}:
                    raise
                altered[name] = described(error)
    return altered


def described(error: SchemaChanged) -> str:
    """Describe a change in one line: what changed, and where the log shows it."""
    return f"{error.message} ({error.where})" if " at " in error.where else error.message


# Carries finished reads of altered tables over the schema change, so that nothing is read again.
#
# A table of a run was read in full, and was altered after that. If the change is one to one, the rows that were read,
# and the row images in the log before the change, become rows of the altered table. The rules are those of copies
# that are rolled forward over schema changes. See ``docs/design/carried-reads.md``.
#
# The recorded pieces of the log before a schema change have row images with the columns that the table had then. When
# the net change is composed, these images become images of the present table (`jobs.log.log.RunLog.carried_images`).
# The last piece is read when the run moves. The source reads it with the schema changes, so it has images of the
# present table.


def may_be_carried(step: Step, entry: RunTable, basis: Basis, bound: UpperBound | None) -> bool:
    """Return whether the finished read of an altered table may be carried, before the schema change is looked at.

    :param bound: the bound of the reads under the present manifest. None: nothing was read under this manifest.
    """
    # All shards of a merged table have the same columns. Rows with values that no Arrow type holds are not carried.
    if entry.table.shard is not None or basis.nulled or not basis.ended:
        return False
    bound = bound or retry("check the earlier reads", step.source.bound_reads)
    return basis.incarnation == bound.incarnation and not read_record(step.run, basis.record)[str(entry.table.name)].odd


def carried_tables(
    step: Step,
    finished: Sequence[RunTable],
    now: Mapping[TableName, Table],
    point: InitialPoint,
    laid_out: Mapping[TableName, Layout],
) -> dict[str, RunTable]:
    """Return those of the ``finished`` reads that are carried to the position of ``point``, by the table's name. The
    other tables are read again.

    :param now: the tables as they were recorded after this position.
    :param laid_out: the layouts of the tables that have one.
    """
    carried: dict[str, RunTable] = {}
    for entry in finished:
        name = str(entry.table.name)
        assert entry.basis is not None
        as_read = entry.basis.table or entry.table
        try:
            table = _carried(step, entry, as_read, now[entry.table.name], point)
            layout = laid_out.get(table.lake_name, PLAIN)
            place = place_of_carried(step.sink, step.run.run_id, step.source, table, layout, entry.place)
        except TerminalError as error:
            log_read_again(name, error)
            continue
        over = "; ".join(f"{era.statement} ({era.begins})" for era in table.eras) or "a change of no row"
        log(f"{name} is not read again: the rows that were read are carried over {over}")
        reason = f"not read again: its rows are carried over {over}; {entry.reason}"
        basis = replace(entry.basis, table=as_read)
        carried[name] = replace(entry, table=table, place=place, reason=reason, basis=basis)
    return carried


def log_read_again(name: str, error: TerminalError) -> None:
    why = "because the rows that were read cannot be carried over the change"
    log(f"{name}: read again, {why}: {error.message}")


def _carried(step: Step, entry: RunTable, as_read: Table, now: Table, point: InitialPoint) -> Table:
    """Return the present table, with the schema changes since it was read.

    :raises SchemaChanged: the read cannot be carried.
    :raises ExactnessError: the log since the read is not complete.
    """
    source, basis = step.source, entry.basis
    assert basis is not None
    (one,) = logs_of(step, [replace(entry, basis=replace(basis, table=as_read))])
    read = (one.identity, one.position, as_read, now, LogEnd(basis.ended), point.position, one.end or None)
    evolution = retry("carry the rows that were read over the schema change", partial(source.carry_read, *read))
    source.check_replaced(one.start.facts, [as_read], point.identity, [now])
    # The window of the table begins at its read, and only these facts were known then.
    details = {**now.details, KNOWN_AT_POSITION: as_read.details.get(KNOWN_AT_POSITION, [])}
    return replace(now, details=details, eras=evolution.eras, selection=as_read.selection)


def read_again(manifest: Manifest, entry: RunTable, why: str) -> RunTable:
    """Return a table of ``manifest`` as it is when it is read again. If the run publishes changes and would have rolled
    the table's last copy forward, the feed of the table ends at this copy."""
    gap, reason = entry.feed_gap, f"read again: {why}; {entry.reason}"
    if gap is not None:
        gap = gap.with_reason(why)
    elif manifest.options.changes and entry.base:
        gap = FeedGap(entry.base, manifest.bases[entry.base].position, why)
        reason += BEGINS_ANEW
    return replace(entry, base="", basis=None, reason=reason, feed_gap=gap)


def altered_in_log(step: Step, altered: Mapping[str, str], read: Collection[str]) -> dict[str, str]:
    """Return the tables that are not in ``altered``, and that a statement in the log has changed, each with the
    statement. So the run moves once for all of them, and not once for each statement that only the log shows.

    :param read: the tables that were read in full under the present manifest.
    """
    rolls = must_be_rolled(step.manifest.options)
    unaltered = [entry for entry in step.tables if str(entry.table.name) not in altered]
    logs = [*logs_of(step, [entry for entry in unaltered if str(entry.table.name) in read or entry.basis])]
    if rolled := [(0, entry) for entry in unaltered if entry.base and not rolls]:
        # The pieces of the log that the run has recorded do not have these tables.
        logs.append(RunLog(step, step.manifest.start, (), tuple(rolled)))
    found: dict[str, str] = {}
    for one in logs:
        source = one.fresh_source()
        try:
            errors = retry("search the log for altered tables", partial(source.altered_in_log, one.tables))
        except LogGone:
            # The run finds this again when it brings the reads to the later position.
            continue
        found |= {str(name): described(error) for name, error in errors.items()}
    return found


def check_parts(source: Source, entries: Sequence[RunTable], tables: Mapping[TableName, Table]) -> None:
    """Check that the selected part of each table still exists.

    :raises SchemaChanged: a column of a selection was changed, so the table can no longer be copied.
    """
    for entry in entries:
        try:
            check_still(source, replace(tables[entry.table.name], selection=entry.table.selection))
        except PreflightError as error:
            what = "; ".join(f"{problem.where}: {problem.what}" for problem in error.problems)
            hint = "change `Table.where` and `Table.columns`, and trigger a new run"
            raise SchemaChanged(what, where=str(entry.table.name), hint=hint) from error
