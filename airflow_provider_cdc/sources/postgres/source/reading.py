"""Reads tables, and checks that they are what the run recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Self

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, KeyReader, Reading
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.postgres.catalog import schema_difference, types
from airflow_provider_cdc.sources.postgres.checks.standbys import is_read_on_standbys
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session import SharedView, session
from airflow_provider_cdc.sources.postgres.slots import waits
from airflow_provider_cdc.sources.postgres.steps import chunk_reader, snapshot, standby_reads
from airflow_provider_cdc.sources.postgres.steps.check_identity import check_published
from airflow_provider_cdc.sources.session import Kept, keeping

_ALTERED_SECONDS = 60.0  # the longest wait for transactions that alter a type


class PostgresReading(Reading):
    """`Reading` for PostgreSQL."""

    settings: ConnectionSettings
    _kept: Kept | None
    view: SharedView | None

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        settings = self.settings
        on_standby = is_read_on_standbys(table, consistency) and (consistency == "watermark" or self.view is None)
        if settings.replicas and isinstance(settings, session_setup.RunSettings) and on_standby:
            return standby_reads.open_reader(settings, table, lock.replica_wait_seconds, self._kept)
        return chunk_reader.open_reader(settings, table, consistency, self.view, self._kept)

    def key_reader(self, table: Table) -> AbstractContextManager[KeyReader]:
        consistency = "exported" if self.view is not None else "again"
        return chunk_reader.open_reader(self.settings, table, consistency, self.view, self._kept)

    @contextmanager
    def one_session(self) -> Iterator[Self]:
        source = copy(self)
        with keeping() as source._kept:
            yield source

    def close_idle(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def bound_reads(self) -> UpperBound:
        return snapshot.bound_reads(self.settings)

    def check_tables(self, tables: Sequence[Table]) -> None:
        with session(self.settings) as connection:
            # ALTER TYPE blocks no writer, so the log may have rows with new labels before other sessions see them.
            if altering := types.altering(connection, tables):
                waits.wait_until_visible(self.settings, connection, _ALTERED_SECONDS, altering)
            schema_difference.check_unchanged(connection, tables)
            if isinstance(self.settings, session_setup.RunSettings):
                check_published(connection, self.settings.server, tables)

    def wait_until_visible(self, lock: LockPolicy) -> None:
        with session(self.settings) as connection:
            waits.wait_until_visible(self.settings, connection, lock.slot_wait_seconds)

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        assert self.view is not None
        return snapshot.bound_view(self.settings, self.view, tables)

    def reason_not_rollable(self, table: Table) -> str:
        why = "it was read in a snapshot of its own, and the replication slot begins before this snapshot"
        return why if table.needs_one_position else ""

    def check_continued(self, tables: Sequence[Table]) -> None:
        self.check_tables(tables)
        with session(self.settings) as connection:
            schema_difference.check_unchanged(connection, tables, versions=True)

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.postgres.decode.images import new_columns

        return new_columns(table, era)
