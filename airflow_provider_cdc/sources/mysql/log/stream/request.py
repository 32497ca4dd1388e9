"""Sends the request for a part of the log; ``dump.py`` reads the answer."""

from __future__ import annotations

import random
import struct
import uuid

from airflow_provider_cdc.sources.mysql.server.session import Connection, query

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E
NON_BLOCK = 0x01
NO_GTIDS = bytes(8)
"""An empty GTID set in its encoding: the number of sources is 0."""
GTIDS_OFF = "AUTO_POSITION"
"""A part of the server's error message for a gtid_mode that does not allow COM_BINLOG_DUMP_GTID."""
CANNOT_READ_LOG = 1236
"""Error code of the server if it does not have the file, or has no event at the position."""


def request_log(connection: Connection, name: str, start: int) -> None:
    """Request all events of file ``name`` from byte ``start`` on. The server reports the end of the log.

    COM_BINLOG_DUMP has a position of four bytes, but a file can exceed 4 GiB, because a transaction is never split.
    COM_BINLOG_DUMP_GTID has eight bytes. If it names a file, the server starts at the given position and omits the
    transactions in the GTID set, which is empty here. This command works only with ``gtid_mode=ON``, so it is used only
    where needed.
    """
    # The server ends an older dump of the same replica, so each request needs a unique id.
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
