"""pgoutput messages, parsed and built in plain Python from the documentation, independently of the package."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

from harness.postgres_server import PostgresServer

OPTIONS = "'proto_version', '1', 'publication_names'"

Tuple = tuple[str | None, ...]


@dataclass(frozen=True)
class Change:
    """A row change: ``old`` and ``new`` are raw TupleData, empty where there is none; ``tag`` is that of the old."""

    kind: str
    relation: int
    tag: str
    old: bytes
    new: bytes


def peek(server: PostgresServer, database: str, slot: str, publication: str) -> list[bytes]:
    """All messages that a slot has."""
    from airflow_provider_cdc.sources.postgres.server.session_variables import SESSION_SETTINGS

    with server.connect(database=database) as connection:
        for setting, value in SESSION_SETTINGS.items():
            connection.execute(f"SET {setting} = '{value}'")
        rows = connection.execute(
            f"SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, {OPTIONS}, %s)", (slot, publication)
        )
        return [bytes(row[0]) for row in rows]


def changes(messages: Sequence[bytes]) -> list[Change]:
    """The row changes among messages."""
    found = []
    for message in messages:
        kind = chr(message[0])
        if kind not in "IUD":
            continue
        relation = struct.unpack_from(">I", message, 1)[0]
        at = 5
        parts = {}
        while at < len(message):
            tag = chr(message[at])
            end = tuple_end(message, at + 1)
            parts[tag] = message[at + 1 : end]
            at = end
        old = parts.keys() & {"O", "K"}
        tag = old.pop() if old else ""
        found.append(Change(kind, relation, tag, parts.get(tag, b""), parts.get("N", b"")))
    return found


def tuple_end(data: bytes, at: int) -> int:
    """Where the TupleData at ``at`` ends."""
    (columns,) = struct.unpack_from(">H", data, at)
    at += 2
    for _ in range(columns):
        kind = chr(data[at])
        at += 1
        if kind in "tb":
            at += 4 + struct.unpack_from(">I", data, at)[0]
    return at


def tuple_data(values: Sequence[str | bytes | EllipsisType | None]) -> bytes:
    """TupleData of texts; None is NULL, ``...`` an unchanged TOASTed value."""
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is ...:
            parts.append(b"u")
        else:
            text = value.encode() if isinstance(value, str) else value
            parts.append(b"t" + struct.pack(">I", len(text)) + text)
    return b"".join(parts)


def begin(commit: int, xid: int = 700) -> bytes:
    return b"B" + struct.pack(">QqI", commit, 0, xid)


def commit(at: int, flags: int = 0) -> bytes:
    return b"C" + struct.pack(">BQQq", flags, at, at + 8, 0)


def relation(
    oid: int, name: str, columns: Sequence[tuple[str, int, int]], schema: str = "public", identity: str = "f"
) -> bytes:
    """``columns``: names, type OIDs and modifiers."""
    head = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    described = [b"\1" + column.encode() + b"\0" + struct.pack(">Ii", kind, mod) for column, kind, mod in columns]
    return head + struct.pack(">H", len(columns)) + b"".join(described)


Values = Sequence[str | bytes | EllipsisType | None]


def change(oid: int, old: Values | None, new: Values | None, tag: bytes = b"O") -> bytes:
    """An Insert, Update or Delete message, as there is an old and a new row."""
    kind = b"I" if old is None else b"D" if new is None else b"U"
    parts = [kind + struct.pack(">I", oid)]
    if old is not None:
        parts.append(tag + tuple_data(old))
    if new is not None:
        parts.append(b"N" + tuple_data(new))
    return b"".join(parts)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack(">IB", len(oids), 0) + b"".join(struct.pack(">I", oid) for oid in oids)


def said(at: int, prefix: str, content: bytes, flags: int = 0) -> bytes:
    """A Message message: what an application wrote into the log."""
    return b"M" + struct.pack(">BQ", flags, at) + prefix.encode() + b"\0" + struct.pack(">I", len(content)) + content
