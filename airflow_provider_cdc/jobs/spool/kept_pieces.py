"""Brings finished reads to a later position of the run by the pieces of the log that the run has recorded.

If the run moves to a later position, the reads of other tables need the log from the position at which they began. The
source may have removed this log behind the spool. The recorded pieces have it up to the end of the last piece. A last
piece is read when the run moves. It ends at the new position. So the pieces join, and are the log between both
positions. The manifest of the new position names them, so a piece that another attempt records later does not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import EarlierReads, Manifest, RunTable
from airflow_provider_cdc.core.run.spool_chain import SPOOL, Link
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, LogGone, ValueNotRepresentable
from airflow_provider_cdc.jobs.extract_delta.read_segment import ReadSegment, SegmentRecord
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.log import Start
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import TrackedTable

# One piece of the spooled log: what it tracks, and its record.


@dataclass(frozen=True)
class Piece:
    """The files of a piece. ``segments`` are in the order of the log. The first piece also has the earlier segments in
    which transactions were prepared that had not ended when the piece was read."""

    segments: tuple[SegmentRecord, ...]


def tracked_for(manifest: Manifest, upper: Position) -> tuple[TrackedTable, ...]:
    """Return the tables whose changes a piece has.

    :param upper: a bound on all transactions in the piece.
    """
    return tuple(
        tracked_table(index, entry.table, upper) for index, entry in enumerate(manifest.tables) if entry.is_read
    )


def tracked_table(index: int, table: Table, upper: Position) -> TrackedTable:
    """Return the way in which a piece has the changes of a table.

    A piece has both images of each changed row of a keyed table: the row before its first change in the piece, and the
    row after its last change. So the piece can be applied in both directions. Changes of a keyless table count only up
    to the position at which the table is read, which is not known yet. So a piece has each single change of it.

    :param upper: a bound on all transactions in the piece.
    """
    if table.keyless:
        return TrackedTable(index, table, upper, forward=True, changes=True)
    return TrackedTable(index, table, forward=True)


_NAME = "spool"


@dataclass(frozen=True)
class Shape:
    """The columns that a table has in the pieces of the log before the ``end``-th one."""

    end: int
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class KeptPieces:
    """The record of the log from the position at which reads began. ``links`` are the pieces, in the order of the log.
    ``tables`` has the index of each table in the files of the pieces, by the table's name. ``shapes`` has, in the order
    of the log, the earlier columns of tables that were altered since (`jobs.restart.carry`). In the other
    pieces, a table has the columns of the manifest."""

    links: tuple[Link, ...]
    tables: dict[str, int]
    shapes: dict[str, tuple[Shape, ...]] = field(default_factory=dict)


def recorded_pieces(step: Step, key: str) -> KeptPieces | None:
    """Return all pieces that were recorded since reads began, as of the state of the run. None: nothing was recorded.

    :param key: the key of the reads in `Manifest.earlier_reads`. Empty: the reads under the present manifest.
    """
    if key:
        pieces = pieces_of(step, step.manifest.earlier_reads[key])
        return pieces and replace(pieces, links=(*pieces.links, *step.run.state.pieces.get(key, ())))
    links = step.run.state.pieces.get("", ())
    if not links:
        return None
    indices = {str(entry.table.name): index for index, entry in enumerate(step.tables) if entry.is_read}
    return KeptPieces(links, indices)


def pieces_of(step: Step, reads: EarlierReads) -> KeptPieces | None:
    """Return the pieces from the position of earlier reads up to the present position of the run. None: the source
    still has this log."""
    return records.read_named(KeptPieces, step.folder, reads.pieces) if reads.pieces else None


def last_piece_of(step: Step, key: str) -> Link | None:
    """Return the last piece that was recorded since earlier reads began. None: nothing was recorded."""
    pieces = pieces_of(step, step.manifest.earlier_reads[key])
    return None if pieces is None else (*pieces.links, *step.run.pieces(key))[-1]


def up_to(
    step: Step,
    source: Source,
    identity: Facts,
    start: Position,
    pieces: KeptPieces,
    entries: Sequence[RunTable],
    end: Position,
) -> str:
    """Complete the pieces up to the position ``end``, and return the name of the record.

    :param source: the source as of the manifest of the reads. ``identity`` and ``start`` are the identity and the
        position of this manifest.
    :param entries: the tables that were read.
    :param end: a position that includes all transactions before the end of the last piece.
    :raises LogGone: the log after the last piece is gone, or the server has lost a part of the log.
    :raises SchemaChanged: a table was altered.
    """
    place = retry("find the later position in the log", partial(source.place_of, end))
    if source.is_before(pieces.links[-1].end, place):
        read = partial(_last_piece, step, source, identity, start, pieces, entries, end)
        try:
            last = retry("read the log up to the later position", read)
        except ValueNotRepresentable as error:
            # Whether the value matters is known only when all changes are composed.
            raise LogGone(f"a piece of the log cannot hold a value: {error.message}", where=error.where) from error
        pieces = replace(pieces, links=(*pieces.links, last))
    return records.write_named(step.folder, f"{SPOOL}/kept", pieces)


def _last_piece(
    step: Step,
    source: Source,
    identity: Facts,
    start: Position,
    pieces: KeptPieces,
    entries: Sequence[RunTable],
    end: Position,
) -> Link:
    last, place = pieces.links[-1], source.place_of(end)
    incarnation, restarts = step.source.bound_reads().incarnation, last.restarts
    if incarnation != last.incarnation:
        source.check_joined(last.start, last.end, start, identity)
        restarts += 1
    tracked = tuple(tracked_table(pieces.tables[str(entry.table.name)], entry.table, end) for entry in entries)
    known = source.note_tables(place, [entry.table for entry in entries])
    keyless = tuple(one.index for one in tracked if one.table.keyless)
    segments = source.segments(Start(start, identity), last.end, place, number=last.next_segment)
    work = ReadSegment(step.staging, _NAME, source, _NAME, start, tracked, events=keyless)
    read = tuple(work.read(segment) for segment in segments)
    images = sum(one.summary.row_images for one in read)
    log(f"spool: the log up to the later position: {format_count(images, 'row image')}")
    return Link(
        number=last.number + 1,
        token=step.token,
        start=last.end,
        end=place,
        upper=str(end),
        incarnation=incarnation,
        restarts=restarts,
        next_segment=max(segment.number for segment in segments) + 1,
        record=records.write_named(step.folder, f"{SPOOL}/piece", Piece(read)),
        known=known,
    )


def acknowledge(step: Step, manifest: Manifest) -> None:
    """Let the source remove the log up to the position of ``manifest``, the present manifest of the run, as far as it
    keeps this log only for earlier reads."""
    for reads in manifest.earlier_reads.values():
        if (pieces := pieces_of(step, reads)) is not None:
            # If this fails, the source keeps more log than the run needs.
            with suppress(CdcError):
                step.source.acknowledge(reads.identity, pieces.links[-1].end)
