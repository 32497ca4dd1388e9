"""The protocol of the binary log: types of events, offsets in their headers, and the request for a part of the log."""

from __future__ import annotations

import random
import struct
import uuid

from airflow_provider_cdc.sources.mysql.server.session import Connection, query

HEADER_BYTES = 19
KIND_AT, SERVER_AT, LENGTH_AT, END_AT, FLAGS_AT = 4, 5, 9, 13, 17
"""Offsets of the header fields of an event: type, server_id of the server on which a session committed the transaction,
total size, end position in the file (the low 32 bits), flags."""
LOW_HALF = 0xFFFFFFFF
"""Mask for the low 32 bits of a position. The header of an event contains only these bits. A file can exceed 4 GiB,
because a transaction is never split between files."""
CHECKSUM_BYTES = 4
FIRST_POSITION = 4
"""Position of the first event in a file, after four magic bytes."""
MAX_EVENT_BYTES = 2**30 + 2**20
"""The server never writes an event of more than 1 GiB. A greater length means that the log is damaged, so no memory is
allocated for the event."""

ARTIFICIAL = 0x20
"""Header flag: the server generated this event while it sent the log. The event is not in the log file."""

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
APPEND_BLOCK = 9
DELETE_FILE = 11
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
BEGIN_LOAD_QUERY = 17
EXECUTE_LOAD_QUERY = 18
TABLE_MAP = 19
WRITE_ROWS_V1 = 23
UPDATE_ROWS_V1 = 24
DELETE_ROWS_V1 = 25
INCIDENT = 26
HEARTBEAT = 27
IGNORABLE = 28
ROWS_QUERY = 29
WRITE_ROWS = 30
UPDATE_ROWS = 31
DELETE_ROWS = 32
GTID = 33
ANONYMOUS_GTID = 34
PREVIOUS_GTIDS = 35
TRANSACTION_CONTEXT = 36
VIEW_CHANGE = 37
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
TAGGED_GTID = 42

QUERY_POST_HEADER_BYTES = 13
EXECUTE_LOAD_QUERY_POST_HEADER_BYTES = 26
"""Size of the post-header in bytes. It contains the fields of a QUERY's post-header, followed by the fields that
identify the file to load."""
ROWS_POST_HEADER_BYTES_V1 = 8
"""Size in bytes of the post-header of row events in version 1: table number and flags. In later versions, the length of
the extra data follows these fields."""
ROWS_POST_HEADER_BYTES = 10
TABLE_NUMBER_BYTES = 6
NO_FOREIGN_KEYS, LOGS_CASCADES = 0x02, 0x10
"""Flags of row events, in the field after the table number. NO_FOREIGN_KEYS: foreign keys were not checked.
LOGS_CASCADES: the effects of foreign keys are logged, too (since MySQL 9.6)."""
TWO_BYTES_FOLLOW = 252
"""The first byte of a length-encoded integer whose value is in the next two bytes. If the first byte is greater, the
value is in more than two bytes after it. If the first byte is smaller, it is the value itself."""

COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID = 0x12, 0x1E
NON_BLOCK = 0x01
NO_GTIDS = bytes(8)
"""The encoding of an empty GTID set. It consists only of the number of sources, which is 0."""
GTIDS_OFF = "AUTO_POSITION"
"""Text in the server's error message if gtid_mode does not allow COM_BINLOG_DUMP_GTID."""
CANNOT_READ_LOG = 1236
"""Error code of the server if it does not have the file, or has no event at the position."""


def request_log(connection: Connection, name: str, start: int, without: bytes = NO_GTIDS) -> None:
    """Request all events of file ``name`` from byte ``start`` on. After the last event of the log, the server reports
    the end instead of waiting for new events.

    The position in COM_BINLOG_DUMP has four bytes, but a file can exceed 4 GiB, because a transaction is never split.
    The position in COM_BINLOG_DUMP_GTID has eight bytes. If COM_BINLOG_DUMP_GTID names a file, the server starts at the
    given position and omits the transactions in the GTID set. This command works only with ``gtid_mode=ON``, so it is
    used only for positions that need more than four bytes, and for dumps without some transactions.

    :param name: the file. If it is empty, the server begins with the file of the first transaction that is not in
        ``without``.
    :param without: an encoded GTID set (`GtidSet.encode`). The server omits its transactions.
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
    if start < 1 << 32 and without == NO_GTIDS:
        connection.send(COM_BINLOG_DUMP, struct.pack("<IHI", start, NON_BLOCK, server_id) + file)
        return
    head = struct.pack("<HII", NON_BLOCK, server_id, len(file))
    connection.send(COM_BINLOG_DUMP_GTID, head + file + struct.pack("<QI", start, len(without)) + without)
