"""Returns the rows that were read again. Each pass wrote a layer, which is the set of files with the rows that the pass
read. For each key, the last layer that covers the key counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.lake_types import to_published
from airflow_provider_cdc.core.run.table_files import TableFileWriter
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.apply.rewind import Rewind
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles


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
