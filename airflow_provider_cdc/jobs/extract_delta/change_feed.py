"""The change feed: the tasks of consolidate that write feed files from the row changes that extract_delta has read.

A task writes the feed of one table, or one slice of the feed of a large table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.run.commit_record import (
    Decision,
    Feed,
    decision_of,
    feed_schema,
    published_run,
    read_bases,
)
from airflow_provider_cdc.core.run.manifest import DELETE, INSERT, UPDATE, FeedGap, RunTable
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.table import Table, TableName, folder_name
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import DecodeError, ManifestError, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes.filter_images import copied_images, decode_published
from airflow_provider_cdc.jobs.extract_delta.window_changes import ChangeRowGroup, ChangeSlice, Late, WindowChanges
from airflow_provider_cdc.jobs.runtime.progress import Progress, ProgressFile, log
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.sinks.base import PublishedCopy
from airflow_provider_cdc.sinks.beside_copies import next_order
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA

# The gaps in the change feeds of a run: tables whose feed ends at the last copy, and begins anew at the run's copy.
#
# See ``docs/design/changes.md``.


def feed_gaps(
    step: Step, copied: Sequence[int], refused: Mapping[int, str]
) -> tuple[dict[int, FeedGap], dict[int, str]]:
    """Return the gaps in the feeds of the ``copied`` tables, and the reasons why other tables are left out.

    :param refused: the tables whose changes cannot be published, with the reasons.
    """
    manifest = step.manifest
    gaps = {index: gap for index in copied if (gap := step.tables[index].feed_gap) is not None}
    if manifest.options.feeds.begins_anew:
        for index, why in refused.items():
            base = step.tables[index].base
            gaps[index] = FeedGap(base, manifest.bases[base].position, why)
        refused = {}
    numbered = {index: replace(gap, first=_first(step, step.tables[index], gap)) for index, gap in gaps.items()}
    return numbered, dict(refused)


def _first(step: Step, entry: RunTable, gap: FeedGap) -> int:
    """Return the number of the first change after a gap. The numbers go on, so that they always increase. One number is
    left out, so that a reader that checks the numbers of the changes notices the gap."""
    return _next_order(step, entry, gap.base) + 1


def _next_order(step: Step, entry: RunTable, run_id: str) -> int:
    """Return a number after those of all changes that consumers may have: the changes up to the copy of the run
    ``run_id``, and the changes in the lake.

    The lake may have greater numbers than this copy: another run may have published since, or this copy was made
    without changes. This copy cannot be rolled forward, perhaps because its records are gone. In this case, only the
    lake has the number.
    """
    before = 1
    # Only a record that is damaged or gone is passed over. If the store does not answer, the step tries again.
    with suppress(ManifestError):
        run = published_run(Storage(step.manifest.scratch), run_id) if run_id else None
        before = decision_of(run).next_order(str(entry.table.name)) if run is not None else 1
    return max(before, next_order(Storage(step.manifest.lake), entry.table.copy_name))


def first_order(step: Step, entry: RunTable, base: Decision) -> int:
    """Return the number of the first change after the copy of a table in the commit ``base``.

    If the run with this commit published no changes, the table may have changes of earlier runs. If feeds may begin
    anew (`FeedOptions`), the numbers go on after theirs, and one number is left out.
    """
    name = str(entry.table.name)
    if name in base.feeds or name in base.feed_gaps or not step.manifest.options.feeds.begins_anew:
        return base.next_order(name)
    following = next_order(Storage(step.manifest.lake), entry.table.copy_name)
    return following + 1 if following > 1 else 1


def gaps_of_latest(decision: Decision, copies: Mapping[TableName, PublishedCopy]) -> dict[str, FeedGap]:
    """Return the gaps in the feeds of the copies that are the latest ones of their tables. A copy that is not the
    latest one, such as the copy of a past day, ends no feed: the feed of the latest copy goes on."""
    latest = {str(name) for name, copy in copies.items() if copy.is_latest}
    return {name: gap for name, gap in decision.feed_gaps.items() if name in latest}


def log_feed_gaps(result: ConsolidateResult) -> None:
    """Print the gaps in the feeds of a published run."""
    for name, gap in result.feed_gaps.items():
        what = gap.described(result.position)
        log(f"consolidate: WARNING: {name}: no changes lead from the last copy to this copy: {what}")


# Divides the changes of large tables into slices. One task writes each slice.
#
# The changes of a feed are numbered consecutively. So before a slice can be written, the changes before this slice must
# be counted. To count them, one task per file of the window reads three narrow columns. A slice is a sequence of row
# groups in the order of the log. The changes of a transaction that was prepared in an earlier segment belong to the
# slice with its commit.


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

    place: ChangeRowGroup
    table: int
    pending: str
    rows: int
    first: int
    last: int


@dataclass(frozen=True)
class CountFeedChanges:
    """A task that counts changes. Spark sends this object to executors."""

    staging: Staging
    tables: tuple[int, ...]
    pieces: tuple[ChangeSlice, ...]

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
                        place = ChangeRowGroup(order.segment, order.file, group)
                        yield GroupCount(place, row["table"], row["pending"] or "", *orders)


@dataclass(frozen=True)
class Slice:
    """A part of a table's changes: the changes in the row groups ``groups`` that are not pending, and the changes of
    the ``late`` transactions."""

    groups: tuple[ChangeRowGroup, ...]
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
    groups: list[ChangeRowGroup] = []
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


DECODED_ROWS = 65_536
_NOT_PUBLISHED = "set `On.unrepresentable` to `null` or `string` for this table, or remove `Refresh.changes`"


@dataclass(frozen=True)
class FeedOrder:
    """An order: write the feed of a table, or one ``slice`` of it. The first change gets the order number ``first``."""

    table: int
    first: int
    slice: Slice | None = None


@dataclass(frozen=True)
class FeedOutcome:
    """The files of a table's feed or of a slice of it. ``refused`` says why the table has no feed."""

    table: int
    files: tuple[StagedFile, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class FeedTask:
    """A task that writes change feeds. Spark sends this object to executors.

    ``continues`` says whether the step continues if a table cannot have a feed. If so, the outcome has the reason.
    """

    staging: Staging
    source: Source
    tables: tuple[RunTable, ...]
    windows: tuple[WindowChanges, ...]
    continues: bool = False

    def __call__(self, order: FeedOrder) -> FeedOutcome:
        with self.staging.reading():
            try:
                return FeedOutcome(order.table, self._written(order))
            except ValueNotRepresentable as error:
                error.hint = _NOT_PUBLISHED
                if not self.continues:
                    raise
                return FeedOutcome(order.table, refused=reason(error))

    def _written(self, order: FeedOrder) -> tuple[StagedFile, ...]:
        table = self.tables[order.table].table
        schema = feed_schema(published_schema(table, self.source.arrow_schema(table)))
        name = f"staged/{folder_name(table.copy_name)}/changes"
        (window,) = (feed_window for feed_window in self.windows if order.table in feed_window.tables)
        following = order.first
        with self.staging.writer(f"{name}/part-{order.first:012}", schema) as writer:
            for rows in _in_order(self.staging, window, order.table, order.slice):
                for start in range(0, rows.num_rows, DECODED_ROWS):
                    feed_rows = self._feed_rows(table, rows.slice(start, DECODED_ROWS), schema, following)
                    writer.write(feed_rows)
                    following += feed_rows.num_rows
        if order.slice is not None and following - order.first != order.slice.rows:
            raise DecodeError(
                f"{following - order.first:,} changes were read, but {order.slice.rows:,} were counted",
                where=f"the changes of {table.name}",
            )
        # An empty file shows readers the schema of a feed without changes.
        return tuple(writer.files) or (self.staging.write_empty(f"{name}/part-empty", schema),)

    def _feed_rows(self, table: Table, rows: pa.Table, schema: pa.Schema, first: int) -> pa.Table:
        if table.selection.where is not None:
            # If a changed row begins to meet the condition, report an insert into the copied part. If it no longer
            # meets the condition, report a delete from the copied part.
            rows = rows.combine_chunks()
            for name in ("before", "after"):
                images = copied_images(self.source, table, _array(rows[name]))
                rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), images)
            rows = rows.filter(pc.or_(rows["before"].is_valid(), rows["after"].is_valid()))
        kind = schema.field("before").type
        before, after = (self._decoded(table, _array(rows[name]), kind) for name in ("before", "after"))
        operation = pc.if_else(before.is_null(), INSERT, pc.if_else(after.is_null(), DELETE, UPDATE))
        order = pa.array(np.arange(first, first + rows.num_rows))
        columns = [operation, rows["position"], order, rows["commit_time"], before, after]
        return pa.table(columns, schema=schema)

    def _decoded(self, table: Table, images: pa.BinaryArray, kind: pa.StructType) -> pa.StructArray:
        there = images.is_valid()
        rows = decode_published(self.source, table, images.filter(there), {})
        arrays = rows.columns
        if images.null_count:
            place = pa.array(np.cumsum(there.to_numpy(zero_copy_only=False)) - 1).cast(pa.int64())
            arrays = [array.take(pc.if_else(there, place, pa.scalar(None, pa.int64()))) for array in arrays]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pc.invert(there))


def _array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _in_order(staging: Staging, window: WindowChanges, table: int, part: Slice | None) -> Iterator[pa.Table]:
    """Yield the changes of a table, of `CHANGE_SCHEMA`, in the order of their commits.

    :param part: read only the changes of this slice; None: all changes.
    """
    pieces_by_segment = {piece.segment: piece for piece in window.pieces}
    late = list(part.late) if part is not None else _late(staging, window, pieces_by_segment, table)
    groups = set(part.groups) if part is not None else None
    last: int | None = None
    for piece in window.pieces:
        for rows in _read(staging, piece, table, None, groups):
            while late and late[0].at.order < rows["order"][-1].as_py():
                cut = int(np.searchsorted(rows["order"].to_numpy(), late[0].at.order))
                yield rows.slice(0, cut)
                yield from _committed(staging, pieces_by_segment[late[0].segment], table, late.pop(0))
                rows = rows.slice(cut)
            orders = rows["order"].to_numpy()
            if (last is not None and orders[0] < last) or (np.diff(orders) < 0).any():
                raise DecodeError("the changes are not in the order of the log", where=staging.folder.uri)
            last = int(orders[-1])
            yield rows
    for late_change in late:
        yield from _committed(staging, pieces_by_segment[late_change.segment], table, late_change)


def _late(staging: Staging, window: WindowChanges, own: Mapping[int, ChangeSlice], table: int) -> list[Late]:
    """Return the transactions with changes of the table that one segment prepared and a later segment committed."""
    waiting = set[tuple[int, str]]()
    for segment in {late_change.segment for late_change in window.late}:
        for rows in _groups(staging, own[segment], table, ["table", "pending"]):
            waiting |= {(segment, pending) for pending in rows["pending"].unique().to_pylist()}
    return [late_change for late_change in window.late if (late_change.segment, late_change.pending) in waiting]


def _committed(staging: Staging, piece: ChangeSlice, table: int, late: Late) -> Iterator[pa.Table]:
    for rows in _read(staging, piece, table, late.pending):
        point = {"position": late.at.position, "commit_time": late.at.time}
        for name, value in point.items():
            field = CHANGE_SCHEMA.field(name)
            constant = pa.repeat(pa.scalar(value, field.type), rows.num_rows)
            rows = rows.set_column(CHANGE_SCHEMA.get_field_index(name), field, constant)
        yield rows


def _read(
    staging: Staging, piece: ChangeSlice, table: int, pending: str | None, groups: Set[ChangeRowGroup] | None = None
) -> Iterator[pa.Table]:
    """Yield the changes of a table in a segment, in their order.

    :param pending: read only the changes of this prepared transaction; None: read only the changes that are not
        pending.
    :param groups: read only the changes in these row groups; None: in all row groups.
    """
    for rows in _groups(staging, piece, table, CHANGE_SCHEMA.names, groups):
        counts = rows["pending"].is_null() if pending is None else pc.equal(rows["pending"], pending)
        rows = rows.filter(pc.fill_null(counts, False))
        if rows.num_rows:
            yield rows


def _groups(
    staging: Staging, piece: ChangeSlice, table: int, columns: Sequence[str], groups: Set[ChangeRowGroup] | None = None
) -> Iterator[pa.Table]:
    """Yield all changes of a table in a segment's files, or only the changes in the row groups ``groups``."""
    column = CHANGE_SCHEMA.get_field_index("table")
    read_files = None if groups is None else {(one.segment, one.file) for one in groups}
    for number, file in enumerate(piece.files):
        if read_files is not None and (piece.segment, number) not in read_files:
            continue
        with pq.ParquetFile(staging.folder.path(file.name), filesystem=staging.folder.filesystem) as parquet:
            for group in range(parquet.num_row_groups):
                if groups is not None and ChangeRowGroup(piece.segment, number, group) not in groups:
                    continue
                statistics = parquet.metadata.row_group(group).column(column).statistics
                if statistics is not None and statistics.has_min_max and not statistics.min <= table <= statistics.max:
                    continue
                rows = parquet.read_row_group(group, columns=list(columns))
                yield rows.filter(pc.equal(rows["table"], table))


def stage_feeds(
    step: Step, windows: Sequence[WindowChanges], copied: Sequence[int]
) -> tuple[dict[int, Feed], dict[int, str]]:
    """Write the feeds of the tables that are rolled forward. Return the feeds, and the reasons why other tables cannot
    have a feed.

    :param windows: the row changes of each window; empty if the run makes no feeds.
    :param copied: the indices of the tables that are copied.
    """
    if not windows:
        return {}, {}
    manifest = step.manifest
    bases = read_bases(Storage(manifest.scratch), manifest.bases)
    firsts = {}
    for index in copied:
        entry = step.tables[index]
        if entry.base and entry.feed_gap is None and any(index in window.tables for window in windows):
            firsts[index] = first_order(step, entry, bases[entry.base])
    orders = [order for window in windows for order in _orders(step, window, firsts)]
    log(f"consolidate: writing the changes of {format_count(len(firsts), 'table')}")
    note = ProgressFile(step.folder).note
    progress = Progress("consolidate, changes", "task", len(orders), len(orders), note=note)

    def written(outcome: FeedOutcome) -> None:
        size = sum(file.bytes for file in outcome.files)
        progress.add(1, sum(file.rows for file in outcome.files), 1, size)

    continues = manifest.options.skips or manifest.options.feeds.begins_anew
    work = FeedTask(step.staging, step.source, step.tables, tuple(windows), continues)
    outcomes = run_tasks(step.spark, "write the change feeds", orders, work, written, meanwhile=progress.tick)
    refused = {outcome.table: outcome.refused for outcome in outcomes if outcome.refused}
    files: dict[int, list[StagedFile]] = {index: [] for index in firsts}
    for outcome in outcomes:
        files[outcome.table] += outcome.files
    feeds = {}
    for index, first in firsts.items():
        if index not in refused:
            base = step.tables[index].base
            feeds[index] = Feed(base, manifest.bases[base].position, first, tuple(files[index]))
    return feeds, refused


def _orders(step: Step, window: WindowChanges, firsts: Mapping[int, int]) -> list[FeedOrder]:
    """Return the orders for the tables of a window. The orders of each table are sorted by the order of its changes.

    A table with a condition (`where`) is one order, because the number of its published changes is known only after all
    changes were read.

    :param firsts: the order number of the first change of each table's feed.
    """
    tables = [index for index in window.tables if index in firsts]
    whole = [index for index in tables if step.tables[index].table.selection.where is None]
    parts: dict[int, list[Slice]] = {}
    if whole and sum(file.bytes for file in window.files) > SPLIT_BYTES:
        work = CountFeedChanges(step.staging, tuple(whole), window.pieces)
        counted_files = run_tasks(step.spark, "count the changes", files_of(window), work)
        counts = [one for counts_of_file in counted_files for one in counts_of_file]
        parts = {index: slices_of(window, index, counts, SLICE_ROWS) for index in whole}
    orders = []
    for index in tables:
        own = parts.get(index, [])
        if len(own) < 2:
            orders.append(FeedOrder(index, firsts[index]))
            continue
        following = firsts[index]
        for one in own:
            orders.append(FeedOrder(index, following, one))
            following += one.rows
    return orders
