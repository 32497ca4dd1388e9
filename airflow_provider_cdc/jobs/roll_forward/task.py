"""The tasks of consolidate that roll tables forward: they apply the window's net change to files of the base copy.

Each row that is removed or replaced must be, bit for bit, the row that the log has for it before the window. If it
differs, the row was changed without an entry in the log, or a change was lost. Changed rows stay in place. If rows of a
file were changed, but none were added or deleted, only the columns with changes are encoded again. A new row goes into
the file, and the row group, whose range of keys contains its key. So the statistics of the files still show which file
can have a key.

Where the log has only the keys of touched rows, these rows were read again. The rows that were read again are added as
new rows, and the rows that they replace cannot be compared with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.parquet.splice import UnknownFooter
from airflow_provider_cdc.core.parquet.writer import ROW_GROUP_BYTES, ParquetWriter
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging, difference
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CopyMismatch, FileDamaged, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import decode_published
from airflow_provider_cdc.jobs.changes.net_change_files import NetChange
from airflow_provider_cdc.jobs.consolidate.reread_layers import rows_again
from airflow_provider_cdc.jobs.consolidate.rewind import DECODED_ROWS, TOUCHED_ROWS, Outcome, Rewind
from airflow_provider_cdc.jobs.consolidate.touched_rows import (
    MarkedFile,
    TouchedKeys,
    has_one_pattern,
    in_portions,
    mark,
)
from airflow_provider_cdc.jobs.roll_forward.hints import DAMAGED, FOREIGN
from airflow_provider_cdc.jobs.roll_forward.image_buffer import HELD_BYTES, Images, Place
from airflow_provider_cdc.jobs.roll_forward.key_ranges import Bound, Range, divided, group_extent
from airflow_provider_cdc.jobs.roll_forward.orders import Roll
from airflow_provider_cdc.jobs.roll_forward.row_group_merge import Left, differing, parts
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.sources.api.source import Source

MOST_SORTED_BYTES = 2**30
"""The largest table that is sorted. Arrow cannot sort 2 GiB of text, and row groups need not be sorted."""


@dataclass(frozen=True)
class RollTask:
    """A task that rolls a copy forward. Spark sends this object to executors. ``skips``: as in `RewindTask`."""

    staging: Staging
    source: Source
    bases: Mapping[int, Storage]
    tables: tuple[RunTable, ...]
    change: NetChange
    skips: bool = False

    def __call__(self, order: Roll) -> Outcome:
        # All files of one task become valid together, so flush them to disk together.
        with self.staging.reading(), self.staging.folder.together() as folder:
            try:
                return _Rolling(replace(self, staging=Staging(folder)), order).done()
            except ValueNotRepresentable as error:
                if not self.skips:
                    raise
                return Outcome(order.table, refused=reason(error))


class _Rolling:
    """Executes one order of type `Roll`."""

    def __init__(self, task: RollTask, order: Roll) -> None:
        self._task = task
        self._order = order
        entry = task.tables[order.table]
        self._table: Table = entry.table
        self._writer = table_files(task.staging, entry, task.source.arrow_schema(entry.table))
        self._schema: pa.Schema = self._writer.published
        self._key = self._schema.names if entry.table.keyless else list(entry.table.key)
        self._first: pa.DataType = self._schema.field(self._key[0]).type
        self._folder = task.bases[order.table]
        self._files = [
            MarkedFile(self._folder, target.file, self._schema) for target in order.targets if target.file is not None
        ]
        # In these cases, the changes do not show which new row replaces a removed row.
        self._replaces = entry.table.keyless or order.layers is not None
        self._added: dict[int, list[pa.RecordBatch]] = {}
        self._images: Images | None = None
        self._nulled: dict[str, int] = {}

    def done(self) -> Outcome:
        try:
            return self._done()
        except (OSError, pa.ArrowException):
            # An unreadable file may be damaged.
            for file in self._files:
                self._check_whole(file)
            raise

    def _done(self) -> Outcome:
        for touched in self._touched():
            mark(self._files, self._key, touched)
            touched.check_all_found(self._table, "removes")
        rows_found = 0 if self._replaces else self._find_images()
        kept_files: list[StagedFile] = []
        written = self._gather()
        replaced = 0
        files = iter(self._files)
        for number, target in enumerate(self._order.targets):
            added = self._added.get(number, [])
            file = None if target.file is None else next(files)
            if file is not None and not file.marks and not added:
                kept_files.append(file.staged)
            elif file is not None:
                written += self._rewritten(file, added)
                replaced += 1
        written += self._new()
        return Outcome(
            self._order.table,
            kept=tuple(kept_files),
            written=tuple(written),
            replaced=replaced,
            nulled=self._nulled,
            found=rows_found,
        )

    def _gather(self) -> list[StagedFile]:
        """Fill ``_added`` with the rows to add to existing files. Write the rows that exceed `HELD_BYTES` to new files,
        and return these files."""
        held = 0
        with self._writer.writer("staged", "part-new") as beyond:
            for number, rows in self._incoming(into_files=True):
                held += rows.nbytes
                if held <= HELD_BYTES:
                    self._added.setdefault(number, []).append(rows)
                else:
                    beyond.write(self._sorted(pa.Table.from_batches([rows])))
        return beyond.files

    def _changes(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        task = self._task
        return net_change_files.read(task.staging.folder, task.change.files, columns, table=self._order.table)

    def _touched(self) -> Iterator[TouchedKeys]:
        keyless = self._table.keyless

        def read() -> Iterator[pa.RecordBatch]:
            for batch in self._changes(["key", "count"]):
                yield batch.filter(pc.less(batch["count"], 0)) if keyless else batch

        for batches in in_portions(read(), TOUCHED_ROWS):
            yield TouchedKeys.of(batches, keyless, self._first)

    def _find_images(self) -> int:
        """Find the images of the touched rows of each row group. Return the number of touched rows."""
        images_by_place: dict[Place, pa.BinaryArray] = {}
        for file in self._files:
            for group, mask in file.marks.items():
                rows = file.read(group, self._key).filter(pa.array(mask)).combine_chunks()
                images_by_place[file.staged.name, group] = row_bytes.encode(rows.to_batches()[0], self._key)
        keys = pa.chunked_array([*images_by_place.values()], pa.binary())
        if pc.count_distinct(keys).as_py() != len(keys):
            raise CopyMismatch("the copy has two rows with one key", where=str(self._table.name), hint=FOREIGN)
        self._images = Images(images_by_place, partial(self._changes, ["key", "before", "after"]))
        return len(keys)

    def _incoming(self, *, into_files: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows that the window added, each batch with the number of its target.

        :param into_files: yield only rows whose target is an existing file; otherwise, only rows whose target is a new
            file.
        """
        targets = [
            (number, target.range)
            for number, target in enumerate(self._order.targets)
            if target.range is not None and (target.file is not None) == into_files
        ]
        if not targets:
            return
        if self._order.layers is not None:
            yield from self._read_again(self._order.layers, targets)
            return
        keyless = self._table.keyless
        row = "before" if keyless else "after"
        for batch in self._changes(["key", "before", "after", "count"]):
            if keyless:
                batch = batch.filter(pc.greater(batch["count"], 0))
            else:
                # A row that existed before stays in place, so only rows without a before image are added.
                batch = batch.filter(pc.and_(batch["after"].is_valid(), batch["before"].is_null()))
            if not batch.num_rows:
                continue
            ranged = has_one_pattern(self._first) and not keyless
            firsts = row_bytes.first_values(batch["key"], self._first) if ranged else None
            for number, range in targets:
                batch_in_range = batch if firsts is None else batch.filter(pa.array(range.holds(firsts)))
                for rows in self._decoded(batch_in_range[row], batch_in_range["count"]):
                    yield number, rows

    def _read_again(
        self, layers: Sequence[Rewind], targets: Sequence[tuple[int, Range]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield what `_incoming` yields, for rows that were read again."""
        task = self._task
        for rows in rows_again(task.staging.folder, self._writer, task.change, layers, self._key, DECODED_ROWS):
            for number, range in targets:
                rows_in_range = rows if range.whole else rows.filter(pa.array(range.holds(rows[self._key[0]])))
                if rows_in_range.num_rows:
                    yield number, rows_in_range

    def _decoded(self, images: pa.BinaryArray, counts: pa.Int64Array) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(images), DECODED_ROWS):
            part = images.slice(start, DECODED_ROWS)
            rows = decode_published(self._task.source, self._table, part, self._nulled)
            if not self._table.keyless:
                yield rows
                continue
            copies = np.repeat(np.arange(rows.num_rows), counts.slice(start, DECODED_ROWS).to_numpy())
            for first in range(0, len(copies), DECODED_ROWS):
                yield rows.take(pa.array(copies[first : first + DECODED_ROWS]))

    def _new(self) -> list[StagedFile]:
        """Write the rows that go into new files."""
        if all(target.file is not None for target in self._order.targets):
            return []
        with self._writer.writer("staged", "part-new") as writer:
            for _, rows in self._incoming(into_files=False):
                writer.write(self._sorted(pa.Table.from_batches([rows])))
        return writer.files

    def _rewritten(self, file: MarkedFile, added: Sequence[pa.RecordBatch]) -> list[StagedFile]:
        """Write a file again, with the changes to its marked rows, and with the added rows."""
        self._check_whole(file)
        part = "-".join(file.staged.base_name.split("-")[:2])
        if not added and self._keeps_groups(file):
            with suppress(UnknownFooter):
                return [self._spliced(file, part)]
        with self._writer.writer("staged", part) as writer:
            rows = self._write_groups(file, pa.Table.from_batches(added, self._schema), writer)
            writer.write(self._sorted(rows))
        return writer.files

    def _keeps_groups(self, file: MarkedFile) -> bool:
        """Return whether no row of the file is removed, and no row group grows to more than twice the usual size."""
        if self._images is None:
            return False
        for group in file.marks:
            _, afters = self._images.lengths((file.staged.name, group))
            if (afters < 0).any() or self._size_left(file, group) > 2 * ROW_GROUP_BYTES:
                return False
        return True

    def _size_left(self, file: MarkedFile, group: int) -> int:
        """Return the approximate size in bytes of a row group after the window."""
        size = int(file.parquet.metadata.row_group(group).total_byte_size)
        if self._images is not None and group in file.marks:
            before, after = (
                np.maximum(image_lengths, 0).sum() for image_lengths in self._images.lengths((file.staged.name, group))
            )
            size += int(after - before)
        return size

    def _spliced(self, file: MarkedFile, part: str) -> StagedFile:
        """Write a file again if rows in it were changed, but none were added or deleted. Encode only the changed
        columns.

        :raises UnknownFooter: the file's footer has unknown fields, so its columns cannot be copied as they are.
        """
        with self._writer.spliced("staged", part, self._folder, file.staged.name) as writer:
            for group in range(file.parquet.metadata.num_row_groups):
                columns = pa.table({})
                if group in file.marks:
                    pieces = list(self._left(file, group))
                    changed = [name for name in self._schema.names if any(name in piece.changed for piece in pieces)]
                    columns = pa.concat_tables([piece.now(changed) for piece in pieces]).unify_dictionaries()
                writer.write(columns)
            return writer.close()

    def _check_whole(self, file: MarkedFile) -> None:
        """Read the whole file, and compare it with its record.

        :raises FileDamaged: the file differs from its record.
        """
        if what := difference(self._folder, file.staged.name, file.staged):
            raise FileDamaged(
                f"a file of the copy that is rolled forward: {what}",
                where=self._folder.uri_of(file.staged.name),
                hint=DAMAGED,
            )

    def _write_groups(self, file: MarkedFile, added: pa.Table, writer: ParquetWriter) -> pa.Table:
        """Write each row group with the added rows in its range. Return the added rows that are in no range."""
        ranges = self._group_ranges(file) if added.num_rows else None
        for group in range(file.parquet.metadata.num_row_groups):
            pieces: Iterable[pa.Table] = self._staying(file, group)
            if ranges is not None and added.num_rows:
                inside = ranges[group].holds(pa.concat_arrays(added[self._key[0]].chunks))
                if inside.any():
                    rows_inside = added.filter(pa.array(inside))
                    # A row group that is too large to sort is too large to hold in memory.
                    large = self._size_left(file, group) > MOST_SORTED_BYTES
                    pieces = (
                        chain(pieces, [rows_inside])
                        if large
                        else [self._sorted(pa.concat_tables([*pieces, rows_inside]))]
                    )
                    added = added.filter(pa.array(~inside))
            for rows in pieces:
                writer.write(rows)
        return added

    def _staying(self, file: MarkedFile, group: int) -> Iterator[pa.Table]:
        """Yield the remaining rows of a row group, in their state after the window."""
        mask = file.marks.get(group)
        if mask is None:
            yield file.read(group)
        elif self._replaces:
            yield file.read(group).filter(pa.array(~mask))
        else:
            for staying_rows in self._left(file, group):
                yield staying_rows.now(self._schema.names).filter(pa.array(~staying_rows.gone))

    def _group_ranges(self, file: MarkedFile) -> list[Range] | None:
        """Return the range of keys of each row group; None: unknown, or the row groups are not in the order of keys."""
        metadata = file.parquet.metadata
        column = file.parquet.schema_arrow.get_field_index(self._key[0])
        lows: list[Bound] = []
        for group in range(metadata.num_row_groups):
            bounds = group_extent(metadata, group, column, self._first)
            if bounds is None or (lows and bounds[0] < lows[-1]):  # type: ignore[operator]
                return None
            lows.append(bounds[0])
        return divided(lows) if lows and not self._table.keyless else None

    def _sorted(self, rows: pa.Table) -> pa.Table:
        if self._table.keyless or not has_one_pattern(self._first) or rows.nbytes > MOST_SORTED_BYTES:
            return rows
        # Each batch has its own dictionary, so unify the dictionaries first.
        rows = rows.unify_dictionaries().combine_chunks()
        return rows.take(pc.sort_indices(rows[self._key[0]]))

    def _left(self, file: MarkedFile, group: int) -> Iterator[Left]:
        """Yield the rows of a row group with their state after the window, in parts: the changes may be far larger than
        the row group.

        :raises CopyMismatch: a row differs from the old row in the log.
        """
        assert self._images is not None
        names, rows = self._schema.names, file.read(group)
        marked, place = np.flatnonzero(file.marks[group]), (file.staged.name, group)
        begin = 0
        for start, stop in parts(self._images.lengths(place), DECODED_ROWS, ROW_GROUP_BYTES):
            end = int(marked[stop]) if stop < len(marked) else rows.num_rows
            part, marked_rows = rows.slice(begin, end - begin), marked[start:stop] - begin
            begin = end
            batch = part.take(pa.array(marked_rows)).combine_chunks().to_batches()[0]
            before, after = self._images.of(place, start, stop)
            if before.null_count:
                raise self._mismatch(batch, before.is_null(), "the log adds a row with a key that the copy already has")
            logged = decode_published(self._task.source, self._table, before, {})
            differs = pc.not_equal(row_bytes.encode(batch, names), row_bytes.encode(logged, names))
            if differs.true_count:
                raise self._mismatch(batch, differs, "a row of the copy differs from the old row in the log")
            stays = after.is_valid()
            gone = np.zeros(part.num_rows, np.bool_)
            gone[marked_rows] = after.is_null().to_numpy(zero_copy_only=False)
            now = batch.slice(0, 0)
            if stays.true_count:
                now = decode_published(self._task.source, self._table, after.filter(stays), self._nulled)
            yield Left(
                part,
                marked_rows[~gone[marked_rows]],
                pa.Table.from_batches([now]),
                gone,
                differing(batch.filter(stays), now),
            )

    def _mismatch(self, batch: pa.RecordBatch, wrong: pa.Array, what: str) -> CopyMismatch:
        # Show only the key: other values of a row must not appear in logs.
        key = batch.filter(wrong).select(self._key).slice(0, 1).to_pylist()[0]
        shown = ", ".join(f"{name} = {value!r:.60}" for name, value in key.items())
        return CopyMismatch(what, where=f"{self._table.name} at {shown}", hint=FOREIGN)
