"""Parsers for the pgoutput messages that are rare enough to be read in Python.

Formats: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html, version 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import CarriedField, TableName
from airflow_provider_cdc.errors import DecodeError

RELATION, TRUNCATE, STREAM_ABORT, MESSAGE = 0x52, 0x54, 0x41, 0x4D

_IDENTIFIES = 1

STREAM_ABORT_BYTES = 9
"""Length of a Stream Abort message in version 1 of the protocol. After the first byte, the message has the ids of a
transaction and of a subtransaction."""

FULL = "f"
"""``Relation.identity`` of REPLICA IDENTITY FULL."""


@dataclass(frozen=True)
class RelationMessage:
    """A table's description in the log. The server sends the description before the table's first change, and again
    after the table was altered.

    ``columns``: names, type OIDs and type modifiers, in the order of the tuples. ``identifying``: the names of the
    replica identity's columns. The log has the old values of these columns for each DELETE, and for each UPDATE that
    changes one of the values.
    """

    oid: int
    name: TableName
    identity: str
    columns: tuple[tuple[str, int, int], ...]
    identifying: frozenset[str] = frozenset()


def relation(message: bytes) -> RelationMessage:
    """Parse a Relation message.

    :raises DecodeError: the message is malformed.
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
    # The server sends an empty schema name for pg_catalog.
    return RelationMessage(
        oid, TableName(schema or "pg_catalog", name), chr(identity), tuple(columns), frozenset(identifying)
    )


@dataclass(frozen=True)
class Message:
    """A message that an application wrote into the log (``pg_logical_emit_message``)."""

    prefix: str
    content: bytes


def message_of(message: bytes) -> Message:
    """Parse a pgoutput message of the type Message.

    :raises DecodeError: the message is malformed.
    """
    try:
        prefix, at = _text(message, 10)
        (size,) = struct.unpack_from(">I", message, at)
    except (struct.error, ValueError) as error:
        raise DecodeError(f"a Message message is malformed: {error}") from error
    if len(message) != at + 4 + size:
        raise DecodeError("a Message message is longer or shorter than the length that it states")
    return Message(prefix, message[at + 4 :])


def truncated(message: bytes) -> tuple[int, ...]:
    """Parse a Truncate message, and return the OIDs of the truncated tables.

    :raises DecodeError: the message is malformed.
    """
    try:
        count, _ = struct.unpack_from(">IB", message, 1)
        if len(message) != 6 + 4 * count:
            raise DecodeError("a Truncate message is longer or shorter than the length that it states")
        return struct.unpack_from(f">{count}I", message, 6)
    except struct.error as error:
        raise DecodeError(f"a Truncate message is malformed: {error}") from error


def _text(message: bytes, at: int) -> tuple[str, int]:
    """Return the text that begins at ``at``, and the position after it."""
    end = message.index(b"\0", at)
    return message[at:end].decode(), end + 1


# Defines the letters that precede the values in pgoutput's TupleData
# (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html). This module does not import
# compiled kernels, so code that only needs the letters does not have to load them.


NULL_VALUE, TEXT_VALUE, UNCHANGED_VALUE = 0x6E, 0x74, 0x75
"""The byte before a value: ``n`` (NULL), ``t`` (text) or ``u``. ``u`` means that a new row has the same TOASTed value
as the old row. Images do not contain ``u``."""


def constant_field(one: CarriedField) -> bytes:
    """Return the field of a new column in the tuples of earlier rows. Columns that are not new are NULL."""
    if one.was or one.constant is None:
        return bytes([NULL_VALUE])
    text = bytes.fromhex(one.constant)
    return bytes([TEXT_VALUE]) + len(text).to_bytes(4, "big") + text
