"""The part of `Source` that plans runs: it checks the server and the tables, and divides the tables into chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_cdc.core.options.run import AS_DECLARED, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Parts, Table, whole_tables
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Planning, Reach, Runway
from airflow_provider_cdc.sources.mysql.chunking import axes, chunks
from airflow_provider_cdc.sources.mysql.server import server
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.steps import preflight, snapshot
from airflow_provider_cdc.sources.mysql.tables import types
from airflow_provider_cdc.sources.session import Kept, session_of


class MysqlPlanning(Planning):
    """`Planning` for MySQL."""

    settings: ConnectionSettings
    _kept: Kept | None

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        return preflight.preflight(self.settings, patterns, options, parts)

    def check_server(self) -> list[Problem]:
        return preflight.check_server(self.settings)

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        with session(self.settings) as connection:
            return [*snapshot.tables_of(connection, plans)]

    def comparable_texts(self, table: Table) -> dict[str, str]:
        return types.comparable_texts(table)

    def arrow_schema(self, table: Table) -> pa.Schema:
        return types.arrow_schema(table)

    def pushed_condition(self, table: Table) -> str:
        from airflow_provider_cdc.sources.mysql.chunking import pushed_conditions

        return pushed_conditions.pushed_condition(table)

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        return chunks.sample(self.settings, plans)

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        with session_of(self._kept, "planning", lambda: session(self.settings)) as connection:
            return chunks.plan_readable(connection, table, chunk_rows)

    def key_order(self, table: Table) -> str | None:
        return axes.key_order(table)

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        return chunks.key_range(table, low, high)

    def load(self, signals: Sequence[str]) -> Mapping[str, float]:
        return server.load(self.settings, signals)

    def runway(self) -> Runway:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import runway

        return runway(self.settings)

    def after_failover(self, options: StepOptions) -> str:
        from airflow_provider_cdc.sources.mysql.steps import takeover

        return takeover.after_failover(self.settings, options)

    def has_reached(self, target: AsOf) -> Reach:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import has_reached

        return has_reached(self.settings, target)
