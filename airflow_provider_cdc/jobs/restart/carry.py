"""Carries finished reads of altered tables over the schema change, so that nothing is read again.

A table of a run was read in full, and was altered after that. If the change is one to one, the rows that were read, and
the row images in the log before the change, become rows of the altered table. The rules are those of copies that are
rolled forward over schema changes. See ``docs/design/restarts.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import EarlierReads, RunTable
from airflow_provider_cdc.core.run.plan import InitialPoint
from airflow_provider_cdc.core.tables.layout import PLAIN, Layout
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, Table, TableName
from airflow_provider_cdc.errors import TerminalError
from airflow_provider_cdc.jobs.restart.earlier_reads import undone
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import TableFiles, read_record
from airflow_provider_cdc.sinks.preparation import place_of_carried
from airflow_provider_cdc.sources.api.optional_capabilities import TellsReplaced
from airflow_provider_cdc.sources.api.rolling_forward import CarriesReads
from airflow_provider_cdc.sources.api.window import UpperBound

_SUFFIX = "-altered"


@dataclass(frozen=True)
class FinishedRead:
    """The finished read of a table that was altered since. ``table`` is the table as it was read, and ``entry`` is the
    table in the manifest until now. ``key`` is the key of ``reads`` in the new manifest. The tables that are carried
    have a key of their own, because their log is always that of the source, and never that of recorded pieces."""

    entry: RunTable
    table: Table
    key: str
    reads: EarlierReads
    ended: str


def finished_reads(
    step: Step,
    altered: Collection[str],
    read: Mapping[str, TableFiles],
    reads: EarlierReads | None,
    bound: UpperBound | None,
) -> dict[str, FinishedRead]:
    """Return the finished reads of altered tables that may be carried, by the table's name.

    :param read: the files of the tables that were read in full under the present manifest, and ``reads`` the reference
        to these reads.
    :param bound: the bound of these reads; None: nothing was read.
    """
    manifest = step.manifest
    if not isinstance(step.source, CarriesReads):
        return {}
    entries = [entry for entry in step.tables if str(entry.table.name) in altered and _may_be_carried(entry)]
    found: dict[str, FinishedRead] = {}
    for entry in entries:
        name = str(entry.table.name)
        if entry.live and reads is not None and name in read and not read[name].odd and name not in reads.nulled:
            key = f"{step.run.generation}{_SUFFIX}"
            found[name] = FinishedRead(entry, entry.table, key, replace(reads, nulled={}), read[name].ended)
    if any(entry.read_in for entry in entries):
        lost = undone(step, bound)
        for entry in entries:
            name = str(entry.table.name)
            if not entry.read_in or name in lost:
                continue
            earlier = manifest.earlier_reads[entry.read_in]
            files = read_record(step.run, earlier.record)[name]
            if files.odd or name in earlier.nulled:
                continue
            key = entry.read_in if entry.read_in.endswith(_SUFFIX) else f"{entry.read_in}{_SUFFIX}"
            table = earlier.altered.get(name, entry.table)
            kept = replace(earlier, nulled={}, pieces="", altered={})
            found[name] = FinishedRead(entry, table, key, kept, files.ended)
    return {name: one for name, one in found.items() if one.ended}


def _may_be_carried(entry: RunTable) -> bool:
    # All shards of a merged table have the same columns.
    return entry.table.shard is None


def carried_tables(
    step: Step,
    finished: Mapping[str, FinishedRead],
    planned: Sequence[RunTable],
    point: InitialPoint,
    laid_out: Mapping[TableName, Layout],
) -> dict[str, RunTable]:
    """Return the tables whose finished reads are carried to the new position, by name. The other tables are read again.

    :param planned: the tables of the new manifest. They include the altered tables, which are to be read again.
    :param point: the new position, with the tables as they were recorded after it.
    :param laid_out: the layouts of the tables that have one.
    """
    carried: dict[str, RunTable] = {}
    tables = {table.name: table for table in point.tables}
    for entry in planned:
        one = finished.get(str(entry.table.name))
        if one is None or not entry.live:
            continue
        now = tables[entry.table.name]
        try:
            table = _carried(step, one, now, point)
            layout = laid_out.get(table.lake_name, PLAIN)
            place = place_of_carried(step.sink, step.run.run_id, step.source, table, layout, one.entry.place)
        except TerminalError as error:
            say(f"{one.table.name} is read again, because its rows cannot be carried over the change: {error.message}")
            continue
        over = "; ".join(f"{era.statement} ({era.begins})" for era in table.eras)
        say(f"{one.table.name} is not read again: the rows that were read are carried over {over}")
        reason = f"not read again: its rows are carried over {over}; {one.entry.reason}"
        carried[str(table.name)] = replace(entry, table=table, read_in=one.key, reason=reason, place=place)
    return carried


def _carried(step: Step, one: FinishedRead, now: Table, point: InitialPoint) -> Table:
    """Return the present table, with the schema changes since it was read.

    :raises SchemaChanged: the read cannot be carried.
    :raises ExactnessError: the log since the read is not complete.
    """
    source = step.source
    assert isinstance(source, CarriesReads)
    identity, start = one.reads.identity, parse_position(step.manifest.kind, one.reads.position)
    work = partial(source.carry_read, identity, start, one.table, now, LogEnd(one.ended), point.position)
    evolution = persist("carry the rows that were read over the schema change", work)
    if isinstance(source, TellsReplaced):
        source.check_replaced(identity, [one.table], point.identity, [now])
    # The window of the table begins at its read, and only these facts were known then.
    details = {**now.details, KNOWN_AT_POSITION: one.table.details.get(KNOWN_AT_POSITION, [])}
    return replace(now, details=details, eras=evolution.eras, selection=one.table.selection)


def with_carried(
    earlier_reads: Mapping[str, EarlierReads], finished: Mapping[str, FinishedRead], carried: Collection[str]
) -> dict[str, EarlierReads]:
    """Return the earlier reads of the new manifest, with those of the carried tables."""
    merged = dict(earlier_reads)
    for name in carried:
        one = finished[name]
        reads = merged.get(one.key, one.reads)
        merged[one.key] = replace(reads, altered={**reads.altered, name: one.table})
    return merged
