"""Row images as a server wrote them, extracted from its log file by code that shares nothing with the package."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pymysql import Connection

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer

TABLE_MAP, WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS = 19, 30, 31, 32
_HEADER, _CHECKSUM, _MAGIC = 19, 4, 4


@dataclass(frozen=True)
class RowsEvent:
    """A rows event: its ``kind``, the table map's column types and metadata, and its images end to end."""

    kind: int
    types: bytes
    metadata: bytes
    body: bytes


def settings(server: MysqlServer, **tls: str) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls=tls)


def describe(server: MysqlServer, schema: str, name: str) -> Table:
    with session(settings(server)) as connection:
        return read_tables(connection, [TableName(schema, name)])[0]


def logged(server: MysqlServer, schema: str, statements: Sequence[str]) -> list[RowsEvent]:
    """The rows events of ``statements``, each of which is run separately."""

    def run(connection: Connection[Any]) -> None:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    return logged_by(server, schema, run)


def logged_by(server: MysqlServer, schema: str, work: Callable[[Connection[Any]], None]) -> list[RowsEvent]:
    """The rows events of what ``work`` does in a session without strict mode."""
    with server.connect(database=schema) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
            cursor.execute("FLUSH BINARY LOGS")
            cursor.execute("SHOW BINARY LOG STATUS")
            log = cursor.fetchone()[0]
        work(connection)
    return list(_rows_events((server.directory / "data" / log).read_bytes()))


def _rows_events(log: bytes) -> Iterator[RowsEvent]:
    maps: dict[bytes, tuple[bytes, bytes]] = {}
    position = _MAGIC
    while position < len(log):
        kind, size = log[position + 4], struct.unpack_from("<I", log, position + 9)[0]
        event = log[position + _HEADER : position + size - _CHECKSUM]
        if kind == TABLE_MAP:
            maps[event[:6]] = _types_and_metadata(event)
        elif kind in (WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS):
            extra = struct.unpack_from("<H", event, 8)[0]
            columns, at = _length(event, 8 + extra)
            bitmaps = 2 if kind == UPDATE_ROWS else 1
            yield RowsEvent(kind, *maps[event[:6]], event[at + bitmaps * ((columns + 7) // 8) :])
        position += size


def _types_and_metadata(event: bytes) -> tuple[bytes, bytes]:
    at = 8
    for _ in range(2):  # schema and table: length, name, zero byte
        at += event[at] + 2
    count, at = _length(event, at)
    types = event[at : at + count]
    size, at = _length(event, at + count)
    return types, event[at : at + size]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and where it ends."""
    if data[at] < 251:
        return data[at], at + 1
    width = {252: 2, 253: 3, 254: 8}[data[at]]
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
