"""Reads tables, and checks that they are what the run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Self

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, Reading
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.mysql.checks.replica_tables import is_read_on_replicas
from airflow_provider_cdc.sources.mysql.log.replaced import WatchedTables
from airflow_provider_cdc.sources.mysql.server import log_history
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session
from airflow_provider_cdc.sources.mysql.steps import chunk_reader, replica_reads, snapshot
from airflow_provider_cdc.sources.mysql.steps.check_identity import check_identity
from airflow_provider_cdc.sources.mysql.steps.log_server import bound_log
from airflow_provider_cdc.sources.mysql.tables import schema
from airflow_provider_cdc.sources.session import Kept, keeping


class MysqlReading(Reading):
    """`Reading` for MySQL."""

    settings: ConnectionSettings
    _kept: Kept | None
    _facts: MysqlFacts | None
    _watched: WatchedTables | None

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        settings = self.settings
        if settings.replicas and isinstance(settings, RunSettings) and is_read_on_replicas(table, consistency):
            return replica_reads.open_reader(settings, table, lock.replica_wait_seconds, self._kept)
        return chunk_reader.open_reader(self.settings, table, consistency, lock, self._kept)

    @contextmanager
    def one_session(self) -> Iterator[Self]:
        source = copy(self)
        with keeping() as source._kept:
            yield source

    def close_idle(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def bound_reads(self) -> UpperBound:
        bound = snapshot.bound_reads(self.settings)
        facts = None if self._facts is None else self._facts.of_source
        if facts is not None and bound.incarnation != facts.started:
            assert isinstance(self.settings, RunSettings)
            # Make this check before rows are read again, because the reads would be useless if the server has crashed.
            try:
                with session(self.settings) as connection:
                    check_identity(self.settings, connection, facts, self.settings.position)
            except LogGone:
                # This source does not know the pieces of the log that were recorded since the step began. The next step
                # checks the server from the end of these pieces on.
                if not (facts.may_move and log_history.is_purged(self.settings, facts.begun)):
                    raise
        if self._facts is not None and self.settings.log_server is not None:
            assert isinstance(self.settings, RunSettings)
            with session(self.settings) as connection:
                return bound_log(self.settings, connection, self._facts, self.settings.position, bound)
        return bound

    def check_tables(self, tables: Sequence[Table]) -> None:
        # This check finds DDL early. The log also shows all logged DDL, but the log is read only later.
        with session(self.settings) as connection:
            schema.check_unchanged(connection, tables)
            if self._watched is not None:
                self._watched.check(self.settings, connection, tables)

    def note_tables(self, end: LogEnd, tables: Sequence[Table]) -> str:
        assert self._watched is not None
        with session(self.settings) as connection:
            if self.settings.log_server is not None:
                # The log of the source shows what happens to its tables from now on.
                end = LogEnd(str(log_history.end_of_log(self.settings, connection)))
            return self._watched.note(self.settings, connection, end, tables)

    def reason_not_rollable(self, table: Table) -> str:
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        return roll_forward.reason_not_logged(table)

    def check_continued(self, tables: Sequence[Table]) -> None:
        # The log has the rows of all partitions under the name of the table.
        self.check_tables(tables)

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.mysql.decode.images import new_columns

        return new_columns(table, era)
