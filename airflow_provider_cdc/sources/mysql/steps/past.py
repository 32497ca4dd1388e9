"""Finds a position in the past, and checks whether a copy can be exact there.

The run reads the rows now and rewinds them to the past position. So the conditions of a run must have been met since
that position (`checks.past`). The settings that the log does not show and the definitions of the copied tables must be
unchanged. The server must have a single history without a crash.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.errors import PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.asked import OF_TABLES
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext, TablesContext, of_recorded
from airflow_provider_cdc.sources.mysql.checks.past import REPLACED, REPLICATED, SINCE, STATEMENTS, Past, PastContext
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.log.prefixes import Prefix, prefix_at, prefix_of
from airflow_provider_cdc.sources.mysql.log.replaced import unaltered_since
from airflow_provider_cdc.sources.mysql.server.log_history import end_of_log, is_before
from airflow_provider_cdc.sources.mysql.server.server import CLOCK, identity, with_mark
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.steps.snapshot import NO_POSITION, tables_of
from airflow_provider_cdc.sources.mysql.tables.identity import with_identities
from airflow_provider_cdc.sources.mysql.tables.partitions import with_known_at_position
from airflow_provider_cdc.sources.planning.survey import FINAL_SECONDS, wait_for_clock

_POLL_SECONDS = 0.05


def check_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan]) -> None:
    """Implements `Source.check_past`."""
    with session(settings) as connection:
        _check_time(connection, as_of)
        past = resolve(settings, as_of)
        at_position, context = _contexts(settings, connection, plans, past)
        problems = problems_of(OF_TABLES, Moment.POSITION_FIXED, at_position)
        problems += problems_of((*REPLICATED, *SINCE), Moment.PREFLIGHT, context)
        # Search the log for statements only if no part of the log is missing.
        problems = problems or problems_of(STATEMENTS, Moment.PREFLIGHT, context)
        if problems := problems or problems_of(REPLACED, Moment.PREFLIGHT, context):
            raise PreflightError(problems)


def record_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan]) -> InitialPoint:
    """Implements `Source.record_past`."""
    with session(settings) as connection:
        # Read the settings first, so that a later comparison finds changed settings.
        server_identity = identity(settings, connection)
        if problems := problems_of(SETTINGS, Moment.EACH_STEP, ServerContext(connection)):
            raise PreflightError(problems)
        _check_time(connection, as_of)
        past = resolve(settings, as_of, final=True)
        if not past.prefix.position:
            raise PreflightError([NO_POSITION])
        wait_until_visible(connection, past.prefix.position, FINAL_SECONDS)
        at_position, context = _contexts(settings, connection, plans, past)
        problems = problems_of(OF_TABLES, Moment.POSITION_FIXED, at_position)
        tables = with_identities(connection, context.tables, {})
        # Do not search the log for statements here. Preflight has already searched the log, and the later read of the
        # log finds such statements again.
        problems += problems_of((*REPLICATED, *SINCE), Moment.POSITION_FIXED, context)
        if problems := problems or problems_of(REPLACED, Moment.POSITION_FIXED, context):
            raise PreflightError(problems)
        unaltered = partial(unaltered_since, settings, connection, past.prefix.place, tables)
        tables = with_known_at_position(connection, tables, plans, unaltered)
        server_identity = with_mark(settings, connection, server_identity, past.prefix.position, past.prefix.place)
    return InitialPoint(past.prefix.position, server_identity.recorded(), tables, 0.0)


def _contexts(
    settings: ConnectionSettings, connection: Connection, plans: Sequence[TablePlan], past: Past
) -> tuple[TablesContext, PastContext]:
    """Return two contexts: for the checks of the tables, and for the checks that cover the time since the position."""
    tables = of_recorded(connection, tables_of(connection, plans), plans)
    position = past.prefix.position
    return tables, PastContext(connection, position=position, settings=settings, past=past, tables=tables.tables)


def _check_time(connection: Connection, as_of: AsOf) -> None:
    """Check that the server's clock has passed the time ``as_of``; wait for it if it is only a little behind."""
    if isinstance(as_of, Lsn):
        raise PreflightError(
            [Problem("parameter as_of", f"{as_of} is an LSN, and the source is MySQL", "give a time or a GTID set")]
        )
    if isinstance(as_of, datetime):
        # Commits at this time belong to the position, so the clock must be past it.
        wait_for_clock(
            as_of + timedelta.resolution,
            lambda: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(value(connection, CLOCK))),
        )


def resolve(settings: ConnectionSettings, as_of: AsOf, *, final: bool = False) -> Past:
    """Return the position at ``as_of``, which is not an LSN.

    :param final: whether the position at a time must be final.
    :raises SourceUnavailable: the server does not send the end of its log.
    :raises LogGone: the log no longer reaches back far enough.
    :raises SourceReplaced: the server never had exactly the transactions of the GTID set.
    """
    if isinstance(as_of, GtidSet):
        prefix = prefix_of(settings, as_of)
        # The creation time in a log file can be wrong, because a session can set its own current time (SET timestamp).
        moments = [prefix.latest or datetime.fromtimestamp(int(prefix.place.stamp or 0), UTC), prefix.following]
        # The server is in the state of the position from the earlier of these times until the next commit.
        return Past(prefix, min(filter(None, moments)), prefix.following)
    assert isinstance(as_of, datetime)
    return Past(_final_prefix(settings, as_of) if final else prefix_at(settings, as_of), as_of, as_of)


def _final_prefix(settings: ConnectionSettings, as_of: datetime) -> Prefix:
    """Return the position at ``as_of``, to which no later commit can belong.

    When the clock has passed ``as_of``, every transaction that is not in the log yet gets a later commit time
    (docs/design/as-of.md). So the position is final once the log was read up to its end at that moment.
    """
    with session(settings) as connection:
        _check_time(connection, as_of)
        end = end_of_log(settings, connection)
    until = time.monotonic() + FINAL_SECONDS
    while (prefix := prefix_at(settings, as_of)).following is None and is_before(prefix.place, end):
        # The server sends a transaction only after it has written the transaction to the disk (sync_binlog).
        if time.monotonic() > until:
            raise SourceUnavailable(
                f"the server's log ends at {end}, but the server sends it only up to {prefix.place}",
                where=settings.address,
                hint="check whether the server can write to its disk; the task can be retried",
            )
        time.sleep(_POLL_SECONDS)
    return prefix


def wait_until_visible(connection: Connection, position: GtidSet, seconds: float) -> None:
    """Wait until all transactions of ``position`` are visible to readers. A transaction is written to the log shortly
    before it becomes visible.

    :raises SourceUnavailable: the position is not visible after ``seconds``.
    """
    until = time.monotonic() + seconds
    while not position <= GtidSet.parse(value(connection, "@@global.gtid_executed")):
        if time.monotonic() > until:
            raise SourceUnavailable(
                "some transactions of the position are already in the log, but not yet visible to queries",
                hint="the task can be retried",
            )
        time.sleep(0.05)
