"""The tasks of consolidate that roll tables forward: they apply the window's net change to files of the base copy.

Each row that is removed or replaced must be equal, bit for bit, to the old row in the log. If the rows differ, the row
was changed without an entry in the log, or a change was lost. Changed rows stay in place. If rows of a file were
changed, but none were added or deleted, only the columns with changes are encoded again. A new row goes into the file
and the row group whose key range contains the key of the row. So the statistics of the files still show which file can
contain a given key.

If the lake's format has position deletes, a file with few touched rows is not written again. The positions of its
touched rows are written to a delete file. The new rows of all such files of a task are written to one other file. In
this case, only the key columns of the file are read, so the other values of the old rows are not compared with the log.

Where the log has only the keys of touched rows, these rows were read again. The rows that were read again are added as
new rows, and the rows that they replace cannot be compared with the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.digest.digest import Digest, digest
from airflow_provider_cdc.core.parquet.splice import UnknownFooter
from airflow_provider_cdc.core.parquet.writer import ROW_GROUP_BYTES, ParquetWriter, with_changes
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter, table_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.published import plain_value
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CdcError, CopyMismatch, ValueNotRepresentable
from airflow_provider_cdc.jobs.apply.key_ranges import Range, group_ranges
from airflow_provider_cdc.jobs.apply.rewind import DECODED_ROWS, TOUCHED_ROWS, Rewind, RewindOutcome, rows_again
from airflow_provider_cdc.jobs.apply.rolled_file import FOREIGN, AlteredFile, RolledFile, base_columns
from airflow_provider_cdc.jobs.apply.touched_rows import TouchedKeys, has_one_pattern, in_portions, mark
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import decode_published
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles
from airflow_provider_cdc.jobs.roll_forward.merge import (
    HELD_BYTES,
    NEW_VERSIONS,
    Images,
    Left,
    Place,
    Roll,
    differing,
    parts,
    sorted_rows,
)
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.sources.api.source import Source

# Decides which files of a copy get position deletes instead of being written again.


TOUCHED_SHARE = 0.05
"""If the window touches this share of the rows of a file, or more, the file is written again."""
DELETED_SHARE = 0.10
"""If this share of the rows of a file, or more, would be deleted in all, the file is written again. Readers must read
the deleted rows and drop them, so this share limits the cost of reading."""
MOST_DELETES = 4_000_000
"""The maximum number of positions in one delete file. Readers hold them in memory."""


def deletes_suffice(rows: int, deleted: int, removed: int, added: int) -> bool:
    """Return whether a file needs only position deletes, and its new rows can go into another file.

    :param rows: the number of rows of the file, deleted ones included.
    :param deleted: the number of rows that earlier runs deleted.
    :param removed: the number of rows that the window removes or replaces.
    :param added: the number of rows that the window adds in the file's range of keys.
    """
    gone = deleted + removed
    return removed + added < rows * TOUCHED_SHARE and gone < rows * DELETED_SHARE and gone <= MOST_DELETES


# Yields the rows that a window added to a table, each with the file into which it goes.


@dataclass(frozen=True)
class IncomingRows:
    """The rows that a window added in the key ranges of an order.

    ``changes`` reads columns of the table's changes. ``decode`` decodes images to published rows. ``work`` is the run's
    folder.
    """

    order: Roll
    table: Table
    files: TableFileWriter
    change: NetChangeFiles
    work: Storage
    changes: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]
    decode: Callable[[pa.BinaryArray], pa.RecordBatch]

    def rows(self, *, into_files: bool) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows that the window added, each batch with the number of its target.

        :param into_files: yield only rows whose target is an existing file; otherwise, only rows whose target is a new
            file.
        """
        targets = [
            (number, target.range)
            for number, target in enumerate(self.order.targets)
            if target.range is not None and (target.file is not None) == into_files
        ]
        if not targets:
            return
        if self.order.layers is not None:
            yield from self._read_again(self.order.layers, targets)
            return
        keyless = self.table.keyless
        first = self.files.published.field(self._key[0]).type
        for batch in self.changes(["key", "was", "now", "count"]):
            if keyless:
                batch = batch.filter(pc.greater(batch["count"], 0))
            else:
                # A row that the copy has stays in place.
                batch = batch.filter(pc.and_(batch["now"].is_valid(), batch["was"].is_null()))
            if not batch.num_rows:
                continue
            ranged = has_one_pattern(first) and not keyless
            firsts = row_bytes.first_values(batch["key"], first) if ranged else None
            for number, range in targets:
                batch_in_range = batch if firsts is None else batch.filter(pa.array(range.holds(firsts)))
                for rows in self._decoded(batch_in_range["now"], batch_in_range["count"]):
                    yield number, rows

    def _read_again(
        self, layers: Sequence[Rewind], targets: Sequence[tuple[int, Range]]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows that were read again, in the form of `rows`."""
        for rows in rows_again(self.work, self.files, self.change, layers, self._key, DECODED_ROWS):
            for number, range in targets:
                rows_in_range = rows if range.whole else rows.filter(pa.array(range.holds(rows[self._key[0]])))
                if rows_in_range.num_rows:
                    yield number, rows_in_range

    def _decoded(self, images: pa.BinaryArray, counts: pa.Int64Array) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(images), DECODED_ROWS):
            part = images.slice(start, DECODED_ROWS)
            rows = self.decode(part)
            if not self.table.keyless:
                yield rows
                continue
            copies = np.repeat(np.arange(rows.num_rows), counts.slice(start, DECODED_ROWS).to_numpy())
            for first in range(0, len(copies), DECODED_ROWS):
                yield rows.take(pa.array(copies[first : first + DECODED_ROWS]))

    @property
    def _key(self) -> list[str]:
        return self.files.published.names if self.table.keyless else list(self.table.key)


MOST_SORTED_BYTES = 2**30
"""The largest table that is sorted. Arrow cannot sort 2 GiB of text, and row groups need not be sorted."""

ADDED_TWICE = "the log adds a row with a key that the copy already has"


@dataclass(frozen=True)
class RollTask:
    """A task that rolls a copy forward. Spark sends this object to executors. ``skips``: as in `RewindTask`."""

    staging: Staging
    source: Source
    bases: Mapping[int, Storage]
    tables: tuple[RunTable, ...]
    change: NetChangeFiles
    skips: bool = False

    def __call__(self, order: Roll) -> RewindOutcome:
        entry = self.tables[order.table]
        files = table_files(self.staging, entry, self.source.arrow_schema(entry.table))
        # All files of one task become valid together, so flush them to disk together.
        with self.staging.reading(), files.together() as files_together:
            try:
                return _Rolling(self, order, files_together).done()
            except ValueNotRepresentable as error:
                if not self.skips:
                    raise
                return RewindOutcome(order.table, refused=reason(error))


class _Rolling:
    """Executes one order of type `Roll`."""

    def __init__(self, task: RollTask, order: Roll, files: TableFileWriter) -> None:
        self._task = task
        self._order = order
        entry = task.tables[order.table]
        self._table: Table = entry.table
        self._writer = files
        self._schema: pa.Schema = self._writer.published
        self._key = self._schema.names if entry.table.keyless else list(entry.table.key)
        self._first: pa.DataType = self._schema.field(self._key[0]).type
        self._folder = task.bases[order.table]
        self._altered = base_columns(task.source, entry.table)
        self._files = [self._file(target.file) for target in order.targets if target.file is not None]
        # In these cases, the changes do not show which new row replaces a removed row.
        self._replaces = entry.table.keyless or order.layers is not None
        self._added: dict[int, list[pa.RecordBatch]] = {}
        self._images: Images | None = None
        self._nulled: dict[str, int] = {}
        # The rows that get position deletes, from the log where it has the old rows.
        self._deleted_rows = Digest()
        self._incoming = IncomingRows(
            order, self._table, self._writer, task.change, task.staging.folder, self._changes, self._decoded
        )

    def _file(self, staged: StagedFile) -> RolledFile:
        if self._altered is None:
            return RolledFile(self._folder, staged, self._schema)
        return AlteredFile(self._folder, staged, self._schema, self._altered)

    def done(self) -> RewindOutcome:
        try:
            return self._done()
        except CdcError:
            raise
        except Exception:
            # A damaged file leads to errors of many kinds: a footer may have any number of rows.
            for file in self._files:
                file.check_whole()
            raise

    def _done(self) -> RewindOutcome:
        for touched in self._touched():
            mark(self._files, self._key, touched)
            touched.check_all_found(self._table)
        rows_found = 0 if self._replaces else self._find_images()
        kept_files: list[StagedFile] = []
        written = self._gather()
        replaced = 0
        files = iter(self._files)
        with self._writer.writer("staged", NEW_VERSIONS) as new_versions:
            for number, target in enumerate(self._order.targets):
                added = self._added.get(number, [])
                file = None if target.file is None else next(files)
                if file is not None and self._altered is not None:
                    written += self._rewritten(file, added)
                    replaced += 1
                elif file is not None and not file.marks and not added:
                    kept_files.append(file.staged)
                elif file is not None and self._deletes_suffice(file, added):
                    kept_files.append(self._deleted(file, added, new_versions))
                elif file is not None:
                    written += self._rewritten(file, added)
                    replaced += 1
        written += new_versions.files
        written += self._new()
        return RewindOutcome(
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
            for number, rows in self._incoming.rows(into_files=True):
                held += rows.nbytes
                if held <= HELD_BYTES:
                    self._added.setdefault(number, []).append(rows)
                else:
                    beyond.write(self._sorted(pa.Table.from_batches([rows])))
        return beyond.files

    def _changes(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        task = self._task
        return net_change_files.read(task.staging.folder, task.change.files, columns, table=self._order.table)

    def _decoded(self, images: pa.BinaryArray) -> pa.RecordBatch:
        return decode_published(self._task.source, self._table, images, self._nulled)

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
        self._images = Images(images_by_place, partial(self._changes, ["key", "was", "now"]))
        return len(keys)

    def _new(self) -> list[StagedFile]:
        """Write the rows that go into new files."""
        if all(target.file is not None for target in self._order.targets):
            return []
        with self._writer.writer("staged", "part-new") as writer:
            for _, rows in self._incoming.rows(into_files=False):
                writer.write(self._sorted(pa.Table.from_batches([rows])))
        return writer.files

    def _deletes_suffice(self, file: RolledFile, added: Sequence[pa.RecordBatch]) -> bool:
        deleted = file.staged.rows - file.staged.live_rows
        rows_added = sum(rows.num_rows for rows in added)
        return self._writer.takes_deletes and deletes_suffice(file.staged.rows, deleted, file.marked, rows_added)

    def _deleted(self, file: RolledFile, added: Sequence[pa.RecordBatch], new_versions: ParquetWriter) -> StagedFile:
        """Write the positions of all deleted rows of a file to a delete file. Write the new versions of these rows, and
        the added rows, to ``new_versions``. Return the file's record with the new deletes."""
        gathered: list[pa.Table] = [pa.Table.from_batches([rows]) for rows in added]
        self._deleted_rows = Digest()
        for rows in () if self._replaces else self._new_versions(file):
            gathered.append(rows)
            if sum(table.nbytes for table in gathered) > HELD_BYTES:
                new_versions.write(self._sorted(pa.concat_tables(gathered)))
                gathered.clear()
        if gathered:
            new_versions.write(self._sorted(pa.concat_tables(gathered)))
        if not file.marks:
            return file.staged
        for group in file.marks if self._replaces else ():
            self._deleted_rows += digest(file.read(group).filter(pa.array(file.marks[group])))
        return self._writer.write_deletes(file.staged, file.deleted_and_marked(), self._deleted_rows)

    def _new_versions(self, file: RolledFile) -> Iterator[pa.Table]:
        """Yield the touched rows of a file as they are after the window. Deleted rows are left out.

        :raises CopyMismatch: the copy has a row that the log adds.
        """
        assert self._images is not None
        for group, mask in file.marks.items():
            place = file.staged.name, group
            for start, stop in parts(self._images.lengths(place), DECODED_ROWS, ROW_GROUP_BYTES):
                was, now = self._images.of(place, start, stop)
                if was.null_count:
                    keys = file.read(group, self._key).filter(pa.array(mask)).slice(start, stop - start)
                    batch = keys.combine_chunks().to_batches()[0]
                    raise self._mismatch(batch, was.is_null(), ADDED_TWICE)
                self._deleted_rows += digest(decode_published(self._task.source, self._table, was, {}))
                if now.null_count < len(now):
                    yield pa.Table.from_batches([self._decoded(now.drop_null())])

    def _rewritten(self, file: RolledFile, added: Sequence[pa.RecordBatch]) -> list[StagedFile]:
        """Write a file again, with the changes to its marked rows, and with the added rows. Rows that earlier runs
        deleted are left out."""
        file.check_whole()
        part = "-".join(file.staged.base_name.split("-")[:2])
        if not added and self._keeps_groups(file):
            with suppress(UnknownFooter):
                return [self._spliced(file, part)]
        with self._writer.writer("staged", part) as writer:
            rows = self._write_groups(file, pa.Table.from_batches(added, self._schema), writer)
            writer.write(self._sorted(rows))
        return writer.files

    def _keeps_groups(self, file: RolledFile) -> bool:
        """Return whether no row of the file is removed, and no row group grows to more than twice the usual size."""
        if self._images is None or self._altered is not None or file.staged.deletes is not None:
            return False
        for group in file.marks:
            _, now = self._images.lengths((file.staged.name, group))
            if (now < 0).any() or self._size_left(file, group) > 2 * ROW_GROUP_BYTES:
                return False
        return True

    def _size_left(self, file: RolledFile, group: int) -> int:
        """Return the approximate size in bytes of a row group after the window."""
        size = int(file.parquet.metadata.row_group(group).total_byte_size)
        if self._images is not None and group in file.marks:
            was, now = (
                np.maximum(image_lengths, 0).sum() for image_lengths in self._images.lengths((file.staged.name, group))
            )
            size += int(now - was)
        return size

    def _spliced(self, file: RolledFile, part: str) -> StagedFile:
        """Write a file again if rows in it were changed, but none were added or deleted. Encode only the changed
        columns.

        :raises UnknownFooter: the file's footer has unknown fields, so its columns cannot be copied as they are.
        """
        removed, added = Digest(), Digest()
        with self._writer.spliced("staged", part, self._folder, file.staged.name) as writer:
            for group in range(file.parquet.metadata.num_row_groups):
                columns = pa.table({})
                if group in file.marks:
                    pieces = list(self._left(file, group))
                    changed = [name for name in self._schema.names if any(name in piece.changed for piece in pieces)]
                    columns = pa.concat_tables([piece.now(changed) for piece in pieces]).unify_dictionaries()
                    for piece in pieces:
                        removed += digest(piece.before.take(pa.array(piece.places)))
                        added += digest(piece.rows)
                writer.write(columns)
            return replace(writer.close(), digest=with_changes(file.staged, removed, added))

    def _write_groups(self, file: RolledFile, added: pa.Table, writer: ParquetWriter) -> pa.Table:
        """Write each row group with the added rows in its range. Return the added rows that are in no range."""
        ranges = None
        if added.num_rows and not self._table.keyless:
            ranges = group_ranges(file.parquet, self._key[0], self._first)
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

    def _staying(self, file: RolledFile, group: int) -> Iterator[pa.Table]:
        """Yield the remaining rows of a row group, in their state after the window."""
        mask = file.marks.get(group)
        if mask is None:
            yield file.remaining_rows(group)
        elif self._replaces:
            gone = file.gone(group)
            yield file.read(group).filter(pa.array(~mask if gone is None else ~(mask | gone)))
        else:
            for staying_rows in self._left(file, group):
                yield staying_rows.now(self._schema.names).filter(pa.array(~staying_rows.gone))

    def _sorted(self, rows: pa.Table) -> pa.Table:
        if self._table.keyless or not has_one_pattern(self._first) or rows.nbytes > MOST_SORTED_BYTES:
            return rows
        return sorted_rows(rows, self._key[0])

    def _left(self, file: RolledFile, group: int) -> Iterator[Left]:
        """Yield the rows of a row group with their state after the window, in parts: the changes may be far larger than
        the row group.

        :raises CopyMismatch: a row differs from the old row in the log.
        """
        assert self._images is not None
        names, rows, earlier = self._schema.names, file.read(group), file.gone(group)
        marked, place = np.flatnonzero(file.marks[group]), (file.staged.name, group)
        begin = 0
        for start, stop in parts(self._images.lengths(place), DECODED_ROWS, ROW_GROUP_BYTES):
            end = int(marked[stop]) if stop < len(marked) else rows.num_rows
            part, marked_rows = rows.slice(begin, end - begin), marked[start:stop] - begin
            gone = np.zeros(part.num_rows, np.bool_) if earlier is None else earlier[begin:end].copy()
            begin = end
            batch = part.take(pa.array(marked_rows)).combine_chunks().to_batches()[0]
            was, now = self._images.of(place, start, stop)
            if was.null_count:
                raise self._mismatch(batch, was.is_null(), ADDED_TWICE)
            logged = decode_published(self._task.source, self._table, was, {})
            differs = pc.not_equal(row_bytes.encode(batch, names), row_bytes.encode(logged, names))
            if differs.true_count:
                raise self._mismatch(batch, differs, "a row of the copy differs from the old row in the log")
            stays = now.is_valid()
            gone[marked_rows] = now.is_null().to_numpy(zero_copy_only=False)
            current = batch.slice(0, 0)
            if stays.true_count:
                current = self._decoded(now.filter(stays))
            yield Left(
                part,
                marked_rows[~gone[marked_rows]],
                pa.Table.from_batches([current]),
                gone,
                differing(batch.filter(stays), current),
            )

    def _mismatch(self, batch: pa.RecordBatch, wrong: pa.Array, what: str) -> CopyMismatch:
        # Show only the key: other values of a row must not appear in logs.
        row = batch.filter(wrong)
        shown = ", ".join(f"{name} = {plain_value(row[name][0])!r:.60}" for name in self._key)
        return CopyMismatch(what, where=f"{self._table.name} at {shown}", hint=FOREIGN)
