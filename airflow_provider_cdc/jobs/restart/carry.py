"""Carries finished reads of altered tables over the schema change, so that nothing is read again.

A table of a run was read in full, and was altered after that. If the change is one to one, the rows that were read, and
the row images in the log before the change, become rows of the altered table. The rules are those of copies that are
rolled forward over schema changes. See ``docs/design/carried-reads.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import EarlierReads, InitialPoint, RunTable
from airflow_provider_cdc.core.run.spool_chain import reaching
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, PLAIN, Column, Layout, Table, TableName
from airflow_provider_cdc.errors import TerminalError
from airflow_provider_cdc.jobs.begin.preparation import place_of_carried
from airflow_provider_cdc.jobs.changes.filter_images import CarriedImages
from airflow_provider_cdc.jobs.restart.altered import named
from airflow_provider_cdc.jobs.restart.earlier_reads import undone
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot.table_files import ReadFiles, read_record
from airflow_provider_cdc.jobs.spool.kept_pieces import KeptPieces, Piece, Shape, recorded_pieces, up_to
from airflow_provider_cdc.sources.api.window import UpperBound

# Carries the recorded pieces of the log over schema changes, together with the rows that were read.
#
# The pieces before a schema change have row images with the columns that the table had then. When the net change is
# composed, these images become images of the present table. The last piece is read when the run moves. The source reads
# it with the schema changes, so it has images of the present table.


def pieces_to_carry(step: Step, key: str) -> KeptPieces | None:
    """Return the pieces that were recorded since reads began. None: there are none, or the source cannot carry them."""
    return recorded_pieces(step, key) if step.source.carries_pieces else None


def carried_pieces(
    step: Step, finished: Mapping[str, FinishedRead], carried: Mapping[str, RunTable], point: InitialPoint
) -> str:
    """Record the log of carried tables up to the new position. Return the name of the record. Empty: there are no
    pieces.

    :param finished: the reads, by the table's name. All of them began under one manifest.
    :param carried: the present tables, by the same names.
    :raises LogGone: the log after the last piece is gone.
    :raises SchemaChanged: the log has row images that cannot be carried.
    """
    one = next(iter(finished.values()))
    if (pieces := one.pieces) is None:
        return ""
    shapes = {
        name: (*pieces.shapes.get(name, ()), Shape(len(pieces.links), read.entry.table.columns))
        for name, read in finished.items()
    }
    start = step.manifest.begin_of(one.reads)
    source = step.source.of_run(reaching(one.reads.identity, pieces.links[-1]), start)
    shaped = replace(pieces, shapes=shapes)
    return up_to(step, source, one.reads.identity, start, shaped, [*carried.values()], point.position)


def carried_images(step: Step, pieces: KeptPieces, tables: Mapping[str, tuple[int, RunTable]]) -> CarriedImages | None:
    """Return the earlier columns of ``tables`` in the segments of ``pieces``. None: there are none.

    :param tables: the tables with their indices in the run, by name.
    """
    shapes = {name: pieces.shapes[name] for name in tables if name in pieces.shapes}
    if not shapes:
        return None
    columns: dict[int, dict[int, tuple[Column, ...]]] = {}
    for number, link in enumerate(pieces.links):
        then = {
            tables[name][0]: next(shape.columns for shape in several if number < shape.end)
            for name, several in shapes.items()
            if number < several[-1].end
        }
        if then:
            for record in records.read_named(Piece, step.folder, link.record).segments:
                columns[record.segment] = then
    return CarriedImages(step.source, {tables[name][0]: tables[name][1].table for name in shapes}, columns)


_SUFFIX = "-altered"


@dataclass(frozen=True)
class FinishedRead:
    """The finished read of a table that was altered since. ``table`` is the table as it was read, and ``entry`` is the
    table in the manifest until now. ``key`` is the key of ``reads`` in the new manifest. The tables that are carried
    have a key of their own, because their log has another form than that of other tables. ``pieces`` has the recorded
    log since the read, if the source can carry it (`carried_pieces`). None: the source still has this log."""

    entry: RunTable
    table: Table
    key: str
    reads: EarlierReads
    ended: str
    pieces: KeptPieces | None


def finished_reads(
    step: Step,
    altered: Collection[str],
    read: Mapping[str, ReadFiles],
    reads: EarlierReads | None,
    bound: UpperBound | None,
) -> dict[str, FinishedRead]:
    """Return the finished reads of altered tables that may be carried, by the table's name.

    :param read: the files of the tables that were read in full under the present manifest, and ``reads`` the reference
        to these reads.
    :param bound: the bound of these reads; None: nothing was read.
    """
    manifest = step.manifest
    entries = [entry for entry in step.tables if str(entry.table.name) in altered and _may_be_carried(entry)]
    found: dict[str, FinishedRead] = {}
    for entry in entries:
        name = str(entry.table.name)
        if entry.is_read and reads is not None and name in read and not read[name].odd and name not in reads.nulled:
            key = f"{step.run.generation}{_SUFFIX}"
            pieces = pieces_to_carry(step, "")
            found[name] = FinishedRead(entry, entry.table, key, replace(reads, nulled={}), read[name].ended, pieces)
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
            if (pieces := pieces_to_carry(step, entry.read_in)) is not None:
                # The pieces of the tables that are not altered this time stay as they are.
                key = f"{step.run.generation}-{entry.read_in}{_SUFFIX}"
            table = earlier.altered.get(name, entry.table)
            kept = replace(earlier, nulled={}, pieces="", altered={})
            found[name] = FinishedRead(entry, table, key, kept, files.ended, pieces)
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
) -> tuple[dict[str, RunTable], dict[str, str]]:
    """Return the tables whose finished reads are carried to the new position, by name. The other tables are read again.
    Also return the records of the pieces with their log, by the keys of the reads.

    :param planned: the tables of the new manifest. They include the altered tables, which are to be read again.
    :param point: the new position, with the tables as they were recorded after it.
    :param laid_out: the layouts of the tables that have one.
    """
    carried: dict[str, RunTable] = {}
    tables = {table.name: table for table in point.tables}
    for entry in planned:
        one = finished.get(str(entry.table.name))
        if one is None or not entry.is_read:
            continue
        now = tables[entry.table.name]
        try:
            table = _carried(step, one, now, point)
            layout = laid_out.get(table.lake_name, PLAIN)
            place = place_of_carried(step.sink, step.run.run_id, step.source, table, layout, one.entry.place)
        except TerminalError as error:
            _say_read_again([str(one.table.name)], error)
            continue
        carried[str(table.name)] = replace(entry, table=table, read_in=one.key, place=place)
    pieces: dict[str, str] = {}
    for key in {entry.read_in for entry in carried.values()}:
        together = {name: entry for name, entry in carried.items() if entry.read_in == key}
        while together:
            try:
                pieces[key] = carried_pieces(step, {name: finished[name] for name in together}, together, point)
                break
            except TerminalError as error:
                # The log of the other tables may still be carried.
                broken = named(error, together)
                read_again = [*together] if broken is None else [broken]
                _say_read_again(read_again, error)
                for name in read_again:
                    del together[name], carried[name]
    for name, entry in carried.items():
        over = "; ".join(f"{era.statement} ({era.begins})" for era in entry.table.eras) or "a change of no row"
        log(f"{name} is not read again: the rows that were read are carried over {over}")
        reason = f"not read again: its rows are carried over {over}; {finished[name].entry.reason}"
        carried[name] = replace(entry, reason=reason)
    return carried, pieces


def _say_read_again(names: Collection[str], error: TerminalError) -> None:
    why = "because the rows that were read cannot be carried over the change"
    log(f"{', '.join(names)}: read again, {why}: {error.message}")


def _carried(step: Step, one: FinishedRead, now: Table, point: InitialPoint) -> Table:
    """Return the present table, with the schema changes since it was read.

    :raises SchemaChanged: the read cannot be carried.
    :raises ExactnessError: the log since the read is not complete.
    """
    source = step.source
    identity, start = one.reads.identity, step.manifest.begin_of(one.reads)
    last = one.pieces.links[-1] if one.pieces is not None else None
    known = identity if last is None else reaching(identity, last)
    read = (known, start, one.table, now, LogEnd(one.ended), point.position)
    work = partial(source.carry_read, *read, None if last is None else last.end)
    evolution = retry("carry the rows that were read over the schema change", work)
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
