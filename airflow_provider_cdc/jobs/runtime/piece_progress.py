"""Reports progress within a piece of work (a part or a log segment), if the piece is large or takes long.

Without these reports, a table that is read in one part, or a log of one segment, would show 0 % until its end. Small
parts that one Spark task reads together would also show 0 %. Tasks write their progress to files in the run's folder.
No result depends on these files, so errors of the store are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sources.api.window import LogSegment

LARGE_BYTES = 2 * FILE_BYTES
"""Smaller pieces report progress only if they take longer than `EVERY_SECONDS`."""
EVERY_SECONDS = 5.0
PARTS, SEGMENTS = "chunks/under-way", "delta/under-way"
"""The folders of the progress files."""
_MOST = 0.99
"""The maximum fraction of its work that a piece can report as done. The size of a piece is only an estimate, and only
the record of a piece shows that the piece is done."""
_LOOKED_AT = 64
"""The maximum number of pieces whose progress files are read at a time."""


class PartPiece(NamedTuple):
    """A piece of work, which reports its progress in the file ``name``.

    ``weight`` is its size in bytes. ``expected`` is the total that the task reads: rows of a part, or bytes of a
    segment."""

    name: str
    weight: int
    expected: int


class PieceState(NamedTuple):
    """The progress of several pieces. ``rows`` is the number of rows that were read, or that will be published.
    ``weight`` is the weight of the work that is done. ``read_whole`` is the number of pieces that have read as much as
    expected. Such a piece is still writing, or has more to read than expected."""

    rows: int
    weight: float
    read_whole: int = 0


def piece_of_segment(window: str, segment: LogSegment) -> PartPiece:
    """Return the piece of work of a segment of the window with this name."""
    return PartPiece(f"{SEGMENTS}/{window}-{segment.number:06}.json", segment.bytes, segment.bytes)


class UnderWay:
    """Reports the progress of a task's piece, if the piece is large or takes long."""

    def __init__(self, folder: Storage, piece: PartPiece) -> None:
        self._folder = folder
        self._name = piece.name
        self._read = self._rows = 0
        self._told = time.monotonic()
        if piece.weight > LARGE_BYTES:
            # Overwrite progress that an earlier try of the same task has left.
            self._tell()

    def add(self, read: int, rows: int) -> None:
        """Report that ``read`` more units were read, and that ``rows`` more rows will be published."""
        self.reached(self._read + read, self._rows + rows)

    def reached(self, read: int, rows: int) -> None:
        """Report that ``read`` units were read in total, and that ``rows`` rows will be published in total."""
        self._read, self._rows = read, rows
        if time.monotonic() - self._told >= EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.note_json(self._name, {"read": self._read, "rows": self._rows})


def under_way(folder: Storage, place: str, pieces: Iterable[PartPiece]) -> PieceState:
    """Read the progress of ``pieces`` that are not done.

    :param place: the folder of the progress files.
    """
    rows, weight, read_whole = 0, 0.0, 0
    present = set[str]()
    with suppress(CdcError, OSError, pa.ArrowException):
        present = set(folder.files(place))
    for piece in islice((piece for piece in pieces if piece.name in present), _LOOKED_AT):
        with suppress(CdcError, OSError, pa.ArrowException, KeyError, TypeError):
            progress = folder.read_json(piece.name)
            share = progress["read"] / max(1, piece.expected)
            rows += progress["rows"]
            weight += piece.weight * min(share, _MOST)
            read_whole += share >= 1
    return PieceState(rows, weight, read_whole)


class PieceWatch:
    """Watches the progress of the pieces that are not done.

    :param place: the folder of the progress files.
    :param left: returns the pieces that are not done.
    """

    def __init__(self, folder: Storage, place: str, left: Callable[[], Sequence[PartPiece]]) -> None:
        self._folder = folder
        self._place = place
        self._left = left
        self._all_read = 0

    def poll(self) -> tuple[int, float]:
        """Return the rows and the weight of the work that the pieces have done."""
        left = self._left()
        told = under_way(self._folder, self._place, left)
        self._all_read = len(left) if told.read_whole >= len(left) else 0
        return told.rows, told.weight

    @property
    def all_read(self) -> int:
        """Return the number of pieces that were not done at the last call of `look`, if all of them had read as much as
        expected; otherwise 0."""
        return self._all_read


def forget(folder: Storage, place: str) -> None:
    """Delete the progress files of earlier tries, because their pieces begin again."""
    with suppress(CdcError, OSError, pa.ArrowException):
        folder.delete_folder(place)
