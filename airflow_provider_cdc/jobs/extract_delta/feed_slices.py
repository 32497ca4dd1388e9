"""Divides the changes of large tables into slices. One task writes each slice.

The changes of a feed are numbered consecutively. So before a slice can be written, the changes before this slice must
be counted. To count them, one task per file of the window reads three narrow columns. A slice is a sequence of row
groups in the order of the log. The changes of a transaction that was prepared in an earlier segment belong to the slice
with its commit.
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
"""The minimum size of a window that is divided into slices, in bytes of changes. For a smaller window, counting the
changes would cost more time than slices save."""
SLICE_ROWS = 500_000
"""The approximate minimum number of changes that one task writes."""
_COLUMNS = ("table", "order", "pending")


@dataclass(frozen=True)
class FileOrder:
    """An order: count the changes in a file of the window."""

    segment: int
    file: int


@dataclass(frozen=True)
class GroupCount:
    """The number of changes of a table in a row group, and the orders of the first and the last of these changes.

    ``pending`` is the id of the prepared transaction that made the changes; empty: the changes are not pending."""

    place: RowGroup
    table: int
    pending: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class CountChanges:
    """A task that counts changes. Spark sends this object to executors."""

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
    """A part of a table's changes: the changes in the row groups ``groups`` that are not pending, and the changes of
    the ``late`` transactions."""

    groups: tuple[RowGroup, ...]
    late: tuple[Late, ...]
    rows: int


def files_of(window: WindowChanges) -> list[FileOrder]:
    """Return the files of a window."""
    return [FileOrder(piece.segment, file) for piece in window.pieces for file in range(len(piece.files))]


def slices_of(window: WindowChanges, table: int, counts: Sequence[GroupCount], slice_rows: int) -> list[Slice]:
    """Return the slices of a table's changes, in their order.

    :param counts: the counts of all files of the window.
    :param slice_rows: the approximate number of changes of each slice.
    :raises DecodeError: the changes are not in the order of the log.
    """
    own = [one for one in counts if one.table == table]
    at = {piece.segment: number for number, piece in enumerate(window.pieces)}
    counting = sorted(
        (one for one in own if not one.pending),
        key=lambda one: (at[one.place.segment], one.place.file, one.place.group),
    )
    if any(after.first < before.last for before, after in pairwise(counting)):
        raise DecodeError("the changes are not in the order of the log", where=f"table {table}")
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
        # Late changes come before the first change after their commit, as in `_in_order`.
        while waiting and (is_last or waiting[0].at.order < one.last):
            late.append(waiting.pop(0))
            rows += prepared[late[-1].segment, late[-1].pending]
        if rows >= slice_rows or is_last:
            found.append(Slice(tuple(groups), tuple(late), rows))
            groups, late, rows = [], [], 0
    if waiting:
        found.append(Slice((), tuple(waiting), sum(prepared[one.segment, one.pending] for one in waiting)))
    return found
