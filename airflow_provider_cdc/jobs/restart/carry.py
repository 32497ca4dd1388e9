"""Carries finished reads of altered tables over the schema change, so that nothing is read again.

A table of a run was read in full, and was altered after that. If the change is one to one, the rows that were read, and
the row images in the log before the change, become rows of the altered table. The rules are those of copies that are
rolled forward over schema changes. See ``docs/design/carried-reads.md``.

The recorded pieces of the log before a schema change have row images with the columns that the table had then. When the
net change is composed, these images become images of the present table (`jobs.log.log.RunLog.carried_images`). The last
piece is read when the run moves. The source reads it with the schema changes, so it has images of the present table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import Basis, InitialPoint, RunTable
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, PLAIN, Layout, Table, TableName
from airflow_provider_cdc.errors import TerminalError
from airflow_provider_cdc.jobs.begin.preparation import place_of_carried
from airflow_provider_cdc.jobs.log.log import logs_of
from airflow_provider_cdc.jobs.reads.table_files import read_record
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.window import UpperBound


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
            say_read_again(name, error)
            continue
        over = "; ".join(f"{era.statement} ({era.begins})" for era in table.eras) or "a change of no row"
        log(f"{name} is not read again: the rows that were read are carried over {over}")
        reason = f"not read again: its rows are carried over {over}; {entry.reason}"
        basis = replace(entry.basis, table=as_read)
        carried[name] = replace(entry, table=table, place=place, reason=reason, basis=basis)
    return carried


def say_read_again(name: str, error: TerminalError) -> None:
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
