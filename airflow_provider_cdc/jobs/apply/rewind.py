"""The tasks of consolidate for tables that were read: they remove the touched rows from staged files, and write these
rows as they are at the position of the run.

Most tables are rewound. A table that was read under an earlier manifest of the run is brought forward. The net change
has the rows in either case, so these tasks need not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import TableFileWriter, table_files
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.apply.rolled_file import AlteredFile, base_columns
from airflow_provider_cdc.jobs.apply.touched_rows import MarkedFile, TouchedKeys, in_portions, mark
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import decode_published
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.sources.api.source import Source

TOUCHED_ROWS = 1_000_000
"""Number of touched keys that a task holds in memory at a time."""
DECODED_ROWS = 65_536


@dataclass(frozen=True)
class Rewind:
    """An order: remove the touched rows from these files of one table.

    For a keyless table, ``files`` are all of its files, and the order also writes the rows that must be added.
    Only keys whose change has an order greater than ``since`` count as touched."""

    table: int
    files: tuple[StagedFile, ...]
    since: int = -1


@dataclass(frozen=True)
class Restore:
    """An order: write the touched rows of one table as they are at the position of the run, for the keys in a range of
    buckets (the end is exclusive)."""

    table: int
    buckets: tuple[int, int]


@dataclass(frozen=True)
class RewindOutcome:
    """The result of an order.

    The ``adopted`` files stay as they are. The ``written`` files are new. ``replaced`` is the number of files that the
    written files replace. ``nulled`` is the number of values of each column that were restored as null because no Arrow
    type holds them. ``refused`` says why the table cannot be copied. If a copy is rolled forward, ``kept`` has the
    unchanged files of the copy, and ``found`` is the number of touched rows in the copy."""

    table: int
    adopted: tuple[StagedFile, ...] = ()
    written: tuple[StagedFile, ...] = ()
    replaced: int = 0
    nulled: Mapping[str, int] = field(default_factory=dict)
    refused: str = ""
    kept: tuple[StagedFile, ...] = ()
    found: int = 0


@dataclass(frozen=True)
class RewindTask:
    """A task that brings tables to the position of the run. Spark sends this object to executors.

    ``skips`` says whether the step continues if the table cannot be copied. If so, the outcome has the reason.
    """

    staging: Staging
    source: Source
    tables: tuple[RunTable, ...]
    change: NetChangeFiles
    skips: bool = False

    def __call__(self, order: Rewind | Restore) -> RewindOutcome:
        with self.staging.reading():
            try:
                return self._done(order)
            except ValueNotRepresentable as error:
                if not self.skips:
                    raise
                return RewindOutcome(order.table, refused=reason(error))

    def _done(self, order: Rewind | Restore) -> RewindOutcome:
        if isinstance(order, Restore):
            written, nulled = self._restore(order.table, order.buckets)
            return RewindOutcome(order.table, written=written, nulled=nulled)
        outcome = self._take_out(order)
        if not self._table(order.table).keyless:
            return outcome
        added, nulled = self._restore(order.table, None)
        return replace(outcome, written=outcome.written + added, nulled=nulled)

    def _table(self, index: int) -> Table:
        return self.tables[index].table

    def _files(self, index: int) -> TableFileWriter:
        entry = self.tables[index]
        return table_files(self.staging, entry, self.source.arrow_schema(entry.table))

    def _take_out(self, order: Rewind) -> RewindOutcome:
        table = self._table(order.table)
        table_writer = self._files(order.table)
        schema = table_writer.published
        key = schema.names if table.keyless else list(table.key)
        # All files of a table that was altered after its read are written again, with the present columns.
        altered = base_columns(self.source, table)
        files = [
            MarkedFile(table_writer.folder, file, schema)
            if altered is None
            else AlteredFile(table_writer.folder, file, schema, altered)
            for file in order.files
        ]
        for touched in self._touched(order.table, schema.field(key[0]).type, order.since):
            mark(files, key, touched)
            touched.check_all_found(table)
        written: list[StagedFile] = []
        for file in files:
            if file.marks or altered is not None:
                part = "-".join(file.staged.base_name.split("-")[:2])
                with table_writer.writer("staged", part) as writer:
                    for rows in file.unmarked():
                        writer.write(rows)
                written += writer.files
        return RewindOutcome(
            order.table,
            tuple(file.staged for file in files if not file.marks and altered is None),
            tuple(written),
            sum(bool(file.marks) or altered is not None for file in files),
        )

    def _touched(self, index: int, first: pa.DataType, since: int) -> Iterator[TouchedKeys]:
        columns = ["key", "count", "order"] if since >= 0 else ["key", "count"]
        keyless = self._table(index).keyless

        def read() -> Iterator[pa.RecordBatch]:
            for batch in net_change_files.read(self.staging.folder, self.change.files, columns, table=index):
                if since >= 0:
                    batch = batch.filter(pc.greater(batch["order"], since))
                yield batch.filter(pc.less(batch["count"], 0)) if keyless else batch

        for batches in in_portions(read(), TOUCHED_ROWS):
            yield TouchedKeys.of(batches, keyless, first)

    def _restore(self, index: int, buckets: tuple[int, int] | None) -> tuple[tuple[StagedFile, ...], dict[str, int]]:
        table = self._table(index)
        nulled: dict[str, int] = {}
        with self._files(index).writer("staged", "part-restored") as writer:
            for batch in net_change_files.read(
                self.staging.folder, self.change.files, ["now", "count"], table=index, buckets=buckets
            ):
                restored = pc.greater(batch["count"], 0) if table.keyless else batch["now"].is_valid()
                batch = batch.filter(restored)
                for start in range(0, batch.num_rows, DECODED_ROWS):
                    part = batch.slice(start, DECODED_ROWS)
                    rows = decode_published(self.source, table, part["now"], nulled)
                    if table.keyless:
                        copies = np.repeat(np.arange(rows.num_rows), part["count"].to_numpy())
                        for first in range(0, len(copies), DECODED_ROWS):
                            writer.write(rows.take(pa.array(copies[first : first + DECODED_ROWS])))
                    else:
                        writer.write(rows)
        return tuple(writer.files), nulled


# Returns the rows that were read again. Each pass wrote a layer, which is the set of files with the rows that the pass
# read. For each key, the last layer that covers the key counts.


def rows_again(
    run: Storage,
    files: TableFileWriter,
    change: NetChangeFiles,
    layers: Sequence[Rewind],
    key: Sequence[str],
    batch_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one table that were read again, in batches of up to ``batch_rows``. For each key, only the last
    layer that covers the key counts.

    :param run: the run's folder, with the files of the ``change``.
    :param files: the files of the table, including the files of the layers.
    :param layers: the layers, in the order in which they were read.
    """
    for layer in layers:
        # No layer follows the last layer, so no rows of the last layer are replaced.
        later = _touched_after(run, change, layer) if layer is not layers[-1] else None
        for file in layer.files:
            parquet = pq.ParquetFile(files.folder.path(file.name), filesystem=files.folder.filesystem)
            for batch in parquet.iter_batches(batch_rows):
                rows = to_published(pa.Table.from_batches([batch]), files.published).combine_chunks().to_batches()[0]
                if later is not None:
                    rows = rows.filter(pc.invert(pc.is_in(row_bytes.encode(rows, key), value_set=later)))
                if rows.num_rows:
                    yield rows


def _touched_after(run: Storage, change: NetChangeFiles, layer: Rewind) -> pa.ChunkedArray:
    """Return the keys that were touched after the layer was read."""
    changes = net_change_files.read(run, change.files, ["key", "order"], table=layer.table)
    found = [batch.filter(pc.greater(batch["order"], layer.since))["key"] for batch in changes]
    return pa.chunked_array(found, pa.binary())
