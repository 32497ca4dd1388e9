"""mysql-replication as a second reader of row images, and the conversion of its values to this package's form.

It needs a server with ``binlog_row_metadata=FULL``. `WRONG` lists where it is wrong; a test checks each entry against
the server itself.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from harness.mysql_server import MysqlServer

Values = dict[str, Any]

Wrong = Callable[[str], bool]
"""Return whether the reader fails at a value that the server prints as this text."""


def _is_no_date(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return True
    return False


def _always(_: str) -> bool:
    return True


DIES: dict[str, Wrong] = {
    # The type's code is unknown to it.
    r"vector.*": _always,
    # It does not catch the error for impossible dates, except for zeros.
    r"date": lambda text: _is_no_date(text) and "00" not in (text[5:7], text[8:10]) and text[:4] != "0000",
    # Python's codec of that name expects a mark, or knows fewer codes than the server.
    r".* character set (utf16|utf32|sjis|gb18030|big5|euckr)": _always,
}
"""Patterns of column declarations, and values at which the other reader fails for the whole event."""

WRONG: dict[str, Wrong] = {
    # It does not add the zero bytes that the log leaves out.
    r"binary\(.*": lambda text: text.endswith("00"),
    # An empty string is text, whatever the column.
    r"(var)?binary.*|.*blob": lambda text: text == "",
    r"year": lambda text: text == "0000",
    # The fraction of a negative time is stored as its complement, and is not taken back.
    r"time\([1-6]\)": lambda text: text.startswith("-") and text.rpartition(".")[2].strip("0") != "",
    r"timestamp.*": lambda text: text.startswith("0000-00-00"),
    r"datetime.*": lambda text: _is_no_date(text),
    r"date": lambda text: _is_no_date(text),
    # No codec of that name: the stored bytes. Or one with another character for some code.
    r".* character set (ucs2|utf16le|macce|hebrew|greek|dec8|swe7|armscii8|geostd8|keybcs2|eucjpms)": _always,
}
"""The same for values that the other reader gets wrong."""


def is_listed(listed: dict[str, Wrong], declaration: str, text: str | None) -> bool:
    """Whether the reader fails at a value of a column.

    :param text: what the server prints; of binary strings, their digits; None: NULL.
    """
    return any(
        wrong is _always or (text is not None and wrong(text))
        for pattern, wrong in listed.items()
        if re.fullmatch(pattern, declaration)
    )


def read(server: MysqlServer, log: str, schema: str, table: str) -> Iterator[tuple[str, Values]]:
    """Every image of ``table`` from the start of the log file ``log`` on: ``insert``, ``before``, ``after`` or
    ``delete``, and the values by column."""
    logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)
    stream = BinLogStreamReader(
        connection_settings={"host": server.host, "port": server.port, "user": "root", "password": ""},
        server_id=4_000_000_001,
        log_file=log,
        log_pos=4,
        resume_stream=True,
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_schemas=[schema],
        only_tables=[table],
    )
    try:
        for event in stream:
            for row in event.rows:
                if isinstance(event, UpdateRowsEvent):
                    yield "before", row["before_values"]
                    yield "after", row["after_values"]
                else:
                    yield "insert" if isinstance(event, WriteRowsEvent) else "delete", row["values"]
    finally:
        stream.close()


def in_its_form(declaration: str, kind: pa.DataType, value: Any) -> Any:
    """One of our values, of Arrow type ``kind``, as mysql-replication gives it where it is right."""
    if value is None:
        return None
    if declaration.startswith("bit"):
        bits = int(declaration[4:-1])
        return f"{int(value):0{bits}b}"
    if declaration.startswith("set"):
        return set(value.split(",")) if value else None
    if declaration == "json":
        return json.loads(value)
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    return value


def as_ours(declaration: str, value: Any) -> Any:
    """One of its values, with its own JSON types replaced by Python's."""
    return _plain_json(value) if declaration == "json" else value


def _plain_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_plain_json(name): _plain_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_json(item) for item in value]
    return value


def alike(ours: Any, theirs: Any) -> bool:
    """Equality, of floats by their bits."""
    if isinstance(ours, float) and isinstance(theirs, float):
        return struct.pack("d", ours) == struct.pack("d", theirs)
    return bool(ours == theirs)
