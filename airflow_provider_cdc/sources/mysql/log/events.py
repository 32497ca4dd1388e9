"""Parsers of single binary log events that are too rare or too irregular for the kernel in ``walk.py``.

In this module, the *body* of an event is the event without its header and checksum. The formats are described at
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html. Where that page is
incomplete, the parsers follow the events that real servers write. Tests compare the parsers with such events.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Any

from pymysql.charset import charset_by_id

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import DecodeError, UnknownEvent
from airflow_provider_cdc.sources.mysql.log.statements import grammar
from airflow_provider_cdc.sources.mysql.log.statements.grammar import OLDEST, Statement
from airflow_provider_cdc.sources.mysql.server.dialect import comment_number
from airflow_provider_cdc.sources.mysql.server.log_protocol import (
    DELETE_ROWS,
    DELETE_ROWS_V1,
    EXECUTE_LOAD_QUERY,
    EXECUTE_LOAD_QUERY_POST_HEADER_BYTES,
    HEADER_BYTES,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    QUERY_POST_HEADER_BYTES,
    ROTATE,
    ROWS_POST_HEADER_BYTES,
    ROWS_POST_HEADER_BYTES_V1,
    TABLE_MAP,
    UPDATE_ROWS,
    UPDATE_ROWS_V1,
    WRITE_ROWS,
    WRITE_ROWS_V1,
    XID,
)

# Maps an event type to the post-header length, in bytes, that the kernel and this module expect.
_POST_HEADERS = {
    QUERY: QUERY_POST_HEADER_BYTES,
    ROTATE: 8,
    XID: 0,
    TABLE_MAP: 8,
    WRITE_ROWS: ROWS_POST_HEADER_BYTES,
    UPDATE_ROWS: ROWS_POST_HEADER_BYTES,
    DELETE_ROWS: ROWS_POST_HEADER_BYTES,
}
_OPTIONAL_POST_HEADERS = {
    EXECUTE_LOAD_QUERY: EXECUTE_LOAD_QUERY_POST_HEADER_BYTES,
    WRITE_ROWS_V1: ROWS_POST_HEADER_BYTES_V1,
    UPDATE_ROWS_V1: ROWS_POST_HEADER_BYTES_V1,
    DELETE_ROWS_V1: ROWS_POST_HEADER_BYTES_V1,
    PARTIAL_UPDATE_ROWS: ROWS_POST_HEADER_BYTES,
}
"""Event types that some servers do not have. Such a server declares the length 0, or no length, for them."""


_VERSION = re.compile(r"(\d{1,3})\.(\d{1,2})\.(\d{1,2})(?!\d)")


@dataclass(frozen=True)
class FormatDescription:
    """The content of a FORMAT_DESCRIPTION event. ``server_version`` is a number of the form that versioned comments
    use, such as 80023. ``checksums`` tells whether each event ends with a CRC-32."""

    server_version: int
    checksums: bool


def format_description(body: bytes) -> FormatDescription:
    """Parse a FORMAT_DESCRIPTION event.

    :raises UnknownEvent: the version of the log format, or the length of a post-header, is not supported.
    """
    if len(body) < 58:
        raise DecodeError("a FORMAT_DESCRIPTION event is too short")
    version, server, header = struct.unpack_from("<H50s4xB", body)
    lengths, checksum = body[57:-1], body[-1]
    odd = [kind for kind, length in _POST_HEADERS.items() if lengths[kind - 1 : kind] != bytes([length])]
    odd += [
        kind
        for kind, length in _OPTIONAL_POST_HEADERS.items()
        if lengths[kind - 1 : kind] not in (b"", b"\0", bytes([length]))
    ]
    server_version = server.rstrip(b"\0").decode("utf-8", "replace")
    if version != 4 or header != HEADER_BYTES or odd or checksum not in (0, 1):
        raise UnknownEvent(
            f"the log of server {server_version} has an unknown form: format {version}, headers of {header} bytes, "
            f"checksum algorithm {checksum}, unknown lengths for events {odd}"
        )
    numbers = _VERSION.match(server_version)
    return FormatDescription(
        comment_number((int(numbers[1]), int(numbers[2]), int(numbers[3]))) if numbers else OLDEST, checksum == 1
    )


@dataclass(frozen=True)
class TableMap:
    """The content of a TABLE_MAP event. ``number`` identifies the table in the row events that follow."""

    number: int
    name: TableName
    types: bytes
    metadata: bytes


def table_map(body: bytes) -> TableMap:
    """Parse a TABLE_MAP event, except the data after the metadata block (nullability, names, …)."""
    try:
        number = int.from_bytes(body[:6], "little")
        schema, at = _short_name(body, 8)
        table, at = _short_name(body, at)
        columns, at = _packed(body, at)
        types, at = _slice(body, at, columns)
        size, at = _packed(body, at)
        metadata, at = _slice(body, at, size)
    except (IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"a TABLE_MAP event is malformed: {error}") from error
    return TableMap(number, TableName(schema, table), types, metadata)


# Maps the code of a status variable to the size of its value in bytes. None: a length byte precedes the value.
_STATUS_BYTES = {
    0: 4,
    1: 8,
    3: 4,
    4: 6,
    5: None,
    6: None,
    7: 2,
    8: 2,
    9: 8,
    10: 4,
    13: 3,
    16: 1,
    17: 8,
    18: 2,
    19: 1,
    20: 1,
    21: 1,
}
_SQL_MODE, _CHARSET, _INVOKER, _SCHEMAS, _ATOMIC = 1, 4, 11, 12, 17
_TOO_MANY_SCHEMAS = 254
_ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1 << 2, 1 << 20


def query(body: bytes) -> Statement:
    """Parse a QUERY event."""
    try:
        _, _, schema_bytes, _, status_bytes = struct.unpack_from("<IIBHH", body)
        status, at = _slice(body, QUERY_POST_HEADER_BYTES, status_bytes)
        schema, at = _slice(body, at, schema_bytes)
        text = body[at + 1 :]
        variables = _status_variables(status)
    except (IndexError, struct.error) as error:
        raise DecodeError(f"a QUERY event is malformed: {error}") from error
    mode = int.from_bytes(variables.get(_SQL_MODE, b""), "little")
    charset = _charset(variables.get(_CHARSET))
    return Statement(
        grammar.decode(text, charset),
        schema.decode("utf-8", "surrogateescape"),
        ansi_quotes=bool(mode & _ANSI_QUOTES),
        backslash_escapes=not mode & _NO_BACKSLASH_ESCAPES,
        # If the parser stopped at an unknown variable, assume that the transaction number comes after that variable.
        atomic=_ATOMIC in variables or -1 in variables,
        schemas=_schemas(variables.get(_SCHEMAS)),
        charset=charset if _CHARSET in variables else "",
        raw=text,
        literals_charset=_charset(variables[_CHARSET][2:]) if _CHARSET in variables else "",
    )


def execute_load_query(body: bytes) -> Statement:
    """Parse an EXECUTE_LOAD_QUERY event. It contains a LOAD DATA that was logged as a statement."""
    return query(body[:QUERY_POST_HEADER_BYTES] + body[EXECUTE_LOAD_QUERY_POST_HEADER_BYTES:])


def _status_variables(data: bytes) -> dict[int, bytes]:
    """Return the values of the status variables by code. Parsing ends at a variable of unknown length. In this case,
    the result also has the key -1."""
    variables: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        code = data[at]
        at += 1
        if code == _INVOKER:
            _, at = _slice(data, at + 1, data[at])
            _, at = _slice(data, at + 1, data[at])
        elif code == _SCHEMAS:
            count, start = data[at], at
            at += 1
            for _ in range(0 if count == _TOO_MANY_SCHEMAS else count):
                at = data.index(b"\0", at) + 1 if b"\0" in data[at:] else len(data)
            variables[code] = data[start:at]
        elif code in _STATUS_BYTES:
            size = _STATUS_BYTES[code]
            if size is None:
                size = data[at]
                at += 1
            variables[code], at = _slice(data, at, size)
        else:
            variables[-1] = b""
            break
    return variables


def _schemas(data: bytes | None) -> frozenset[str] | None:
    """Return the schemas of all tables that the statement opened, including those opened by its triggers, functions and
    views. None: the event does not list the schemas, because there are too many of them or because foreign keys may
    propagate changes."""
    if data is None or data[0] in (0, _TOO_MANY_SCHEMAS) or data.count(b"\0") != data[0]:
        return None
    return frozenset(name.decode("utf-8", "surrogateescape") for name in data[1:-1].split(b"\0"))


def _collation(charset: bytes | None) -> int:
    return int.from_bytes(charset[:2], "little") if charset else 0


def _charset(charset: bytes | None) -> str:
    """Return the name of the client's character set; empty if it is unknown."""
    collation = _collation(charset)
    try:
        known_to_driver: Any = charset_by_id(collation)
        return str(known_to_driver.name)
    except LookupError:
        # All collations with a number of 255 or more belong to utf8mb4, but the driver does not know all of them. The
        # number 0 means that the event has no collation.
        return "utf8mb4" if collation >= _FIRST_LATE_COLLATION else "ascii" if not collation else ""


_FIRST_LATE_COLLATION = 255

_XID = r"X'(?:[0-9a-f]{2}){0,64}',X'(?:[0-9a-f]{2}){0,64}',\d{1,20}"
_XA = re.compile(rf"XA (START|END|PREPARE|COMMIT|ROLLBACK) ({_XID})( ONE PHASE)?")


@dataclass(frozen=True)
class XaStatement:
    """An XA statement in the log. ``xid`` is the transaction's id in the server's notation."""

    verb: str
    xid: str
    one_phase: bool


def xa_statement(text: str) -> XaStatement | None:
    """Parse an XA statement. None: the text is another statement."""
    match = _XA.fullmatch(text)
    return None if match is None else XaStatement(match[1], match[2], match[3] is not None)


def xa_prepare(body: bytes) -> XaStatement:
    """Parse an XA_PREPARE event."""
    try:
        one_phase, form, global_bytes, branch_bytes = struct.unpack_from("<BIII", body)
        start, middle = 13, 13 + global_bytes
        whole = body[start:]
        if one_phase > 1 or len(whole) != global_bytes + branch_bytes:
            raise IndexError(f"the id has {len(whole)} bytes instead of {global_bytes} + {branch_bytes}")
    except (IndexError, struct.error) as error:
        raise DecodeError(f"an XA_PREPARE event is malformed: {error}") from error
    xid = f"X'{body[start:middle].hex()}',X'{body[middle:].hex()}',{form}"
    return XaStatement("COMMIT" if one_phase else "PREPARE", xid, bool(one_phase))


def rotate(body: bytes) -> bytes:
    """Return the name of the next file from a ROTATE event. If it is not yet known whether events have checksums, the
    result may end with a checksum."""
    if len(body) < 9:
        raise DecodeError("a ROTATE event is too short")
    return body[8:]


ZSTD = 0
_END, _SIZE, _ALGORITHM = 0, 1, 2


@dataclass(frozen=True)
class Payload:
    """The part of a TRANSACTION_PAYLOAD event that contains the zstd-compressed events: ``body[start:stop]``."""

    start: int
    stop: int


def transaction_payload(body: bytes) -> Payload:
    """Parse the fields before the payload of a TRANSACTION_PAYLOAD event.

    :raises UnknownEvent: the payload is compressed with an unsupported algorithm.
    """
    at = 0
    fields: dict[int, int] = {}
    try:
        while True:
            field, at = _packed(body, at)
            if field == _END:
                break
            size, at = _packed(body, at)
            value, at = _slice(body, at, size)
            fields[field], _ = _packed(value, 0) if field in (_SIZE, _ALGORITHM) else (0, 0)
        size, algorithm = fields[_SIZE], fields[_ALGORITHM]
        _slice(body, at, size)
    except (IndexError, KeyError) as error:
        raise DecodeError(f"a TRANSACTION_PAYLOAD event is malformed: {error}") from error
    if algorithm != ZSTD:
        raise UnknownEvent(f"a transaction is compressed with the unsupported algorithm {algorithm}")
    return Payload(at, at + size)


def _packed(data: bytes, at: int) -> tuple[int, int]:
    """Read the length-encoded integer at the offset ``at``. Return the integer and the offset after it."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}.get(first)
    if width is None:
        raise IndexError(f"the byte {first} does not begin a number")
    value, end = _slice(data, at + 1, width)
    return int.from_bytes(value, "little"), end


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise IndexError(f"a field of {size} bytes at {at} ends after the {len(data)} bytes of the event")
    return data[at : at + size], at + size


def _short_name(body: bytes, at: int) -> tuple[str, int]:
    size, at = _packed(body, at)
    name, at = _slice(body, at, size)
    _slice(body, at, 1)
    return name.decode(), at + 1
