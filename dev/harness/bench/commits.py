"""The commits of the bank (`harness.bench.bank`), in the order of the source's log. This module shares no code with the
package: it reads MySQL's log with mysql-replication, and PostgreSQL's with the plugin test_decoding."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

from harness.bench.bank import MARKS, SCHEMA, TABLES, Row
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

SLOT = "bench_truth"


@dataclass
class Commit:
    """One transaction. ``changes`` has tables, keys and the new rows; None: the row is gone. ``mark`` is the number of
    the mark that it writes; 0: none."""

    changes: list[tuple[str, Any, Row | None]] = field(default_factory=list)
    mark: int = 0


class SourceLog(ABC):
    """The log of a source, from its construction on. Several transactions may be in flight at each mark."""

    def __init__(self) -> None:
        self._marks = 0

    @abstractmethod
    def _write_mark(self, number: int) -> None:
        """Commit a mark."""

    @abstractmethod
    def _commits(self) -> Iterator[Commit]:
        """Yield the commits that follow those that were read."""

    def mark(self) -> int:
        """Commit a mark, and return its number."""
        self._marks += 1
        self._write_mark(self._marks)
        return self._marks

    def up_to(self, mark: int) -> Iterator[Commit]:
        """Yield the next commits, up to the one with this mark."""
        for commit in self._commits():
            yield commit
            if commit.mark == mark:
                return
        raise AssertionError(f"the log ends before the mark {mark}")


class MysqlLog(SourceLog):
    """The binary log of a MySQL server."""

    def __init__(self, server: MysqlServer) -> None:
        super().__init__()
        self._server = server
        self._file, self._place = server.query("SHOW BINARY LOG STATUS")[0][:2]

    def _write_mark(self, number: int) -> None:
        self._server.query(f"INSERT INTO {MARKS}.marks VALUES ({number})")

    def _commits(self) -> Iterator[Commit]:
        server = self._server
        reader = BinLogStreamReader(
            connection_settings={"host": server.host, "port": server.port, "user": "root", "passwd": ""},
            server_id=4712,
            log_file=self._file,
            log_pos=int(self._place),
            resume_stream=True,
            only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent, XidEvent],
            only_schemas=[SCHEMA, MARKS],
            enable_logging=False,
        )
        commit = Commit()
        try:
            for event in reader:
                if isinstance(event, XidEvent):
                    self._file, self._place = reader.log_file, reader.log_pos
                    yield commit
                    commit = Commit()
                elif event.schema == MARKS:
                    if event.table == "marks":
                        commit.mark = event.rows[0]["values"]["id"]
                else:
                    commit.changes += _mysql_changes(event)
        finally:
            reader.close()


def _mysql_changes(event: Any) -> Iterator[tuple[str, Any, Row | None]]:
    table, columns = event.table, TABLES[event.table]
    for row in event.rows:
        before, after = row.get("before_values"), row.get("after_values")
        if isinstance(event, DeleteRowsEvent):
            before = row["values"]
        elif isinstance(event, WriteRowsEvent):
            after = row["values"]
        if before is not None and (after is None or before["id"] != after["id"]):
            yield table, before["id"], None
        if after is not None:
            yield table, after["id"], tuple(after[name] for name in columns)


class PostgresLog(SourceLog):
    """The log of a PostgreSQL server, read through a slot."""

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self._server = server
        self._read = deque[Commit]()
        """The commits that were read, and not yielded yet."""
        server.query("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (SLOT,))

    def _write_mark(self, number: int) -> None:
        self._server.query(f"INSERT INTO {MARKS}.marks VALUES ({number})")

    def _commits(self) -> Iterator[Commit]:
        while True:
            while self._read:
                yield self._read.popleft()
            # A call returns whole transactions, and lets go of their log.
            lines = self._server.query(
                "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, 10000, 'skip-empty-xacts', '1')", (SLOT,)
            )
            if not lines:
                return
            for (line,) in lines:
                if line.startswith("BEGIN"):
                    self._read.append(Commit())
                elif line.startswith("table "):
                    _add_postgres_change(self._read[-1], line)


_CHANGE = re.compile(r"table (\w+)\.(\w+): (INSERT|UPDATE|DELETE): (.*)", re.DOTALL)
_VALUE = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|\S+)")


def _add_postgres_change(commit: Commit, line: str) -> None:
    found = _CHANGE.fullmatch(line)
    assert found is not None, line
    schema, table, kind, text = found.groups()
    old, separator, new = text.removeprefix("old-key: ").partition(" new-tuple: ")
    if (schema, table) == (MARKS, "signals"):
        return
    values = {name: _value(value) for name, value in _VALUE.findall(new if separator else old)}
    if schema == MARKS:
        commit.mark = int(values["id"])
        return
    if separator:
        commit.changes.append((table, _value(_VALUE.findall(old)[0][1]), None))
    if kind == "DELETE":
        commit.changes.append((table, values["id"], None))
    else:
        commit.changes.append((table, values["id"], tuple(values[name] for name in TABLES[table])))


def _value(text: str) -> Any:
    return text[1:-1].replace("''", "'") if text.startswith("'") else int(text)
