"""The limit: receives and discards the bytes of the binary protocol, over as many connections as this package uses."""

from __future__ import annotations

from itertools import pairwise
from multiprocessing import get_context
from typing import Any

from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.server.session import connect
from harness.bench.contender import Address, Order, Work
from harness.bench.spark import CORES

_BUFFER = 4 << 20
_END = 9
"""Number of bytes of the packet that ends a result: header, 0xfe, warnings, status."""


def prepare(address: Address) -> Work:
    settings = address.settings
    pool = get_context("fork").Pool(CORES)

    def copy(order: Order) -> dict[str, Any]:
        edges = [1 + order.rows * part // CORES for part in range(CORES + 1)]
        pool.starmap(drain, [(settings, order.table, low, high) for low, high in pairwise(edges)])
        return {"rows": order.rows}

    return copy


def drain(settings: ConnectionSettings, table: str, low: int, high: int) -> int:
    """Receive the rows with keys from ``low`` up to ``high`` (exclusive), and return their number of bytes."""
    connection: Any = connect(settings, reading=True)
    try:
        statement = PreparedStatement(connection, f"SELECT * FROM {table} WHERE id >= ? AND id < ?")
        statement.execute([low, high])
        buffer = memoryview(bytearray(_BUFFER))
        received, tail = 0, b""
        while not _is_end(tail):
            count = connection._sock.recv_into(buffer)
            received += count
            tail = (tail + bytes(buffer[max(0, count - _END) : count]))[-_END:]
        # Check that the result has ended: otherwise the remaining bytes would be read as the answer.
        connection.ping(reconnect=False)
        return received
    finally:
        connection.close()


def _is_end(tail: bytes) -> bool:
    # The column definitions end with the same packet, but the server sends the first rows together with it.
    return tail[:3] == b"\x05\0\0" and tail[4:7] == b"\xfe\0\0"
