"""Defines the contexts that checks receive. If several checks need the result of a query, the query runs only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.catalog_snapshot import Catalog
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import needs_log
from airflow_provider_cdc.sources.postgres.checks.privileges import Privileges
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import Connection


@dataclass
class ServerContext:
    """The server that is checked."""

    connection: Connection


@dataclass(kw_only=True)
class RunContext(ServerContext):
    """The server of a run that is in progress.

    :param expected: the facts that the run recorded.
    :param position: the position at which the run's slot was created.
    :param log: a session of the server that has the run's slots.
    """

    expected: PostgresFacts
    position: Lsn
    log: Connection

    @cached_property
    def identity(self) -> PostgresFacts:
        """The present identity of the server."""
        return identity(self.connection)


@dataclass(kw_only=True)
class TablesContext(ServerContext):
    """The tables that a run copies.

    :param plans: the plans of ``tables``, in the same order.
    :param publication: the publication through which the log of the tables in ``logged`` is read. Empty: the run
        creates its own publication.
    """

    tables: Sequence[Table] = ()
    plans: Sequence[TablePlan] = ()
    publication: str = ""

    @property
    def logged(self) -> list[Table]:
        """The tables whose changes the run needs from the log."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if needs_log(plan)]

    def planned(self, consistency: str) -> list[Table]:
        """Return the tables that are read with ``consistency``."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if plan.consistency == consistency]

    @property
    def reads_again(self) -> bool:
        """Whether rows are read again instead of rewound. If they are read again, the run needs only keys from the
        log."""
        return any(plan.at_upper for plan in self.plans)


@dataclass
class CatalogContext(TablesContext):
    """The tables in one snapshot of the catalog."""

    connection: Catalog

    @cached_property
    def missing_of_tables(self) -> list[Problem]:
        logged, privileges = self.logged, Privileges(self.connection)
        others = [table for table in self.tables if table not in logged]
        return [
            *privileges.table_problems(self.connection, logged, publishing=not self.publication),
            *privileges.table_problems(self.connection, others, publishing=False),
        ]


@dataclass(kw_only=True)
class UserContext(TablesContext):
    """The tables, and the user who copies them. If there are no tables, the context covers only the server.

    :param may_publish: whether the user has all privileges on the tables that a run needs.
    """

    settings: ConnectionSettings
    may_publish: bool = True

    @cached_property
    def privileges(self) -> Privileges:
        return Privileges(self.connection)

    @cached_property
    def missing_of_server(self) -> list[Problem]:
        return self.privileges.server_problems(self.settings, publishing=not self.publication)


@dataclass(kw_only=True)
class RequestContext(UserContext):
    """The patterns and options of a run, and the tables that match the patterns.

    :param unresolved: the problems of patterns that match no table.
    """

    patterns: Sequence[str]
    options: TableOptions
    unresolved: Sequence[Problem] = ()
