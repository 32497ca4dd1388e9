"""The request for a part of the log; what comes back is for others to read."""

from __future__ import annotations

import random
import struct
import uuid

from airflow_provider_cdc.sources.mysql.server.session import Connection, query

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E
NON_BLOCK = 0x01
NO_GTIDS = bytes(8)
"""An encoded GTID set: the number of its sources, 0."""
GTIDS_OFF = "AUTO_POSITION"
"""Stands in the server's message if its gtid_mode does not allow COM_BINLOG_DUMP_GTID."""
CANNOT_READ_LOG = 1236
"""The error of a server that has no such file, or no event at that place in it."""


def request_log(connection: Connection, name: str, start: int) -> None:
    """Ask for all events from byte ``start`` of file ``name`` on; the server says when there are no more.

    COM_BINLOG_DUMP has a position of four bytes, and a file may have more than 4 GiB: a transaction is never split.
    COM_BINLOG_DUMP_GTID has eight bytes. Where it names a file, the server starts at that position and leaves out what
    the GTID set has, which is nothing. But it answers only with ``gtid_mode=ON``, so it is not used without need.
    """
    # The server ends an older dump of the same replica, so no two may look the same.
    unique = str(uuid.uuid4())
    query(
        connection,
        "SET @replica_uuid = %s, @slave_uuid = %s, "
        "@source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'",
        (unique, unique),
    )
    server_id = random.randrange(1 << 31, 1 << 32)
    file = name.encode()
    if start < 1 << 32:
        connection.send(COM_BINLOG_DUMP, struct.pack("<IHI", start, NON_BLOCK, server_id) + file)
        return
    head = struct.pack("<HII", NON_BLOCK, server_id, len(file))
    connection.send(COM_BINLOG_DUMP_GTID, head + file + struct.pack("<QI", start, len(NO_GTIDS)) + NO_GTIDS)
