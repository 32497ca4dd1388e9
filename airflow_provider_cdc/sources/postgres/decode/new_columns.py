"""The values of new columns in rows from before a schema change."""

from __future__ import annotations

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.decode.tuple_data import constant_field


def new_columns(table: Table, era: Era) -> pa.RecordBatch:
    """Implements `Source.new_columns`."""
    image = len(era.fields).to_bytes(2, "big") + b"".join(map(constant_field, era.fields))
    new = [one.name for one in era.fields if not one.was]
    odd: list[OddValue] = []
    values = decode_images(table, pa.array([image], pa.binary()), names=new, odd=odd)
    if stopping := [value for value in odd if value.stops]:
        raise ValueNotRepresentable(
            f"the lake has no value like that of the new column {stopping[0].column} in earlier rows",
            where=str(table.name),
            hint="set `unrepresentable` to `null` or `string`, or change these rows",
        )
    return values
