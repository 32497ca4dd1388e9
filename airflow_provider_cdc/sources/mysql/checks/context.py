"""What checks go by: each question that several of them need is asked once, when the first one needs its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pymysql

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.plan import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import LogGone, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.amazon import is_amazon
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, log_files, log_status
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.server import LOG_PLACE, is_replica, state
from airflow_provider_cdc.sources.mysql.server.session import Connection, RunSettings, variables
from airflow_provider_cdc.sources.mysql.tables.cascades import with_parents


@dataclass
class ServerContext:
    """A server.

    :param replicated: it is held to the rules for a replica, whether it still is one or not.
    """

    connection: Connection
    replicated: bool = False

    def __post_init__(self) -> None:
        self._variables: dict[str, str | None] = {}

    def variables(self, names: Sequence[str]) -> dict[str, str]:
        """The global variables of these names that the server has, as text."""
        if unasked := [name for name in names if name not in self._variables]:
            self._variables |= dict.fromkeys(unasked) | variables(self.connection, unasked)
        return {name: setting for name in names if (setting := self._variables[name]) is not None}

    @cached_property
    def may_be_replica(self) -> bool:
        """Whether the rules for a replica count: also if this user may not know."""
        return self.replicated or is_replica(self.connection) is not False

    @cached_property
    def is_amazon(self) -> bool:
        return is_amazon(self.connection)

    @cached_property
    def privileges(self) -> Privileges:
        return Privileges(self.connection)

    @cached_property
    def filters(self) -> tuple[set[str], set[str]] | None:
        """The schemas that alone are logged, and those that are not; None: there is no log, or no privilege, and both
        are problems of their own."""
        try:
            status = log_status(self.connection)
        except (LogGone, pymysql.OperationalError):
            return None
        alone, ignored = (set(filter(None, names.split(","))) for names in status[2:4])
        return alone, ignored


@dataclass(kw_only=True)
class RunContext(ServerContext):
    """The server that a run goes on with.

    :param expected: its identity, as the run recorded it.
    :param position: what the run needs the log after.
    """

    settings: ConnectionSettings
    expected: Mapping[str, str]
    position: GtidSet

    @cached_property
    def state(self) -> Mapping[str, str]:
        """What the server is now."""
        return state(self.connection)

    @cached_property
    def here(self) -> RunSettings:
        """This server, whichever it is."""
        return RunSettings.of(self.settings, self.state)

    @cached_property
    def begun(self) -> LogPlace:
        return LogPlace.parse(self.expected[LOG_PLACE])

    @cached_property
    def files(self) -> dict[str, int]:
        return log_files(self.connection)


@dataclass(kw_only=True)
class TablesContext(ServerContext):
    """The tables that a run copies. Whoever looks for them fills it in.

    :param unreadable: of those that this user may not read whole.
    :param hidden: of parents of theirs that are not known (`cascades.with_parents`).
    :param plans: of ``tables``, in their order.
    """

    unreadable: Sequence[Problem] = ()
    hidden: Sequence[Problem] = ()
    tables: Sequence[Table] = ()
    plans: Sequence[TablePlan] = ()

    def planned(self, consistency: str) -> list[Table]:
        """The tables that are read so."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if plan.consistency == consistency]


@dataclass(kw_only=True)
class RequestContext(TablesContext):
    """What a run is asked for, and the tables that are meant.

    :param unresolved: of patterns that name no table.
    """

    patterns: Sequence[str]
    options: TableOptions
    unresolved: Sequence[Problem] = ()


def of_recorded(connection: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]) -> TablesContext:
    """The tables as they are at the run's position, with what a run needs to know of their parents."""
    context = TablesContext(connection, plans=plans)
    context.unreadable = [
        problem for table in tables if (problem := context.privileges.select_problem(table.name)) is not None
    ]
    context.tables, context.hidden = with_parents(connection, context.privileges, tables)
    return context
