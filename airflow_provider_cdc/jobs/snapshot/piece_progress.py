"""How far pieces of work are that are large or take long, for whoever watches: else a table that is read in one part,
or a log that is one segment, is at 0 % until it ends, and so are small parts that one Spark task reads together.

Tasks say it in files of the run's folder. Nothing rests on these, so a store that fails holds nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.sources.api.window import LogSegment

LARGE_BYTES = 2 * FILE_BYTES
"""Pieces that weigh less say something only if they take longer than `EVERY_SECONDS`."""
EVERY_SECONDS = 5.0
PARTS, SEGMENTS = "chunks/under-way", "delta/under-way"
"""Where it is said."""
_MOST = 0.99
"""What is known of a piece's size is an estimate, and it is done when its record is there."""
_LOOKED_AT = 64
"""So many pieces at work are looked at, each of which is one file to read."""


class Piece(NamedTuple):
    """Work that says how far it is in the file ``name``. ``weight`` is in bytes, ``expected`` what it reads in all: of
    a part rows, of a segment bytes."""

    name: str
    weight: int
    expected: int


class Told(NamedTuple):
    """``rows`` were read or are to be published, ``weight`` is that of the part of the work that is done.
    ``read_whole``: of so many pieces all that was expected is read, and what is left is to write it, or more than was
    expected."""

    rows: int
    weight: float
    read_whole: int = 0


def piece_of_part(part: Part, tables: Sequence[RunTable]) -> Piece:
    """The work that ``part`` is."""
    expected = sum(chunk.rows for chunk in part.chunks) or tables[part.table].table.rows
    return Piece(f"{PARTS}/{part.name}.json", part.weight, expected or 0)


def piece_of_segment(window: str, segment: LogSegment) -> Piece:
    """The work that a segment of the window of that name is."""
    return Piece(f"{SEGMENTS}/{window}-{segment.number:06}.json", segment.bytes, segment.bytes)


class UnderWay:
    """Says, in a task, how far the piece is, if it is large or takes long."""

    def __init__(self, folder: Storage, piece: Piece) -> None:
        self._folder = folder
        self._name = piece.name
        self._read = self._rows = 0
        self._told = time.monotonic()
        if piece.weight > LARGE_BYTES:
            # An earlier try of the same task may have left what it had read.
            self._tell()

    def add(self, read: int, rows: int) -> None:
        """Tell of ``read`` more, and of ``rows`` more that are published."""
        self.reached(self._read + read, self._rows + rows)

    def reached(self, read: int, rows: int) -> None:
        """Tell of ``read`` in all, and of ``rows``."""
        self._read, self._rows = read, rows
        if time.monotonic() - self._told >= EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        with suppress(CdcError, OSError, pa.ArrowException):
            self._folder.note_json(self._name, {"read": self._read, "rows": self._rows})


def under_way(folder: Storage, place: str, pieces: Iterable[Piece]) -> Told:
    """What was said of ``pieces``, which are not done.

    :param place: the folder in which it is said.
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
    return Told(rows, weight, read_whole)


class Watch:
    """How far the pieces are that are left.

    :param place: the folder in which it is said.
    :param left: the pieces that are not done.
    """

    def __init__(self, folder: Storage, place: str, left: Callable[[], Sequence[Piece]]) -> None:
        self._folder = folder
        self._place = place
        self._left = left
        self._all_read = 0

    def look(self) -> tuple[int, float]:
        """The rows and the weight of what is done of the pieces."""
        left = self._left()
        told = under_way(self._folder, self._place, left)
        self._all_read = len(left) if told.read_whole >= len(left) else 0
        return told.rows, told.weight

    @property
    def all_read(self) -> int:
        """How many pieces were left at the last look, if all of them were read whole; else 0."""
        return self._all_read


def forget(folder: Storage, place: str) -> None:
    """Drop what earlier tries said: those pieces begin at nothing."""
    with suppress(CdcError, OSError, pa.ArrowException):
        folder.delete_folder(place)
