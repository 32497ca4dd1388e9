"""Online schema changes as tools do them: the real pt-online-schema-change, and the cut-over of gh-ost."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.mysql_server import MysqlServer
from harness.percona_toolkit import OnlineSchemaChange
from tests.soon import soon

PATIENCE = 120.0


class Percona:
    """pt-online-schema-change of one table. It has made its triggers and waits, until `finish`."""

    def __init__(self, tool: OnlineSchemaChange, server: MysqlServer, table: str, alter: str, folder: Path) -> None:
        self._pause = folder / "pause"
        self._pause.touch()
        options = (f"--pause-file={self._pause}", "--chunk-size=20", "--sleep=0", "--set-vars=lock_wait_timeout=60")
        self._tool = tool.start(server, table, alter, *options)
        schema, _, name = table.partition(".")
        made = "SELECT COUNT(*) FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = %s AND EVENT_OBJECT_TABLE = %s"
        deadline = time.monotonic() + PATIENCE
        while server.query(made, (schema, name)) != [(3,)]:
            if self._tool.poll() is not None or time.monotonic() > deadline:
                self._tool.kill()
                raise AssertionError(self._tool.communicate()[0])
            time.sleep(0.05)

    def finish(self) -> None:
        """Let it copy the rows and swap the tables."""
        self._pause.unlink()
        try:
            told, _ = self._tool.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self._tool.kill()
            raise
        assert self._tool.returncode == 0, told
        assert "Swapped original and new tables OK" in told, told


class GhOst:
    """The steps that gh-ost takes for one table with an integer key.

    It copies rows into a ghost table in chunks, with INSERT IGNORE. It applies what it reads in the log to the ghost
    table; here, the rows that differ stand for what it has read. Its cut-over is atomic: one session locks the table
    together with a table of the name that the old table will get, and another session waits to rename both.
    """

    def __init__(self, server: MysqlServer, table: str, alter: str, columns: Sequence[str]) -> None:
        self._server = server
        self._schema, _, self._name = table.partition(".")
        self._columns = columns
        self._query(f"CREATE TABLE `{self._ghost}` LIKE `{self._name}`")
        self._query(f"ALTER TABLE `{self._ghost}` {alter}")
        self._query(f"CREATE TABLE `_{self._name}_ghc` (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64))")
        self._query(f"INSERT INTO `_{self._name}_ghc` (hint) VALUES ('GhostTableMigrated')")

    @property
    def _ghost(self) -> str:
        return f"_{self._name}_gho"

    def finish(self) -> None:
        """Copy the rows, and swap the tables."""
        key, names = self._columns[0], ", ".join(self._columns)
        ranges = self._query(f"SELECT {key} FROM `{self._name}` ORDER BY {key}")[::20]
        bounds = [row[0] for row in ranges] + [2**31 - 1]
        for first, last in pairwise(bounds):
            self._query(
                f"INSERT IGNORE INTO `{self._ghost}` ({names}) SELECT {names} FROM `{self._name}` "
                f"FORCE INDEX (PRIMARY) WHERE {key} >= {first} AND {key} < {last} LOCK IN SHARE MODE"
            )
        self._cut_over(names)
        self._query(f"DROP TABLE `_{self._name}_ghc`")
        self._query(f"DROP TABLE `_{self._name}_del`")

    def _cut_over(self, names: str) -> None:
        old = f"_{self._name}_del"
        self._query(f"CREATE TABLE `{old}` (id INT PRIMARY KEY)")
        with contextlib.closing(self._server.connect(database=self._schema)) as locking, locking.cursor() as cursor:
            cursor.execute(f"LOCK TABLES `{self._name}` WRITE, `{old}` WRITE")
            cursor.execute(f"SELECT {names} FROM `{self._name}`")
            self._apply(names, cursor.fetchall())
            rename = f"RENAME TABLE `{self._name}` TO `{old}`, `{self._ghost}` TO `{self._name}`"
            failures: list[BaseException] = []
            renaming = threading.Thread(target=self._rename, args=(rename, failures))
            renaming.start()
            waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO = %s AND STATE LIKE 'Waiting%%'"
            soon(lambda: self._server.query(waits, (rename,)), [(1,)])
            cursor.execute(f"DROP TABLE `{old}`")
            cursor.execute("UNLOCK TABLES")
            renaming.join(PATIENCE)
        assert not renaming.is_alive()
        assert not failures, failures

    def _apply(self, names: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Apply the changes that the log has since the rows were copied."""
        marks = ", ".join(["%s"] * len(self._columns))
        with self._server.connect(database=self._schema) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {names} FROM `{self._ghost}`")
            ghost = {row[0]: row for row in cursor.fetchall()}
            now = {row[0]: row for row in rows}
            gone = [(key,) for key in ghost.keys() - now.keys()]
            cursor.executemany(f"DELETE FROM `{self._ghost}` WHERE {self._columns[0]} = %s", gone)
            changed = [row for key, row in now.items() if ghost.get(key) != row]
            cursor.executemany(f"REPLACE INTO `{self._ghost}` ({names}) VALUES ({marks})", changed)

    def _rename(self, rename: str, failures: list[BaseException]) -> None:
        try:
            self._query(rename)
        except BaseException as error:
            failures.append(error)

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._server.connect(database=self._schema) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())
