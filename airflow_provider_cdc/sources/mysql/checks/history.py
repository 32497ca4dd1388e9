"""The server that a run began on, and its log since then.

These raise errors of their own: whether a run can go on, or its history is another one, is told by the class.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.copies.history import MARK
from airflow_provider_cdc.errors import ExactnessError, Problem, SourceReplaced
from airflow_provider_cdc.sources.mysql.checks.context import RunContext
from airflow_provider_cdc.sources.mysql.server.log_history import BEGIN_ANEW, check_continuity, check_place
from airflow_provider_cdc.sources.mysql.server.log_mark import LogMark, check_mark
from airflow_provider_cdc.sources.mysql.server.server import STARTED, check_log
from airflow_provider_cdc.sources.mysql.server.session import HOSTNAME, SERVER_UUID

_WHEN = (Moment.EACH_STEP, Moment.ROLL_FORWARD)
_FIRST_SERVER = "point the connection back to the first server, or trigger a new run on this one"
_NEW_RUN = "trigger a new run"


def _same_server(context: RunContext) -> Iterable[Problem]:
    found, expected = context.state, context.expected
    uuid = found[SERVER_UUID]
    if uuid != expected[SERVER_UUID] or found[HOSTNAME] != expected.get(HOSTNAME, found[HOSTNAME]):
        raise SourceReplaced(
            f"the run began on server {expected[SERVER_UUID]} ({expected.get(HOSTNAME)}), but server {uuid} "
            f"({found[HOSTNAME]}) answers",
            where="server_uuid",
            hint=_FIRST_SERVER,
        )
    return ()


def _start_on_record(context: RunContext) -> Iterable[Problem]:
    if STARTED not in context.expected:
        raise ExactnessError(
            "the run was begun by an older version of this provider, which did not record when the server was started",
            where=f"server {context.state[SERVER_UUID]}",
            hint=_NEW_RUN,
        )
    return ()


def _same_log(context: RunContext) -> Iterable[Problem]:
    check_place(context.here, context.files, context.begun)
    return ()


def _no_crash(context: RunContext) -> Iterable[Problem]:
    if context.state[STARTED] != context.expected[STARTED]:
        check_continuity(context.here, context.files, context.begun)
    return ()


def _log_kept(context: RunContext) -> Iterable[Problem]:
    check_log(context.connection, context.position)
    return ()


def _same_transactions(context: RunContext) -> Iterable[Problem]:
    if MARK in context.expected:
        # What was committed between the beginning and the position is there, and not only others with these GTIDs.
        check_mark(context.here, context.files, LogMark.parse(context.expected[MARK]))
    return ()


HISTORY: tuple[Check[RunContext], ...] = (
    Check(
        "mysql.same-server",
        "The server that the run began on answers, and has all that the run's position names.",
        _WHEN,
        _FIRST_SERVER,
        _same_server,
        (Raised(Moment.EACH_SESSION, "sources.mysql.server.session:_check_server"),),
    ),
    Check(
        "mysql.start-on-record",
        "It is known when the server was started last before the run began.",
        _WHEN,
        _NEW_RUN,
        _start_on_record,
    ),
    Check(
        "mysql.same-log",
        "The log file that the run began in is the same one, and has not lost its end.",
        _WHEN,
        BEGIN_ANEW,
        _same_log,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.no-crash",
        "No crash took back what was read, and the server was not started twice.",
        _WHEN,
        BEGIN_ANEW,
        _no_crash,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.log-kept",
        "The server executed all of the run's position, and still has the log of everything after it.",
        _WHEN,
        "trigger a new run, and raise binlog_expire_logs_seconds so that the log outlives it",
        _log_kept,
        (Raised(Moment.LOG_READ, "sources.mysql.log.segments:log_segments"),),
    ),
    Check(
        "mysql.same-transactions",
        "Data that was put back does not pass for the run's history by having transactions of the same GTIDs.",
        _WHEN,
        BEGIN_ANEW,
        _same_transactions,
    ),
)
