"""A random history whose transactions can all be replayed on another server: MySQL's own tools are the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from harness import oracle
from harness.mysql_server import MysqlServer
from harness.pipeline import published
from tests.consistency.comparing import assert_same_rows
from tests.consistency.mysql import history


class Replayed:
    """The tables of a history in ``schema``, made by its first transactions.

    :param oracle_server: replays the history from its first statement on.
    :param seed: of the history.
    :param rows: of each table, about.
    """

    def __init__(self, server: MysqlServer, oracle_server: MysqlServer, schema: str, seed: int, rows: int) -> None:
        self._server = server
        self._oracle = oracle_server
        self._schema = schema
        self._seed = seed
        server.query("FLUSH BINARY LOGS")
        self._first_log = server.query("SHOW BINARY LOG STATUS")[0][0]
        self._before = server.query("SELECT @@global.gtid_executed")[0][0]
        # The schema itself was made before, by a fixture.
        oracle_server.query(f"DROP DATABASE IF EXISTS `{schema}`")
        oracle_server.query(f"CREATE DATABASE `{schema}`")
        with server.connect() as connection:
            history.create(connection, schema, seed, rows)

    def check(self, tables: Mapping[str, str], position: str) -> None:
        """Compare each published table with what it was at ``position``, row for row.

        :param tables: where each was published, by name.
        :raises AssertionError: rows are missing, or there are others.
        """
        (wanted,) = self._server.query("SELECT GTID_SUBTRACT(%s, %s)", (position, self._before))[0]
        oracle.replay(self._server, self._oracle, wanted.replace("\n", ""), self._first_log)
        for subject in history.SUBJECTS:
            name = f"{self._schema}.{subject.name}"
            columns, rows = published(tables[name])
            truth = oracle.rows_at(self._oracle, name, columns)
            copied = Counter(tuple(map(oracle.plain, row)) for row in rows)
            assert_same_rows(f"seed {self._seed}, {name} at {position}", copied, truth)
