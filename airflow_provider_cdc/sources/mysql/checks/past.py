"""Checks whether a copy can be exact at a past position (`Source.check_past`). For this, some conditions must have held
since the position.

The run reads the rows now and rewinds them to the position. For settings that the log does not show, the checks use the
time at which the settings were last set. They also use the start time of the server, because the values before the
start are unknown. Each problem names the earliest time at which this problem does not prevent a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CdcError, ExactnessError, ImageNotWhole, LogGone, Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.prefixes import Prefix, latest_commit, prefix_at
from airflow_provider_cdc.sources.mysql.log.replaced import made_since
from airflow_provider_cdc.sources.mysql.log.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.log.survey import LogFacts, survey
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_continuity,
    end_of_log,
    file_number,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.server import WATCHED_IN_THE_PAST, last_set, started
from airflow_provider_cdc.sources.mysql.server.session import value

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)
_SEARCHES = 20
"""How often `_last_break` searches the log. After that, the log may still have statements that prevent a copy, behind
the ones that were found."""


@dataclass(frozen=True)
class Past:
    """A position in the past.

    :param moment: a time since which everything that the log does not show must be unchanged. The run rewinds only
        changes that were committed after this time.
    :param until: a table that was created before this time may already have had its current identity at the position.
        None: this is true for every table.
    """

    prefix: Prefix
    moment: datetime
    until: datetime | None


@dataclass(kw_only=True)
class PositionContext(ServerContext):
    """A server, and a position in its history."""

    position: GtidSet


@dataclass(kw_only=True)
class PastContext(PositionContext):
    """The tables of a run that should be exact at a past position."""

    settings: ConnectionSettings
    past: Past
    tables: Sequence[Table]


def _replica_since(context: PositionContext) -> Iterable[Problem]:
    """Apply the rules for a replica if the server was a replica at any time since the position.

    A promoted server does not report that it was a replica. But its log names the servers whose transactions the
    promoted server applied.
    """
    executed = GtidSet.parse(value(context.connection, "@@global.gtid_executed"))
    own = GtidSet.parse(f"{value(context.connection, '@@global.server_uuid')}:1")
    if {uuid for uuid, _, _ in (executed - context.position).items()} <= {uuid for uuid, _, _ in own.items()}:
        return
    as_replica = ServerContext(context.connection, replicated=True)
    for check in SETTINGS:
        if check.ask is not None:
            yield from check.ask(as_replica)


def _set_since(context: PastContext) -> Iterable[Problem]:
    known = last_set(context.connection)
    for name, when in known.items():
        if when is not None and when >= context.past.moment:
            yield Problem(
                name,
                f"was set at {when:%Y-%m-%d %H:%M:%S} UTC, after the requested time; its value before that is unknown",
                _later(when),
            )
    if untold := [name for name in WATCHED_IN_THE_PAST if name not in known]:
        yield Problem(
            ", ".join(untold),
            "the server does not show when the setting was last changed",
            "restart the server with performance_schema=ON, and set `as_of` to a time after the restart",
        )


def _started_since(context: PastContext) -> Iterable[Problem]:
    start = datetime.fromtimestamp(int(started(context.connection)), UTC)
    if start >= context.past.moment:
        yield Problem(
            "server",
            f"was started at {start:%Y-%m-%d %H:%M:%S} UTC, after the requested time; its options before the start "
            "are unknown",
            _later(start),
        )


def _purged_since(context: PastContext) -> Iterable[Problem]:
    purged = GtidSet.parse(value(context.connection, "@@global.gtid_purged"))
    if beyond := purged - context.past.prefix.position:
        yield Problem(
            "gtid_purged",
            f"contains transactions that are not in the position: {beyond}",
            "set `as_of` to a later position. After the requested position, the server purged these transactions "
            "from its log, or someone set gtid_purged so that it includes these transactions",
        )


def _crashed_since(context: PastContext) -> Iterable[Problem]:
    try:
        check_continuity(context.settings, log_files(context.connection), context.past.prefix.place)
    except (ExactnessError, LogGone) as error:
        yield Problem("log", error.message, "set `as_of` to a time after the last start of the server")


def _statements(context: PastContext) -> Iterable[Problem]:
    """Find the statements in the log since the position that prevent a copy as of an earlier time. Yield a problem for
    the last of these statements.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    end = end_of_log(context.settings, context.connection)
    if (found := _last_break(context.settings, context.past.prefix, end, context.tables)) is not None:
        broken, when = found
        yield Problem(broken.where, broken.message, _later(when))


def _replaced(context: PastContext) -> Iterable[Problem]:
    """Yield the tables that were replaced since the position without a trace in the log.

    The identities of the tables at the position are not known. So if a table was created or altered after the position,
    the log must contain the statement that did this.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    past = context.past
    if past.until is None:
        return
    copied = list({one.name: one for table in context.tables for one in (*table.cascades_from, table)}.values())
    found = made_since(context.settings, context.connection, past.prefix.place, copied, past.until)
    for name, (why, when) in found.items():
        yield Problem(str(name), why, _later(when))


def _later(when: datetime) -> str:
    # The server reports these times in whole seconds.
    return f"set `as_of` to {when.astimezone(UTC) + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ} or later"


def _last_break(
    settings: ConnectionSettings, prefix: Prefix, end: LogPlace, tables: Sequence[Table]
) -> tuple[CdcError, datetime] | None:
    """Find the statements since ``prefix`` that prevent a copy as of an earlier time. Return the last of these
    statements and its commit time."""
    last = None
    # The survey ends at an error, and its result for writes to other tables depends on its beginning. So search again
    # after each break, until there is none. Limit the number of searches.
    for _ in range(_SEARCHES):
        if not is_before(prefix.place, end):
            break
        facts = survey(settings, prefix.place, prefix.position, tables, end=end, rows=True)
        if (found := _break_of(settings, facts)) is None:
            break
        error, place = found
        when = latest_commit(settings, place)
        # If the clock was set back, earlier commits in the log may have later times.
        while is_before((prefix := prefix_at(settings, when)).place, place) and prefix.following is not None:
            when = prefix.following
        last = error, when
    return last


def _break_of(settings: ConnectionSettings, facts: LogFacts) -> tuple[CdcError, LogPlace] | None:
    """Return the last error with which a run at a past position would stop."""
    breaks = [(one.error, one.begins) for one in facts.statements if one.error is not None]
    # Ignore SHAPE, because the log also has the statement that changed the columns. Ignore DIFFERENCES, because only
    # row images after a change can contain partial JSON. These images are needed only for tables without a key.
    # Besides, not every event of this type contains partial JSON.
    ignored = (walk_state.SHAPE, walk_state.DIFFERENCES)
    breaks += [(one.error, one.place) for one in facts.bad_rows if one.code not in ignored]
    breaks += facts.lost
    breaks += [facts.stopped] if facts.stopped is not None else []
    if not breaks:
        try:
            check_writes(settings, facts.summaries)
        except ImageNotWhole as error:
            breaks.append((error, LogPlace.parse(error.where)))
    return max(breaks, key=lambda one: (file_number(one[1].file), one[1].position), default=None)


REPLICATED: tuple[Check[PositionContext], ...] = (
    Check(
        "mysql.past-replica",
        "If the server has applied transactions of other servers after the position, its settings are correct for a "
        "replica.",
        (*_WHEN, Moment.ROLL_FORWARD),
        "set `as_of` to a time after these settings were corrected",
        _replica_since,
    ),
)

SINCE: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-settings",
        "Settings that do not appear in the log were not changed since the position.",
        _WHEN,
        "set `as_of` to a later time",
        _set_since,
    ),
    Check(
        "mysql.past-start",
        "The server has not been restarted since the position.",
        _WHEN,
        "set `as_of` to a time after the last start of the server",
        _started_since,
    ),
    Check(
        "mysql.past-purged",
        "The log contains all transactions since the position.",
        _WHEN,
        "set `as_of` to a later position",
        _purged_since,
    ),
    Check(
        "mysql.past-crash",
        "The server did not crash since the position.",
        _WHEN,
        "set `as_of` to a time after the last start of the server",
        _crashed_since,
    ),
)

STATEMENTS: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-statements",
        "No statement after the position prevents the run from rewinding a copied table.",
        (Moment.PREFLIGHT,),
        "set `as_of` to a time after this statement was executed",
        _statements,
        (Raised(Moment.LOG_READ, "sources.mysql.log.refusals:touched"),),
    ),
)
"""These checks read the whole log since the position, so they run only if the checks in `SINCE` found no problem."""

REPLACED: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-replaced",
        "After the position, no table was replaced without an entry in the log.",
        _WHEN,
        "set `as_of` to a time after the table was created",
        _replaced,
    ),
)
