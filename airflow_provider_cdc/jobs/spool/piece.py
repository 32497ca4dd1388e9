"""One piece of the spooled log: what it tracks, and its record."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.jobs.extract_delta.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.window import TrackedTable


@dataclass(frozen=True)
class Piece:
    """The files of a piece. ``segments`` are in the order of the log. The first piece also has the earlier segments in
    which transactions were prepared that had not ended when the piece was read."""

    segments: tuple[SegmentRecord, ...]


def tracked_for(manifest: Manifest, upper: Position) -> tuple[TrackedTable, ...]:
    """Return the tables whose changes a piece has.

    :param upper: a bound on all transactions in the piece.
    """
    return tuple(tracked_table(index, entry.table, upper) for index, entry in enumerate(manifest.tables) if entry.live)


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
