"""What checks go by: each question that several of them need is asked once, when the first one needs its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.replica_identities import needs_log
from airflow_provider_cdc.sources.postgres.server.privileges import Privileges
from airflow_provider_cdc.sources.postgres.server.server import identity
from airflow_provider_cdc.sources.postgres.server.session import Connection


@dataclass
class ServerContext:
    """A server."""

    connection: Connection


@dataclass(kw_only=True)
class RunContext(ServerContext):
    """The server that a run goes on with.

    :param expected: its identity, as the run recorded it.
    :param position: where the run's slot was made.
    """

    expected: Mapping[str, str]
    position: Lsn

    @cached_property
    def identity(self) -> Mapping[str, str]:
        """What the server is now."""
        return identity(self.connection)


@dataclass(kw_only=True)
class TablesContext(ServerContext):
    """The tables that a run copies.

    :param plans: of ``tables``, in their order.
    :param publication: the one that the log of ``logged`` is read through; empty: a run makes one for itself.
    """

    tables: Sequence[Table] = ()
    plans: Sequence[TablePlan] = ()
    publication: str = ""

    @property
    def logged(self) -> list[Table]:
        """The tables of which the run needs the log."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if needs_log(plan)]

    def planned(self, consistency: str) -> list[Table]:
        """The tables that are read so."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if plan.consistency == consistency]

    @property
    def reads_again(self) -> bool:
        """Whether rows are read again, and not rewound: of the log only keys are wanted then."""
        return any(plan.at_upper for plan in self.plans)


@dataclass(kw_only=True)
class UserContext(TablesContext):
    """The same, and the user who copies them. Without tables it is about the server alone."""

    settings: ConnectionSettings

    @cached_property
    def privileges(self) -> Privileges:
        return Privileges(self.connection)

    @cached_property
    def missing_of_server(self) -> list[Problem]:
        return self.privileges.server_problems(self.settings, publishing=not self.publication)

    @cached_property
    def missing_of_tables(self) -> list[Problem]:
        logged = self.logged
        others = [table for table in self.tables if table not in logged]
        return [
            *self.privileges.table_problems(logged, publishing=not self.publication),
            *self.privileges.table_problems(others, publishing=False),
        ]


@dataclass(kw_only=True)
class RequestContext(UserContext):
    """What a run is asked for, and the tables that are meant.

    :param unresolved: of patterns that name no table.
    """

    patterns: Sequence[str]
    options: TableOptions
    unresolved: Sequence[Problem] = ()
