"""The request for a part of the log; what comes back is for others to read."""

from __future__ import annotations

import random
import struct
import uuid

from airflow_provider_cdc.sources.mysql.session import Connection, query

COM_BINLOG_DUMP = 0x12
NON_BLOCK = 0x01
CANNOT_READ_LOG = 1236
"""The error of a server that has no such file, or no event at that place in it."""


def request_log(connection: Connection, name: str, start: int) -> None:
    """Ask for all events from byte ``start`` of file ``name`` on; the server says when there are no more."""
    # The server ends an older dump of the same replica, so no two may look the same.
    unique = str(uuid.uuid4())
    query(
        connection,
        "SET @replica_uuid = %s, @slave_uuid = %s, "
        "@source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'",
        (unique, unique),
    )
    server_id = random.randrange(1 << 31, 1 << 32)
    connection.send(COM_BINLOG_DUMP, struct.pack("<IHI", start, NON_BLOCK, server_id) + name.encode())
