"""Cuts the changes of large tables into slices, each of which one task writes files of.

Each change of a feed has a number that grows by one from change to change. So before a slice can be written, the
changes before it have to be counted: each file of the window is looked at once, by a task of its own, which reads three
narrow columns. Slices are runs of row groups, in the order of the log; what a transaction that was prepared earlier
changed belongs to the slice in which its commit lies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow.parquet as pq

from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.errors import DecodeError
from airflow_provider_cdc.jobs.extract_delta.window_changes import Late, Piece, RowGroup, WindowChanges

SPLIT_BYTES = 64 * 2**20
"""A window whose changes are fewer bytes is not worth a look of its own."""
SLICE_ROWS = 500_000
"""About so many changes are written by one task at the least."""
_COLUMNS = ("table", "order", "pending")


@dataclass(frozen=True)
class FileOrder:
    """An order: count the changes in a file of the window."""

    segment: int
    file: int


@dataclass(frozen=True)
class GroupCount:
    """How many changes of a table a row group has that count there (``pending`` is empty), or that are ``pending``; and
    the orders of the first one and the last one."""

    place: RowGroup
    table: int
    pending: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class CountChanges:
    """What a task that counts changes needs to know. It is sent to executors."""

    staging: Staging
    tables: tuple[int, ...]
    pieces: tuple[Piece, ...]

    def __call__(self, order: FileOrder) -> list[GroupCount]:
        with self.staging.reading():
            return list(self._counts(order))

    def _counts(self, order: FileOrder) -> Iterator[GroupCount]:
        (piece,) = (one for one in self.pieces if one.segment == order.segment)
        folder = self.staging.folder
        path = folder.path(piece.files[order.file].name)
        with pq.ParquetFile(path, filesystem=folder.filesystem) as found:
            for group in range(found.num_row_groups):
                rows = found.read_row_group(group, columns=list(_COLUMNS))
                totals = rows.group_by(["table", "pending"], use_threads=False).aggregate(
                    [("order", "count"), ("order", "min"), ("order", "max")]
                )
                for row in totals.to_pylist():
                    if row["table"] in self.tables:
                        orders = row["order_count"], row["order_min"], row["order_max"]
                        place = RowGroup(order.segment, order.file, group)
                        yield GroupCount(place, row["table"], row["pending"] or "", *orders)


@dataclass(frozen=True)
class Slice:
    """A part of a table's changes: those that count in ``groups``, and those of the transactions that are ``late``."""

    groups: tuple[RowGroup, ...]
    late: tuple[Late, ...]
    rows: int


def files_of(window: WindowChanges) -> list[FileOrder]:
    """The files of a window."""
    return [FileOrder(piece.segment, file) for piece in window.pieces for file in range(len(piece.files))]


def slices_of(window: WindowChanges, table: int, counts: Sequence[GroupCount], slice_rows: int) -> list[Slice]:
    """The slices of a table's changes, in their order.

    :param counts: of all files of the window.
    :param slice_rows: about how many changes each slice has.
    :raises DecodeError: the changes are not in the order of the log.
    """
    own = [one for one in counts if one.table == table]
    at = {piece.segment: number for number, piece in enumerate(window.pieces)}
    counting = sorted(
        (one for one in own if not one.pending),
        key=lambda one: (at[one.place.segment], one.place.file, one.place.group),
    )
    if any(after.first < before.last for before, after in pairwise(counting)):
        raise DecodeError("changes of the log are not in their order", where=f"table {table}")
    prepared: dict[tuple[int, str], int] = {}
    for one in own:
        if one.pending:
            key = one.place.segment, one.pending
            prepared[key] = prepared.get(key, 0) + one.rows
    waiting = [one for one in window.late if (one.segment, one.pending) in prepared]
    found: list[Slice] = []
    groups: list[RowGroup] = []
    late: list[Late] = []
    rows = 0
    for number, one in enumerate(counting):
        groups.append(one.place)
        rows += one.rows
        is_last = number == len(counting) - 1
        # As `_in_order` has it: before the first change that comes after the commit.
        while waiting and (is_last or waiting[0].at.order < one.last):
            late.append(waiting.pop(0))
            rows += prepared[late[-1].segment, late[-1].pending]
        if rows >= slice_rows or is_last:
            found.append(Slice(tuple(groups), tuple(late), rows))
            groups, late, rows = [], [], 0
    if waiting:
        found.append(Slice((), tuple(waiting), sum(prepared[one.segment, one.pending] for one in waiting)))
    return found
