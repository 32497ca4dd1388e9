"""The same rows read by SELECT and from images of the log."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.mysql.decode.images import decode_images, image_layout, skip_image
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader
from airflow_provider_cdc.sources.mysql.server.session import session
from harness.mysql_server import MysqlServer
from tests.sources.mysql.decode.row_images import settings
from tests.sources.mysql.values import same_bits


def select(server: MysqlServer, table: Table) -> pa.Table:
    with session(settings(server), reading=True) as connection, StatementReader(connection, table) as reader:
        batches = []
        for batch in reader.read("", ()):
            if reader.odd:
                raise reader.odd[0].error
            batches.append(batch)
        return pa.Table.from_batches(batches, reader.schema)


def decode(table: Table, images: list[bytes]) -> pa.Table:
    return pa.Table.from_batches([decode_images(table, pa.array(images, pa.binary()))])


def split(table: Table, body: bytes) -> list[bytes]:
    layout = image_layout(table)
    data, images, position = np.frombuffer(body, np.uint8), [], 0
    while position < len(body):
        end = skip_image(
            data, position, len(body), layout.prefixes, layout.widths, layout.slots, np.zeros(2 * layout.keys, np.int64)
        )
        assert end > position
        images.append(body[position:end])
        position = end
    return images


def same(left: pa.Table, right: pa.Table) -> bool:
    """Equality of bits; to Arrow's `equals`, -0.0 is 0.0."""
    assert left.schema.equals(right.schema)
    return all(
        same_bits(mine, theirs)
        for name in left.column_names
        for mine, theirs in zip(left[name].to_pylist(), right[name].to_pylist(), strict=True)
    )
