"""Position deletes: files with the positions of the deleted rows of a data file.

The form is that of Iceberg's specification (https://iceberg.apache.org/spec/#position-delete-files): the columns
``file_path`` and ``pos`` with reserved field ids, sorted. A position counts the rows of the data file from 0, across
its row groups. Each delete file has the positions of one data file, because Polars does not read delete files with the
positions of several data files.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.parquet.lake_types import FIELD_ID
from airflow_provider_cdc.core.parquet.writer import StagedFile
from airflow_provider_cdc.core.storage.filesystems import convert_store_errors
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""The field ids that Iceberg reserves for the columns of position-delete files."""

SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {FIELD_ID: str(PATH_ID).encode()}),
        pa.field("pos", pa.int64(), False, {FIELD_ID: str(POSITION_ID).encode()}),
    ]
)

Int64s = np.ndarray[Any, np.dtype[np.int64]]


def deletes_table(data_file: str, positions: Int64s) -> pa.Table:
    """Return the content of the delete file of ``data_file``, the URI of a data file in the table's metadata.

    :param positions: the positions of the deleted rows, sorted, without duplicates.
    """
    return pa.table([pa.repeat(pa.scalar(data_file), len(positions)), pa.array(positions)], SCHEMA)


def read_positions(folder: Storage, data_file: StagedFile, hint: str) -> Int64s:
    """Return the sorted positions of the deleted rows of a data file.

    The whole file is read and compared with its record, because a wrong position would delete a wrong row.

    :param hint: the hint of the error.
    :raises FileDamaged: the delete file differs from its record, or has positions that the data file does not have.
    """
    file = data_file.deletes
    if file is None:
        return np.empty(0, np.int64)
    where = folder.uri_of(file.name)
    try:
        with convert_store_errors(where), folder.filesystem.open_input_stream(folder.path(file.name)) as stream:
            data = stream.read()
    except FileNotFoundError:
        data = b""
    if len(data) != file.bytes or f"{zlib.crc32(data):08x}" != file.checksum:
        raise FileDamaged(
            "a file with the deleted rows of a copy is gone, or differs from its record", where=where, hint=hint
        )
    positions: Int64s = pq.read_table(pa.BufferReader(data), columns=["pos"])["pos"].to_numpy()
    inside = not len(positions) or (positions[0] >= 0 and positions[-1] < data_file.rows)
    if len(positions) != file.rows or not inside or (np.diff(positions) <= 0).any():
        raise FileDamaged(
            "a file with the deleted rows of a copy does not belong to its data file", where=where, hint=hint
        )
    return positions
