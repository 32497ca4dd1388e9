"""Checks the replica from which a run reads the log (`ConnectionSettings.log_server`), and finds positions in its log.

The row images in the log of a replica are those of its own rows. So it must satisfy the conditions of a replica whose
rows are read, and its log must satisfy those of the source's log (docs/design/replica-logs.md). Positions come from the
source. Places in the log are those of the replica, and are found by GTIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from airflow_provider_cdc.core.checks import Check, Moment, problems_of
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError, LogGone, PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import UpperBound
from airflow_provider_cdc.sources.mysql.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.mysql.checks.context import RunContext, ServerContext
from airflow_provider_cdc.sources.mysql.checks.replica_tables import computed_there, differences_of_tables
from airflow_provider_cdc.sources.mysql.checks.replicas import COMPARED, REPLICAS, SKIPPED, WATCHED, ReplicaContext
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogMark, end_of_log, is_purged, unambiguous_end_of_log
from airflow_provider_cdc.sources.mysql.server.replication import has_executed, log_session, wait_for
from airflow_provider_cdc.sources.mysql.server.server import WATCHED as WATCHED_ON_SOURCE
from airflow_provider_cdc.sources.mysql.server.server import executed, last_set, shown, state
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.replicas import name_of, raise_problems

Context = TypeVar("Context")

_WATCHED = (*WATCHED_ON_SOURCE, *WATCHED, "server_id")
_NO_FILTER = "start the replica without the filter"
_SOURCE_SECONDS = 60.0
_ATTEMPTS = 3
_LOGGED = tuple(check for check in COMPARED if check is not SKIPPED)
"""The comparisons at each step. The reader of the log finds transactions that sessions committed on the replica."""


def _context(
    settings: ConnectionSettings,
    source: Connection,
    connection: Connection,
    position: GtidSet,
    tables: Sequence[Table] = (),
) -> ReplicaContext:
    assert settings.log_server is not None
    return ReplicaContext(
        connection=connection,
        replicated=True,
        name=name_of(settings.log_server),
        settings=settings.log_server,
        primary=source,
        primary_settings=settings,
        position=position,
        tables=tables,
        is_log_server=True,
    )


def _problems(
    context: ReplicaContext, moment: Moment, compared: Sequence[Check[ReplicaContext]] = COMPARED
) -> list[Problem]:
    found = problems_of(REPLICAS, moment, context)
    found += [
        Problem(f"replica {context.name}, {one.where}", one.what, one.hint)
        for one in problems_of(SETTINGS, Moment.PREFLIGHT, ServerContext(context.connection, replicated=True))
    ]
    if any(context.filters or ()):
        found.append(context.problem("its log leaves out changes (binlog_do_db, binlog_ignore_db)", _NO_FILTER))
    return found or problems_of(compared, moment, context)


def problems_of_log_server(settings: ConnectionSettings, source: Connection, tables: Sequence[Table]) -> list[Problem]:
    """Check, before a run begins, the replica from which it is to read the log.

    :param source: a session of the source.
    :raises SourceUnavailable: the replica cannot be reached.
    """
    with log_session(settings) as (_, connection):
        context = _context(settings, source, connection, executed(source), tables)
        found = _problems(context, Moment.PREFLIGHT)
    computed = {str(table.name): why for table in tables if (why := computed_there(table))}
    return found + [
        Problem(
            name,
            f"{why}, so the log of the replica {context.name} has the values that the replica computed",
            "leave `Read.log_conn_id` empty, or leave the table out",
            table=name,
        )
        for name, why in computed.items()
    ]


def begin_log(settings: ConnectionSettings, source: Connection) -> MysqlFacts | None:
    """Return the facts of the server from which the log is read. None: it is the source itself.

    Call this function before the position is fixed. The source has executed everything that is in the log before the
    place of these facts (``begun``), so the position contains it.

    :raises PreflightError: a check of the replica finds a problem.
    :raises SourceUnavailable: the replica has transactions that the source takes too long to commit.
    """
    if settings.log_server is None:
        return None
    with log_session(settings) as (here, connection):
        # Read the settings first, so that a later comparison finds changed settings.
        found = state(connection, _WATCHED)
        if problems := _problems(_context(settings, source, connection, executed(source)), Moment.EACH_SESSION):
            raise PreflightError(problems)
        found = replace(found, begun=unambiguous_end_of_log(here, connection))
        # A replica may have a transaction before the source shows it (semisynchronous replication).
        if not has_executed(source, shown(connection), _SOURCE_SECONDS):
            raise SourceUnavailable(
                f"the source has not finished transactions that the replica {name_of(here)} already has",
                where=settings.address,
                hint="find out why commits on the source take so long (semisynchronous replication), then retry "
                "the task",
            )
    return found


def log_at(settings: ConnectionSettings, source: Connection, position: GtidSet) -> MysqlFacts:
    """Return the facts of the server from which the log is read, at a position in the past.

    :raises SourceReplaced: its log has another order, so it never was at this position.
    :raises LogGone: its log no longer reaches back to the position.
    :raises ExactnessError: a condition does not hold, or did not hold since the position.
    :raises SourceUnavailable: the replica does not have the position in time.
    """
    # Import this module late: `sources.mysql.source` explains why.
    from airflow_provider_cdc.sources.mysql.steps.positions import since_position

    with log_session(settings) as (here, connection):
        found = state(connection, _WATCHED)
        wait_for(settings, source, connection, position)
        context = _context(settings, source, connection, position)
        raise_problems(_problems(context, Moment.EACH_SESSION))
        past, problems = since_position(here, connection, position)
        known = last_set(connection, _WATCHED)
        problems += [
            Problem(name, f"was set at {when:%Y-%m-%d %H:%M:%S} UTC, after the position", "use a later position")
            for name, when in known.items()
            if when is not None and when >= past.moment
        ]
        raise_problems([Problem(f"replica {context.name}", f"{one.where} {one.what}", one.hint) for one in problems])
    return replace(found, begun=past.prefix.place)


def continued_log(settings: ConnectionSettings, source: Connection, facts: MysqlFacts, position: GtidSet) -> MysqlFacts:
    """Return facts of the source at a position, with those of the server from which the log is now read.

    :raises CdcError: as `log_at`, if another server's log was read before.
    """
    if settings.log_server is None:
        return facts if facts.log_server is None else replace(facts, log_server=None)
    with log_session(settings) as (here, _):
        if facts.log_server is not None and facts.log_server.server_uuid == here.server_uuid:
            return facts
    return replace(facts, log_server=log_at(settings, source, position))


def check_log_server(
    settings: ConnectionSettings,
    source: Connection,
    facts: MysqlFacts,
    position: GtidSet,
    moment: Moment = Moment.EACH_STEP,
) -> None:
    """Check that the log is read from the server of the facts, and that the conditions have held there since then.

    :raises SourceReplaced, LogGone, ExactnessError: as `check_identity`, for this server.
    """
    if settings.log_server is not None:
        with log_session(settings) as (_, connection):
            _check(settings, source, connection, facts, position, moment)


def _check(
    settings: ConnectionSettings,
    source: Connection,
    connection: Connection,
    facts: MysqlFacts,
    position: GtidSet,
    moment: Moment,
) -> None:
    assert settings.log_server is not None
    replica = _context(settings, source, connection, position)
    replica.commits = LogMark.parse(facts.mark).commits if facts.mark else ""
    raise_problems(_problems(replica, Moment.READS_ENDED, _LOGGED))
    context = RunContext(
        connection,
        replicated=True,
        settings=settings.log_server,
        expected=facts.of_log,
        # It may lag behind the position.
        position=position & executed(connection),
    )
    where = f"replica {name_of(settings.log_server)}"
    raise_problems(
        [Problem(where, f"{one.where} {one.what}", one.hint) for one in problems_of(OF_A_RUN, moment, context)]
    )


def bound_log(
    settings: ConnectionSettings, source: Connection, facts: MysqlFacts, position: GtidSet, bound: UpperBound
) -> UpperBound:
    """Return the bound of reads in the log of the server from which the log is read.

    :param bound: the bound in the log of the source.
    :raises SourceUnavailable: the replica does not have everything up to the bound in time.
    """
    if settings.log_server is None:
        return bound
    with log_session(settings) as (here, connection):
        wait_for(settings, source, connection, GtidSet.expect(bound.upper))
        end = end_of_log(here, connection)
        # The log up to its end may have more transactions than the source showed.
        upper = GtidSet.expect(bound.upper) | shown(connection)
        try:
            _check(settings, source, connection, facts, position, Moment.EACH_STEP)
        except LogGone:
            # The facts may lack pieces of the log that were recorded since the step began. The next step checks this
            # server from the end of these pieces on.
            if not (facts.may_move and is_purged(here, facts.of_log.begun)):
                raise
    return replace(bound, upper=upper, log_end=LogEnd(str(end)))


def check_definitions(settings: ConnectionSettings, source: Connection, tables: Sequence[Table]) -> None:
    """Check that the tables have the same definitions on the source and on the server from which the log is read.

    :raises ExactnessError: the definition of a table differs.
    :raises SourceUnavailable: the replica lags behind changes of definitions.
    """
    if settings.log_server is None:
        return
    for table in tables:
        if why := computed_there(table):
            hint = "clear the task `preflight` and all tasks after it"
            raise ExactnessError(f"{why}, as the replica computes them", where=str(table.name), hint=hint)
    names = [table.name for table in tables]
    with log_session(settings) as (here, connection):
        for _ in range(_ATTEMPTS):
            has_all = executed(connection)
            if not (found := differences_of_tables(source, connection, names)):
                return
            name, what = next(iter(found.items()))
            if (wanted := shown(source)) <= has_all:
                raise ExactnessError(
                    f"the table differs from the table on the source: {what}",
                    where=f"replica {name_of(here)}, {name}",
                    hint="build the replica anew, or leave `Read.log_conn_id` empty",
                )
            wait_for(settings, source, connection, wanted)
    raise SourceUnavailable(
        f"the replica does not yet have the present definition of {name}: {what}",
        where=f"replica {name_of(here)}",
        hint="retry the task",
    )
