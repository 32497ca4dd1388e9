"""Reads and decodes with a policy for values that no Arrow type holds, and the result for such a value."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.mysql.decode.images import decode_images
from airflow_provider_cdc.sources.mysql.decode.rows import StatementReader
from airflow_provider_cdc.sources.mysql.server.session import session
from harness.mysql_server import MysqlServer
from tests.sources.mysql.decode.row_images import settings


def select(server: MysqlServer, table: Table) -> tuple[pa.Table, dict[str, int]]:
    with session(settings(server), reading=True) as connection, StatementReader(connection, table) as reader:
        rows = pa.Table.from_batches(reader.read("", ()), reader.schema)
        return rows, reader.nulled


def decode(table: Table, images: Sequence[bytes]) -> tuple[pa.Table, dict[str, int]]:
    nulled: dict[str, int] = {}
    batch = decode_images(table, pa.array(images, pa.binary()), nulled)
    batch.validate(full=True)
    return pa.Table.from_batches([batch]), nulled


def holds(kind: pa.DataType, text: str | None) -> Any:
    """The value of a text that Arrow can hold, found with Python's own types; None if there is none."""
    if text is None:
        return None
    if pa.types.is_decimal(kind):
        number = decimal.Decimal(text)
        digits = str(int(number.scaleb(kind.scale, decimal.Context(prec=80)))).lstrip("-")
        return number if len(digits) <= 38 else None
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.date() if pa.types.is_date(kind) else moment
