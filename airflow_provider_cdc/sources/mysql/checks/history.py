"""Checks of the server on which a run began, and of the server's log since the beginning of the run.

These checks raise errors instead of yielding problems, because the class of the error distinguishes a run that can
continue from a server whose history has been replaced.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import ExactnessError, Problem, SourceReplaced
from airflow_provider_cdc.sources.mysql.checks.context import RunContext
from airflow_provider_cdc.sources.mysql.server.log_history import (
    BEGIN_ANEW,
    LogMark,
    check_continuity,
    check_mark,
    check_place,
)
from airflow_provider_cdc.sources.mysql.server.server import check_log, executed

_WHEN = (Moment.EACH_STEP, Moment.ROLL_FORWARD)
_FIRST_SERVER = (
    "point the connection back to the server on which the run began. If this server took over, clear the task "
    "`lock_and_record` and all tasks after it: the run then begins again on this server"
)
_NEW_RUN = "trigger a new run"


def _same_server(context: RunContext) -> Iterable[Problem]:
    found, expected = context.state, context.expected
    uuid, host = found.server_uuid, found.hostname
    if uuid != expected.server_uuid or host != (host if expected.hostname is None else expected.hostname):
        raise SourceReplaced(
            f"the run began on server {expected.server_uuid} ({expected.hostname}), but server {uuid} ({host}) answers",
            where="server_uuid",
            hint=_FIRST_SERVER,
        )
    return ()


def _start_on_record(context: RunContext) -> Iterable[Problem]:
    if context.expected.started is None:
        raise ExactnessError(
            "an older version of this provider began the run, and did not record when the server was started",
            where=f"server {context.state.server_uuid}",
            hint=_NEW_RUN,
        )
    return ()


def _same_log(context: RunContext) -> Iterable[Problem]:
    if not context.purged_elsewhere_read:
        check_place(context.here, context.files, context.begun)
    return ()


def _no_crash(context: RunContext) -> Iterable[Problem]:
    if context.spooled is not None:
        if context.state.started != context.spooled.incarnation:
            check_continuity(context.here, context.files, context.begun, context.spooled.restarts)
    elif context.state.started != context.expected.started:
        check_continuity(context.here, context.files, context.begun)
    return ()


def _log_kept(context: RunContext) -> Iterable[Problem]:
    # What was purged behind the spool is in the recorded pieces.
    recorded = GtidSet.parse(context.spooled.upper) if context.spooled is not None else GtidSet()
    if context.purged_elsewhere_read:
        recorded = executed(context.connection)
    check_log(context.connection, context.position, recorded)
    return ()


def _same_transactions(context: RunContext) -> Iterable[Problem]:
    if context.expected.mark and context.spooled is None and not context.purged_elsewhere_read:
        # The log must have exactly the transactions that were committed between the start of the run and the run's
        # position. The log must not have other transactions with the same GTIDs instead.
        check_mark(context.here, context.files, LogMark.parse(context.expected.mark))
    return ()


HISTORY: tuple[Check[RunContext], ...] = (
    Check(
        "mysql.same-server",
        "The run is still connected to the server on which it began. The server has executed all transactions of the "
        "run's position.",
        _WHEN,
        _FIRST_SERVER,
        _same_server,
        (Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_check_server"),),
    ),
    Check(
        "mysql.start-on-record",
        "When the run began, it recorded the time of the server's last start.",
        _WHEN,
        _NEW_RUN,
        _start_on_record,
    ),
    Check(
        "mysql.same-log",
        "The log file in which the run began has been neither replaced nor truncated.",
        _WHEN,
        BEGIN_ANEW,
        _same_log,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.no-crash",
        "The server did not lose rows in a crash after the run read them. The server was restarted at most once.",
        _WHEN,
        BEGIN_ANEW,
        _no_crash,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.log-kept",
        "The server has executed all transactions of the run's position, and still has the log after this position, or "
        "after the pieces of the log that the run has recorded.",
        _WHEN,
        "trigger a new run, and raise binlog_expire_logs_seconds so that the server keeps the log until the run ends",
        _log_kept,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.same-transactions",
        "The GTIDs in the run's position still belong to the same transactions. After a restored backup, other "
        "transactions may have these GTIDs.",
        _WHEN,
        BEGIN_ANEW,
        _same_transactions,
    ),
)
