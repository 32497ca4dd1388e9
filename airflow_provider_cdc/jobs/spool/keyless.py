"""Counts the spooled changes of keyless tables.

Changes of a keyless table count up to the exact position at which the table was read. This position is known only after
the read, so a piece has single changes, each with the position of its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import selected_changes
from airflow_provider_cdc.jobs.extract_delta.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.spooling import SpoolsLog
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, DELTA_SCHEMA, TrackedTable

_ROWS = 65_536


@dataclass(frozen=True)
class CountChanges:
    """A task that adds the net changes of keyless tables to the record of a spooled segment. Spark sends this object to
    executors.

    ``decisions`` are the commits of prepared transactions. ``positions`` has the position of each such commit in the
    spooled segments, by its order. A commit without a position is after these segments, and its reader has already
    compared it with the position of the table.
    """

    staging: Staging
    source: Source
    tables: tuple[TrackedTable, ...]
    decisions: net_change_files.Decisions
    positions: Mapping[int, str]

    def __call__(self, record: SegmentRecord) -> SegmentRecord:
        """Write the net changes, and return the record with their files."""
        indices = [one.index for one in self.tables]
        name = f"delta/spool-keyless-{record.segment:06}"
        folder = self.staging.folder
        with self.staging.reading(), self.staging.writer(name, net_change_files.NET_SCHEMA, QUICKEST) as writer:
            dataset = ds.dataset(
                [folder.path(file.name) for file in record.changes],
                schema=CHANGE_SCHEMA,
                format="parquet",
                filesystem=folder.filesystem,
            )
            for batch in dataset.to_batches(batch_size=_ROWS):
                for one in self.tables:
                    changes = batch.filter(pc.equal(batch["table"], one.index))
                    rows = self._rows(one, changes.filter(self._counts(one, record.segment, changes)))
                    rows = selected_changes(self.source, [one], rows)
                    rows = net_change_files.without_effect_dropped(rows, indices)
                    if rows.num_rows:
                        writer.write(net_change_files.in_buckets(rows))
        return replace(record, files=(*record.files, *writer.files), changes=())

    def _counts(self, one: TrackedTable, segment: int, changes: pa.RecordBatch) -> pa.BooleanArray:
        """Return a mask of the changes that count: they are committed, and within the position of the table."""
        positions = changes["position"].dictionary_encode()
        within = pa.array([self._within(one, text) for text in positions.dictionary.to_pylist()], pa.bool_())
        pending = changes["pending"].dictionary_encode()
        decided = pa.array([self._decided(one, segment, xid) for xid in pending.dictionary.to_pylist()], pa.bool_())
        return pc.coalesce(_taken(decided, pending), _taken(within, positions), pa.scalar(False))

    def _within(self, one: TrackedTable, position: str) -> bool:
        assert isinstance(self.source, SpoolsLog)
        return self.source.is_within(position, one.known_upper())

    def _decided(self, one: TrackedTable, segment: int, xid: str) -> bool:
        order = self.decisions.get((segment, xid))
        if order is None:
            return False
        return order not in self.positions or self._within(one, self.positions[order])

    def _rows(self, one: TrackedTable, changes: pa.RecordBatch) -> pa.Table:
        """Return each row that was removed (count -1) or added (count 1), in `DELTA_SCHEMA`."""
        parts = []
        for name, count in (("before", -1), ("after", 1)):
            images = changes[name].drop_null()
            keys = images
            if one.table.selection.whole:
                decoded = self.source.decode_images(one.table, images)
                keys = row_bytes.encode(decoded, [column.name for column in one.table.columns])
            rows = len(images)
            zeros = np.zeros(rows, np.int64)
            columns = [
                pa.array(np.full(rows, one.index, np.int32)),
                keys,
                pa.array(zeros),
                pa.array(zeros),
                images,
                pa.array(np.full(rows, count, np.int64)),
                pa.nulls(rows, pa.string()),
                pa.nulls(rows, pa.binary()),
            ]
            parts.append(pa.record_batch(columns, schema=DELTA_SCHEMA))
        return pa.Table.from_batches(parts)


def _taken(values: pa.BooleanArray, encoded: pa.DictionaryArray) -> pa.BooleanArray:
    return values.take(encoded.indices)
