"""Counts the single changes of keyless tables.

Changes of a keyless table count up to the exact position at which the table was read. This position is known only after
the read, so a piece has single changes, each with the position of its commit. If ranges of a table were read at several
positions, the range of an image tells up to which of them it counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import images_within, selected_changes
from airflow_provider_cdc.jobs.log.read_segment import SegmentRecord
from airflow_provider_cdc.jobs.runtime.skipped import reason, table_of
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, DELTA_SCHEMA, TrackedTable

_ROWS = 65_536
_GATHERED_BYTES = 64 * 2**20
"""The size of the rows that are netted at once, in bytes."""


UnitsByPosition = tuple[tuple[Position, tuple[ValueRange, ...]], ...]
"""The positions at which a keyless table was read, each with the ranges that were read there."""


@dataclass(frozen=True)
class CountChanges:
    """A task that adds the net changes of keyless tables to the record of a segment with single changes. Spark sends
    this object to executors.

    ``decisions`` are the commits of prepared transactions. ``positions`` has the position of each such commit in the
    spooled segments, by its order. A commit without a position is after these segments, and its reader has already
    compared it with the position of the table. ``since`` has the positions, by the table's index, up to which changes
    of a table do not count, because its rows are rolled forward from there. ``forward`` says whether the window ends at
    the position of the run. ``skips`` says whether a table that cannot
    be copied is left out. ``alone`` says whether the run has only one table, which is never left out. ``units`` has the
    tables whose ranges were read at several positions, by index.
    """

    staging: Staging
    source: Source
    tables: tuple[TrackedTable, ...]
    decisions: net_change_files.Decisions
    positions: Mapping[int, str]
    since: Mapping[int, Position]
    forward: bool
    skips: bool = False
    alone: bool = True
    units: Mapping[int, UnitsByPosition] = field(default_factory=dict)

    def __call__(self, record: SegmentRecord) -> SegmentRecord:
        """Write the net changes, and return the record with their files."""
        tables, refused = self.tables, dict(record.refused)
        while True:
            try:
                return replace(self._counted(record, tables), refused=refused)
            except ValueNotRepresentable as error:
                failed_table = table_of(error, (str(one.table.name) for one in tables)) if self.skips else None
                if failed_table is None or self.alone:
                    raise
                refused[failed_table] = reason(error)
                tables = tuple(one for one in tables if str(one.table.name) != failed_table)

    def _counted(self, record: SegmentRecord, tables: Sequence[TrackedTable]) -> SegmentRecord:
        # Import it late: it is slow to import, and few runs need it.
        from pyarrow import dataset as ds

        indices = [one.index for one in tables]
        name = f"delta/spool-keyless-{record.segment:06}"
        folder = self.staging.folder
        with self.staging.reading(), self.staging.writer(name, net_change_files.TOWARDS_SCHEMA, QUICKEST) as writer:
            dataset = ds.dataset(
                [folder.path(file.name) for file in record.changes],
                schema=CHANGE_SCHEMA,
                format="parquet",
                filesystem=folder.filesystem,
            )
            gathered: dict[tuple[int, int], list[pa.Table]] = defaultdict(list)
            size = 0

            def write() -> None:
                for one in tables:
                    for number, (_, ranges) in enumerate(self._read_at(one)):
                        net = self._net(one, gathered.pop((one.index, number), []), ranges)
                        rows = selected_changes(self.source, [one], net)
                        rows = net_change_files.without_effect_dropped(rows, indices)
                        rows = net_change_files.towards(rows, indices, forward=self.forward)
                        if rows.num_rows:
                            writer.write(net_change_files.in_buckets(rows))

            for batch in dataset.to_batches(batch_size=_ROWS):
                for one in tables:
                    changes = batch.filter(pc.equal(batch["table"], one.index))
                    for number, (upper, _) in enumerate(self._read_at(one)):
                        images = _images(changes.filter(self._counts(one, upper, record.segment, changes)))
                        gathered[one.index, number].append(images)
                        size += images.nbytes
                if size >= _GATHERED_BYTES:
                    write()
                    size = 0
            write()
        return replace(record, towards=(*record.towards, *writer.files), changes=())

    def _read_at(self, one: TrackedTable) -> UnitsByPosition:
        """Return the positions at which a table was read. No ranges: the whole table was read at the position."""
        return self.units.get(one.index) or ((one.known_upper(), ()),)

    def _counts(self, one: TrackedTable, upper: Position, segment: int, changes: pa.RecordBatch) -> pa.BooleanArray:
        """Return a mask of the changes that count: they are committed, and within the position of the read."""
        positions = changes["position"].dictionary_encode()
        within = pa.array([self._within(one, text, upper) for text in positions.dictionary.to_pylist()], pa.bool_())
        pending = changes["pending"].dictionary_encode()
        decided = pa.array(
            [self._decided(one, segment, xid, upper) for xid in pending.dictionary.to_pylist()], pa.bool_()
        )
        return pc.coalesce(_taken(decided, pending), _taken(within, positions), pa.scalar(False))

    def _within(self, one: TrackedTable, position: str, upper: Position) -> bool:
        since = self.since.get(one.index)
        if since is not None and self.source.is_within(position, since):
            return False
        return self.source.is_within(position, upper)

    def _decided(self, one: TrackedTable, segment: int, xid: str, upper: Position) -> bool:
        order = self.decisions.get((segment, xid))
        if order is None:
            return False
        return order not in self.positions or self._within(one, self.positions[order], upper)

    def _net(self, one: TrackedTable, images: Sequence[pa.Table], ranges: Sequence[ValueRange]) -> pa.Table:
        """Return how often each row was added minus how often it was removed, in `DELTA_SCHEMA`. Leave out the rows for
        which both numbers are equal before any value is decoded: a value that no Arrow type can hold does not matter
        if it came and went.

        :param ranges: leave out the rows outside these ranges. Empty: leave out none.
        """
        if not images:
            return DELTA_SCHEMA.empty_table()
        net = pa.concat_tables(images).group_by("image", use_threads=False).aggregate([("count", "sum")])
        net = net.filter(pc.not_equal(net["count_sum"], 0))
        batches = net.combine_chunks().to_batches(max_chunksize=_ROWS)
        if ranges:
            batches = [
                one_batch.filter(images_within(self.source, one.table, one_batch["image"], ranges))
                for one_batch in batches
            ]
        parts = [self._rows(one, part) for part in batches]
        return pa.Table.from_batches(parts, DELTA_SCHEMA)

    def _rows(self, one: TrackedTable, net: pa.RecordBatch) -> pa.RecordBatch:
        images = keys = net["image"]
        if one.table.selection.whole:
            decoded = self.source.decode_images(one.table, images)
            keys = row_bytes.encode(decoded, [column.name for column in one.table.columns])
        rows = len(images)
        zeros = pa.array(np.zeros(rows, np.int64))
        columns = [
            pa.array(np.full(rows, one.index, np.int32)),
            keys,
            zeros,
            zeros,
            images,
            net["count_sum"],
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.binary()),
        ]
        return pa.record_batch(columns, schema=DELTA_SCHEMA)


def _images(changes: pa.RecordBatch) -> pa.Table:
    """Return the row before each change with the count -1, and the row after it with the count 1."""
    parts = []
    for name, count in (("before", -1), ("after", 1)):
        images = changes[name].drop_null()
        parts.append(pa.table({"image": images, "count": pa.array(np.full(len(images), count, np.int64))}))
    return pa.concat_tables(parts)


def _taken(values: pa.BooleanArray, encoded: pa.DictionaryArray) -> pa.BooleanArray:
    return values.take(encoded.indices)
