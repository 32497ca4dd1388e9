"""The contexts that checks receive. If several checks need the result of a query, the query runs only once, for the
first of these checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pymysql

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.facts import Reached
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import LogGone, PreflightError, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.dialect import Service
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, file_number, log_files, log_status
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.server import WATCHED, is_replica, service, state
from airflow_provider_cdc.sources.mysql.server.session import Connection, RunSettings, variables
from airflow_provider_cdc.sources.mysql.tables.cascades import with_parents


@dataclass
class ServerContext:
    """A server.

    :param replicated: whether to apply the rules for a replica, even if the server is no longer a replica.
    """

    connection: Connection
    replicated: bool = False

    def __post_init__(self) -> None:
        self._variables: dict[str, str | None] = {}

    def variables(self, names: Sequence[str]) -> dict[str, str]:
        """Return the global variables with these names, as text. Variables that the server does not have are
        omitted."""
        if unasked := [name for name in names if name not in self._variables]:
            self._variables |= dict.fromkeys(unasked) | variables(self.connection, unasked)
        return {name: setting for name in names if (setting := self._variables[name]) is not None}

    @cached_property
    def may_be_replica(self) -> bool:
        """Return whether the rules for a replica apply. The result is also True if the user lacks the privilege to
        query whether the server is a replica."""
        return self.replicated or is_replica(self.connection) is not False

    @cached_property
    def service(self) -> Service:
        return service(self.connection)

    @cached_property
    def privileges(self) -> Privileges:
        return Privileges(self.connection)

    @cached_property
    def filters(self) -> tuple[set[str], set[str]] | None:
        """Return the schemas of binlog_do_db and of binlog_ignore_db.

        None: the server has no log, or the user lacks the privilege to query the schemas. Other checks report both of
        these problems.
        """
        try:
            status = log_status(self.connection)
        except (LogGone, pymysql.OperationalError):
            return None
        alone, ignored = (set(filter(None, names.split(","))) for names in status[2:4])
        return alone, ignored


@dataclass(kw_only=True)
class RunContext(ServerContext):
    """A server on which a run should continue, and the state that the run recorded when it began.

    :param expected: the facts that the run recorded.
    :param position: the position after which the run needs the log.
    """

    settings: ConnectionSettings
    expected: MysqlFacts
    position: GtidSet

    @cached_property
    def state(self) -> MysqlFacts:
        """Return the current identity and settings of the server (`server.state`)."""
        return state(self.connection, [*{*WATCHED, *self.expected.last_set}])

    @cached_property
    def here(self) -> RunSettings:
        """Return connection settings for the server that answered, even if this server is not the expected server."""
        return RunSettings.of(self.settings, self.state)

    @cached_property
    def spooled(self) -> Reached | None:
        """The end of the recorded chain of pieces, if the server has purged the file in which the run began. Otherwise
        None."""
        return self.expected.reached if self.expected.place.file not in self.files else None

    @cached_property
    def purged_elsewhere_read(self) -> bool:
        """Whether the server may have purged the file in which the run began, because the log is read from another
        server. Without a restart and a reset since then, this server has lost nothing."""
        found, expected = self.state, self.expected
        return (
            expected.log_server is not None
            and file_number(expected.place.file) < min(map(file_number, self.files), default=0)
            and (found.started, found.resets) == (expected.started, expected.resets)
        )

    @cached_property
    def begun(self) -> LogPlace:
        """The place from which the run still needs the log."""
        return LogPlace.parse(self.spooled.end) if self.spooled is not None else self.expected.place

    @cached_property
    def files(self) -> dict[str, int]:
        return log_files(self.connection)


@dataclass(kw_only=True)
class TablesContext(ServerContext):
    """The tables that a run copies. The code that looks up the tables also creates this context.

    :param unreadable: problems of tables that the user cannot read completely, because privileges are missing.
    :param hidden: problems of tables with unknown parents, to which their foreign keys refer (`cascades.with_parents`).
    :param plans: the plans of ``tables``, in the same order.
    """

    unreadable: Sequence[Problem] = ()
    hidden: Sequence[Problem] = ()
    tables: Sequence[Table] = ()
    plans: Sequence[TablePlan] = ()

    def planned(self, consistency: str) -> list[Table]:
        """Return the tables whose plans have this consistency."""
        return [table for table, plan in zip(self.tables, self.plans, strict=True) if plan.consistency == consistency]


@dataclass(kw_only=True)
class RequestContext(TablesContext):
    """The patterns and options of a run, and the tables that the patterns match.

    :param unresolved: problems of patterns that match no table.
    """

    patterns: Sequence[str]
    options: TableOptions
    unresolved: Sequence[Problem] = ()


def of_recorded(connection: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]) -> TablesContext:
    """Return the context of the tables that are recorded at the run's position. The context also has the parents of
    these tables.

    :raises PreflightError: tables cannot be read.
    """
    context = TablesContext(connection, plans=plans)
    context.unreadable = [
        problem for table in tables if (problem := context.privileges.read_problem(table.name)) is not None
    ]
    if any(problem.table for problem in context.unreadable):
        # Other checks would fail, because they read rows of the tables.
        raise PreflightError(context.unreadable)
    context.tables, context.hidden = with_parents(connection, context.privileges, tables)
    return context
