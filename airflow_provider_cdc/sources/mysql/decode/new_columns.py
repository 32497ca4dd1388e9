"""The values of new columns in rows from before a schema change."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.sources.mysql.decode.carried_images import carried_images
from airflow_provider_cdc.sources.mysql.decode.images import decode_images


def new_columns(table: Table, era: Era) -> pa.RecordBatch:
    """Implements `Source.new_columns`."""
    # All columns of the earlier row are NULL, so its image has only the bitmap.
    earlier = pa.array([b"\xff" * ((len(era.columns) + 7) // 8)], pa.binary())
    new = [one.name for one in era.fields if not one.was]
    return decode_images(table, carried_images(table, era, earlier), names=new)
