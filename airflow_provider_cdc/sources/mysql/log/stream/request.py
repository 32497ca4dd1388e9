"""Sends the request for a part of the log; ``dump.py`` reads the answer."""

from __future__ import annotations

import random
import struct
import uuid

from airflow_provider_cdc.sources.mysql.server.session import Connection, query

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E


NON_BLOCK = 0x01


NO_GTIDS = bytes(8)
"""The encoding of an empty GTID set. It consists only of the number of sources, which is 0."""


GTIDS_OFF = "AUTO_POSITION"
"""Text in the server's error message if gtid_mode does not allow COM_BINLOG_DUMP_GTID."""


CANNOT_READ_LOG = 1236
"""Error code of the server if it does not have the file, or has no event at the position."""


def request_log(connection: Connection, name: str, start: int) -> None:
    """Request all events of file ``name`` from byte ``start`` on. After the last event of the log, the server reports
    the end instead of waiting for new events.

    The position in COM_BINLOG_DUMP has four bytes, but a file can exceed 4 GiB, because a transaction is never split.
    The position in COM_BINLOG_DUMP_GTID has eight bytes. If COM_BINLOG_DUMP_GTID names a file, the server starts at the
    given position and omits the transactions in the GTID set, which is empty here. This command works only with
    ``gtid_mode=ON``, so it is used only for positions that need more than four bytes.
    """
    # The server ends an older dump with the same replica UUID, so each request needs a unique UUID.
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
