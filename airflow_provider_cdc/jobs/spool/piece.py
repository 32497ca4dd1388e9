"""One piece of the spooled log: what it tracks, and its record."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Manifest
from airflow_provider_cdc.jobs.extract_delta.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.window import TrackedTable


@dataclass(frozen=True)
class Piece:
    """The files of a piece. ``segments`` are in the order of the log. The first piece also has the earlier segments in
    which transactions were prepared that had not ended when the piece was read."""

    segments: tuple[SegmentRecord, ...]


def tracked_for(manifest: Manifest, upper: Position) -> tuple[TrackedTable, ...]:
    """Return the tables whose changes a piece has.

    A piece has both images of each changed row of a keyed table: the row before its first change in the piece, and the
    row after its last change. So the piece can be applied in both directions. Changes of a keyless table count only up
    to the position at which the table is read, which is not known yet. So a piece has each single change of it.

    :param upper: a bound on all transactions in the piece.
    """
    return tuple(
        TrackedTable(index, entry.table, upper, forward=True, changes=True)
        if entry.table.keyless
        else TrackedTable(index, entry.table, forward=True)
        for index, entry in enumerate(manifest.tables)
        if entry.live
    )
