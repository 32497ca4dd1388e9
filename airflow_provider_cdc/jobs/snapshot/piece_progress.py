"""How far large pieces of work are, for whoever watches: else a table that is read in one part, or a log that is one
segment, is at 0 % until it ends.

Tasks say it in files of the run's folder. Nothing rests on these, so a store that fails holds nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.sources.api.window import LogSegment

LARGE_BYTES = 2 * FILE_BYTES
"""Pieces that weigh less are read soon enough."""
EVERY_SECONDS = 5.0
_MOST = 0.99
"""What is known of a piece's size is an estimate, and it is done when its record is there."""


class Piece(NamedTuple):
    """Work that says how far it is in the file ``name``. ``weight`` is in bytes, ``expected`` what it reads in all: of
    a part rows, of a segment bytes."""

    name: str
    weight: int
    expected: int


class Told(NamedTuple):
    """``rows`` were read or are to be published, ``weight`` is that of the part of the work that is done."""

    rows: int
    weight: float


def piece_of_part(part: Part, tables: Sequence[RunTable]) -> Piece:
    """The work that ``part`` is."""
    expected = sum(chunk.rows for chunk in part.chunks) or tables[part.table].table.rows
    return Piece(f"chunks/under-way/{part.name}.json", part.weight, expected or 0)


def piece_of_segment(window: str, segment: LogSegment) -> Piece:
    """The work that a segment of the window of that name is."""
    return Piece(f"delta/under-way/{window}-{segment.number:06}.json", segment.bytes, segment.bytes)


class UnderWay:
    """Says, in a task, how far the piece is, if it is large."""

    def __init__(self, folder: Storage, piece: Piece) -> None:
        self._folder = folder if piece.weight > LARGE_BYTES else None
        self._name = piece.name
        self._read = self._rows = 0
        # An earlier try may have left what it had read.
        self._tell()

    def add(self, read: int, rows: int) -> None:
        """Tell of ``read`` more, and of ``rows`` more that are published."""
        self.reached(self._read + read, self._rows + rows)

    def reached(self, read: int, rows: int) -> None:
        """Tell of ``read`` in all, and of ``rows``."""
        self._read, self._rows = read, rows
        if self._folder and time.monotonic() - self._told >= EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self._folder:
            with suppress(CdcError, OSError, pa.ArrowException):
                self._folder.note_json(self._name, {"read": self._read, "rows": self._rows})


def under_way(folder: Storage, pieces: Iterable[Piece]) -> Told:
    """What was said of the large ones among ``pieces``."""
    rows, weight = 0, 0.0
    for piece in pieces:
        if piece.weight <= LARGE_BYTES:
            continue
        with suppress(CdcError, OSError, pa.ArrowException, KeyError, TypeError):
            progress = folder.read_json(piece.name)
            weight += piece.weight * min(progress["read"] / max(1, piece.expected), _MOST)
            rows += progress["rows"]
    return Told(rows, weight)
