"""Yields the rows that a window added to a table, each with the file into which it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.run.table_files import TableFiles
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.jobs.changes.net_change_files import NetChange
from airflow_provider_cdc.jobs.consolidate.reread_layers import rows_again
from airflow_provider_cdc.jobs.consolidate.rewind import DECODED_ROWS, Rewind
from airflow_provider_cdc.jobs.consolidate.touched_rows import has_one_pattern
from airflow_provider_cdc.jobs.roll_forward.key_ranges import Range
from airflow_provider_cdc.jobs.roll_forward.orders import Roll


@dataclass(frozen=True)
class IncomingRows:
    """The rows that a window added in the key ranges of an order.

    ``changes`` reads columns of the table's changes. ``decode`` decodes images to published rows. ``work`` is the run's
    folder.
    """

    order: Roll
    table: Table
    files: TableFiles
    change: NetChange
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
