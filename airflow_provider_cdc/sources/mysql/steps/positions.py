"""Finds positions in the log of a server: at a time, or with the transactions of a GTID set."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import PreflightError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.past import REPLICATED, SINCE, Past, PastContext
from airflow_provider_cdc.sources.mysql.log.prefixes import Prefix, prefix_at, prefix_of
from airflow_provider_cdc.sources.mysql.server.log_history import end_of_log, is_before
from airflow_provider_cdc.sources.mysql.server.server import CLOCK
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.planning.survey import FINAL_SECONDS, wait_for_clock

_POLL_SECONDS = 0.05


def check_time(connection: Connection, as_of: AsOf) -> None:
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


def since_position(
    settings: ConnectionSettings, connection: Connection, position: GtidSet
) -> tuple[Past, list[Problem]]:
    """Find a position in the log of a server that may have been a replica since. Return it, and the problems of what
    the log does not show.

    :raises SourceReplaced, LogGone: as `resolve`.
    """
    past = resolve(settings, position)
    context = PastContext(connection, position=position, settings=settings, past=past, tables=())
    return past, problems_of((*REPLICATED, *SINCE), Moment.POSITION_FIXED, context)


def _final_prefix(settings: ConnectionSettings, as_of: datetime) -> Prefix:
    """Return the position at ``as_of``, to which no later commit can belong.

    When the clock has passed ``as_of``, every transaction that is not in the log yet gets a later commit time
    (docs/design/as-of.md). So the position is final once the log was read up to its end at that moment.
    """
    with session(settings) as connection:
        check_time(connection, as_of)
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
