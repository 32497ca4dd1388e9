"""pgoutput messages that are rare enough to be read by Python.

Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html, version 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import DecodeError

RELATION, TRUNCATE, STREAM_ABORT, MESSAGE = 0x52, 0x54, 0x41, 0x4D

_IDENTIFIES = 1

STREAM_ABORT_BYTES = 9
"""Under version 1 of the protocol: the numbers of a transaction and of one within it follow."""

FULL = "f"
"""``Relation.identity`` of REPLICA IDENTITY FULL."""


@dataclass(frozen=True)
class Relation:
    """What the log says of a table before its first change, and again after the table was altered.

    ``columns`` are names, type OIDs and type modifiers, in the order of the tuples. ``identifying`` are the names of
    those that every old row has: of an UPDATE that changes one of them, and of a DELETE.
    """

    oid: int
    name: TableName
    identity: str
    columns: tuple[tuple[str, int, int], ...]
    identifying: frozenset[str] = frozenset()


def relation(message: bytes) -> Relation:
    """Read a Relation message.

    :raises DecodeError: it is malformed.
    """
    try:
        (oid,) = struct.unpack_from(">I", message, 1)
        schema, at = _text(message, 5)
        name, at = _text(message, at)
        identity, count = struct.unpack_from(">BH", message, at)
        at += 3
        columns = []
        identifying = set()
        for _ in range(count):
            flags = message[at]
            column, at = _text(message, at + 1)
            if flags & _IDENTIFIES:
                identifying.add(column)
            columns.append((column, *struct.unpack_from(">Ii", message, at)))
            at += 8
    except (struct.error, ValueError, IndexError) as error:
        raise DecodeError(f"a Relation message is malformed: {error}") from error
    if at != len(message):
        raise DecodeError("a Relation message has bytes after its end")
    # The server leaves out the name of its own schema.
    return Relation(oid, TableName(schema or "pg_catalog", name), chr(identity), tuple(columns), frozenset(identifying))


@dataclass(frozen=True)
class Message:
    """What an application wrote into the log for whoever reads it."""

    prefix: str
    content: bytes


def message_of(message: bytes) -> Message:
    """Read a Message message.

    :raises DecodeError: it is malformed.
    """
    try:
        prefix, at = _text(message, 10)
        (size,) = struct.unpack_from(">I", message, at)
    except (struct.error, ValueError) as error:
        raise DecodeError(f"a Message message is malformed: {error}") from error
    if len(message) != at + 4 + size:
        raise DecodeError("a Message message has another length than it says")
    return Message(prefix, message[at + 4 :])


def truncated(message: bytes) -> tuple[int, ...]:
    """The OIDs of the tables in a Truncate message.

    :raises DecodeError: it is malformed.
    """
    try:
        count, _ = struct.unpack_from(">IB", message, 1)
        if len(message) != 6 + 4 * count:
            raise DecodeError("a Truncate message has another length than it says")
        return struct.unpack_from(f">{count}I", message, 6)
    except struct.error as error:
        raise DecodeError(f"a Truncate message is malformed: {error}") from error


def _text(message: bytes, at: int) -> tuple[str, int]:
    """The text at ``at``, and where what follows it begins."""
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1
