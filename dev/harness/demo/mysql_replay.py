"""Rebuilds the shop at a GTID set without this package: a base copy, and a replay of the log by mysql-replication.

One plain SELECT per table copies the base before any writer starts, so it is exact. Then mysql-replication reads the
log, and exactly the transactions in the GTID set are applied, row by row, to Python dictionaries.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pymysql
from pymysql.cursors import SSCursor
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import GtidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, RowsEvent, UpdateRowsEvent, WriteRowsEvent

from harness.demo.stage import KEYS, SCHEMA, Row
from harness.errors import HarnessError
from harness.mysql_server import MysqlServer


class ShopReplay:
    """The shop's rows, at first their current state. ``forward_to`` brings them to a GTID set.

    Create it while no session writes.
    """

    def __init__(self, server: MysqlServer, columns: dict[str, list[str]]) -> None:
        self._server = server
        self._log_file, self._log_position, *_ = server.query("SHOW BINARY LOG STATUS")[0]
        self._applied = _parse_gtid_set(server.query("SELECT @@global.gtid_executed")[0][0])
        self.columns = columns
        self.rows: dict[str, Counter[Row] | dict[Row, Row]] = {}
        with server.connect(cursorclass=SSCursor) as connection:
            for table in KEYS:
                self.rows[table] = self._indexed(table, _select(connection, table, self.columns[table]))

    def forward_to(self, gtid_set: str) -> int:
        """Apply the transactions of ``gtid_set`` that were not applied yet, and return their number. The set must
        contain all transactions that were applied before.

        :raises HarnessError: the log ends before the last of these transactions.
        """
        wanted = _parse_gtid_set(gtid_set)
        missing = _count(wanted) - _count(self._applied)
        applied, applying = 0, False
        stream = BinLogStreamReader(
            connection_settings={
                "host": self._server.host,
                "port": self._server.port,
                "user": "root",
                "passwd": "",
            },
            server_id=4_000_000_001,
            log_file=self._log_file,
            log_pos=self._log_position,
            resume_stream=True,
            blocking=False,
            only_events=[GtidEvent, WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        )
        try:
            for event in stream:
                if isinstance(event, GtidEvent):
                    if applied == missing:
                        break
                    applying = _contains(wanted, event.gtid) and not _contains(self._applied, event.gtid)
                    applied += applying
                elif applying and event.schema == SCHEMA:
                    self._apply(event)
            else:
                if applied != missing:
                    raise HarnessError(f"the log has only {applied} of the {missing} transactions up to {gtid_set}")
        finally:
            stream.close()
        self._applied = wanted
        return applied

    def _indexed(self, table: str, rows: Iterator[Row]) -> Counter[Row] | dict[Row, Row]:
        width = KEYS[table]
        return {row[:width]: row for row in rows} if width else Counter(rows)

    def _apply(self, event: RowsEvent) -> None:
        table = event.table
        names = self.columns[table]
        for change in event.rows:
            before = change.get("before_values") or (change["values"] if isinstance(event, DeleteRowsEvent) else None)
            after = change.get("after_values") or (change["values"] if isinstance(event, WriteRowsEvent) else None)
            if before is not None:
                self._remove(table, _row(before, names))
            if after is not None:
                self._add(table, _row(after, names))

    def _remove(self, table: str, row: Row) -> None:
        rows = self.rows[table]
        if isinstance(rows, Counter):
            rows[row] -= 1
            if rows[row] < 0:
                raise HarnessError(f"the replay removes a row from {table} that does not exist: {row}")
            if not rows[row]:
                del rows[row]
        else:
            found = rows.pop(row[: KEYS[table]], None)
            if found != row:
                raise HarnessError(
                    f"the replay removes another row from {table} than it has: {row}, but it has {found}"
                )

    def _add(self, table: str, row: Row) -> None:
        rows = self.rows[table]
        if isinstance(rows, Counter):
            rows[row] += 1
        else:
            rows[row[: KEYS[table]]] = row


def comparable(value: Any) -> Any:
    """Convert a value from PyMySQL, mysql-replication or a Parquet file to a form that can be compared."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
    if isinstance(value, set):
        return frozenset(value)
    return value


def comparable_row(row: Row, columns: list[str]) -> Row:
    """Convert every value of ``row`` to its comparable form. Documents become canonical JSON, tags become sets."""
    return tuple(_named(name, value) for name, value in zip(columns, row, strict=True))


def _named(name: str, value: Any) -> Any:
    if name == "tags" and not value:
        return frozenset()  # mysql-replication reads an empty SET as None
    if value is None:
        return None
    if name == "token":
        return value.ljust(16, b"\0")  # the log omits trailing zero bytes, and mysql-replication does not add them
    if name == "profile":
        return json.dumps(_plain_json(json.loads(value) if isinstance(value, str) else value), sort_keys=True)
    if name == "tags" and isinstance(value, str):
        return frozenset(value.split(","))
    return comparable(value)


def _plain_json(document: Any) -> Any:
    # mysql-replication returns the strings of JSON documents as bytes.
    if isinstance(document, bytes):
        return document.decode()
    if isinstance(document, dict):
        return {_plain_json(key): _plain_json(value) for key, value in document.items()}
    if isinstance(document, list):
        return [_plain_json(value) for value in document]
    if isinstance(document, str | bool | None):
        return document
    # A number such as 66.0000 is a decimal in the log but a float in Python's JSON.
    return f"{Decimal(str(document)).normalize():f}"


def _row(values: dict[str, Any], names: list[str]) -> Row:
    return comparable_row(tuple(values[name] for name in names), names)


def select_list(columns: list[str]) -> str:
    """Return a SELECT list that preserves all digits: the text protocol rounds a FLOAT to six digits."""
    return ", ".join(f"CAST({name} AS DOUBLE)" if name == "weight" else f"`{name}`" for name in columns)


def _select(connection: pymysql.Connection[Any], table: str, columns: list[str]) -> Iterator[Row]:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute(f"SELECT {select_list(columns)} FROM {SCHEMA}.{table}")
        for row in cursor:
            yield comparable_row(row, columns)


GtidIntervals = dict[str, list[tuple[int, int]]]


def _parse_gtid_set(text: str) -> GtidIntervals:
    intervals: GtidIntervals = {}
    for part in re.sub(r"\s", "", text).lower().split(","):
        if part:
            uuid, *ranges = part.split(":")
            ends = [(r.split("-")[0], r.split("-")[-1]) for r in ranges]
            intervals.setdefault(uuid, []).extend((int(low), int(high)) for low, high in ends)
    return intervals


def _count(intervals: GtidIntervals) -> int:
    return sum(high - low + 1 for ranges in intervals.values() for low, high in ranges)


def _contains(intervals: GtidIntervals, gtid: str) -> bool:
    uuid, number = gtid.lower().split(":")
    return any(low <= int(number) <= high for low, high in intervals.get(uuid, ()))
