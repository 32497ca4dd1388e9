"""What has to have held since a past position for a copy to be exact there (`GoesBack`).

The rows are read now and rewound to the position. Settings that the log does not show count by the time at which they
were last set, and by the server's start, before which nothing is known of them. Each problem says from when on a copy
is possible, as far as that problem goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, ExactnessError, ImageNotWhole, LogGone, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext
from airflow_provider_cdc.sources.mysql.checks.settings import SETTINGS
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.long_prepared import LongPrepared, PreparedWalker
from airflow_provider_cdc.sources.mysql.log.positions.prefixes import Prefix, latest_commit, prefix_at
from airflow_provider_cdc.sources.mysql.log.survey import looked_through, stretches
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_continuity,
    check_place,
    end_of_log,
    file_number,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.server import WATCHED_IN_THE_PAST, last_set, started
from airflow_provider_cdc.sources.mysql.server.session import value
from airflow_provider_cdc.sources.mysql.steps.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.tables.replaced import made_since

_WHEN = (Moment.PREFLIGHT, Moment.POSITION_FIXED)
_BREAKS = 20
"""How many statements are looked for that a copy cannot go back beyond; there may be more, and later ones."""


@dataclass(frozen=True)
class Past:
    """A position in the past. ``moment`` is the time since which what the log does not show must not have changed:
    whatever the run rewinds was committed after it. ``until``: a table that was made before it may have been so at the
    position; None: any may."""

    prefix: Prefix
    moment: datetime
    until: datetime | None


@dataclass(kw_only=True)
class PositionContext(ServerContext):
    """A server, and a position that it went through."""

    position: GtidSet


@dataclass(kw_only=True)
class PastContext(PositionContext):
    """The tables of a run that is to be exact at a past position."""

    settings: ConnectionSettings
    past: Past
    tables: Sequence[Table]


def _replica_since(context: PositionContext) -> Iterable[Problem]:
    """What is wrong if the server was a replica since the position: a promoted one tells no longer that it was, but its
    log names the servers whose transactions it applied."""
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
                f"was set at {when:%Y-%m-%d %H:%M:%S} UTC, after the time that is asked for, and what it was before is "
                "not known",
                _later(when),
            )
    if untold := [name for name in WATCHED_IN_THE_PAST if name not in known]:
        yield Problem(
            ", ".join(untold),
            "the server does not tell when it was last set",
            "start it with performance_schema=ON, and ask for a time since then",
        )


def _started_since(context: PastContext) -> Iterable[Problem]:
    start = datetime.fromtimestamp(int(started(context.connection)), UTC)
    if start >= context.past.moment:
        yield Problem(
            "server",
            f"was started at {start:%Y-%m-%d %H:%M:%S} UTC, after the time that is asked for, and with which "
            "options it ran before is not known",
            _later(start),
        )


def _purged_since(context: PastContext) -> Iterable[Problem]:
    purged = GtidSet.parse(value(context.connection, "@@global.gtid_purged"))
    if beyond := purged - context.past.prefix.position:
        yield Problem(
            "gtid_purged",
            f"has transactions that the position lacks: {beyond}",
            "ask for a later position: these were purged from the log, or gtid_purged was set to them, since then",
        )


def _crashed_since(context: PastContext) -> Iterable[Problem]:
    try:
        check_continuity(context.settings, log_files(context.connection), context.past.prefix.place)
    except (ExactnessError, LogGone) as error:
        yield Problem("log", error.message, "ask for a time since the server was last started")


def _statements(context: PastContext) -> Iterable[Problem]:
    """The last statement in the log since the position that a copy cannot go back beyond.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    settings, connection, past = context.settings, context.connection, context.past
    # The end first: its file is then among the files.
    end, files = end_of_log(settings, connection), log_files(connection)
    check_place(settings, files, past.prefix.place)
    if (found := _last_break(settings, past.prefix, end, files, context.tables)) is not None:
        broken, when = found
        yield Problem(broken.where, broken.message, _later(when))


def _replaced(context: PastContext) -> Iterable[Problem]:
    """Tables that were replaced since the position without a trace in the log.

    Which identities they had there is not known. So of one that was made or altered later the log has to say so.

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
    # The server tells these times in whole seconds.
    return f"ask for {when.astimezone(UTC) + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ} or later"


def _last_break(
    settings: ConnectionSettings, prefix: Prefix, end: LogPlace, files: Mapping[str, int], tables: Sequence[Table]
) -> tuple[CdcError, datetime] | None:
    """The last statement since ``prefix`` that a copy cannot go back beyond, and when it was committed."""
    last = None
    # Rows of a parent may be deleted every second, and each one found costs another look at the log.
    for _ in range(_BREAKS):
        if not is_before(prefix.place, end):
            break
        if (found := _first_break(settings, prefix, end, files, tables)) is None:
            break
        error, place = found
        when = latest_commit(settings, place)
        # Where the clock was set back, commits before it may be later than it is.
        while is_before((prefix := prefix_at(settings, when)).place, place) and prefix.following is not None:
            when = prefix.following
        last = error, when
    return last


def _first_break(
    settings: ConnectionSettings, prefix: Prefix, end: LogPlace, files: Mapping[str, int], tables: Sequence[Table]
) -> tuple[CdcError, LogPlace] | None:
    prepared = LongPrepared()
    summaries = []
    looked_at = [TrackedTable(index, table, looked_at=True) for index, table in enumerate(tables)]

    def walker_of(segment: LogSegment) -> PreparedWalker:
        return _Look(segment.name, segment.start, segment.stop, prefix.position, looked_at)

    with looked_through(settings, files, stretches(files, prefix.place, end), walker_of) as walkers:
        for walker, error in walkers:
            if error is not None:
                return error, LogPlace(walker.summary.segment.name, walker.position)
            prepared.add(walker)
            summaries.append(walker.summary)
    # What comes after the first of them is looked at next.
    lost: list[tuple[CdcError, LogPlace]] = []
    lost += prepared.without_rows(settings, list(files), prefix.place, prefix.position)
    try:
        check_writes(settings, summaries)
    except ImageNotWhole as error:
        lost.append((error, LogPlace.parse(error.where)))
    return min(lost, key=lambda one: (file_number(one[1].file), one[1].position), default=None)


class _Look(PreparedWalker):
    """Stops where a run that goes back would stop."""

    def _bad_rows(self, code: int, table: TableName) -> None:
        # Of rows with other columns the statement tells that changed them. Differences of documents stand in rows after
        # changes, which only tables without a key need, and not in each of these.
        if code not in (walk_state.SHAPE, walk_state.DIFFERENCES):
            super()._bad_rows(code, table)


REPLICATED: tuple[Check[PositionContext], ...] = (
    Check(
        "mysql.past-replica",
        "A server that applied transactions of others since the position has the settings of a replica.",
        (*_WHEN, Moment.ROLL_FORWARD),
        "ask for a time since the settings are right",
        _replica_since,
    ),
)

SINCE: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-settings",
        "Settings that the log does not show were not set since the position.",
        _WHEN,
        "ask for a later time",
        _set_since,
    ),
    Check(
        "mysql.past-start",
        "The server was not started since the position.",
        _WHEN,
        "ask for a time since its last start",
        _started_since,
    ),
    Check(
        "mysql.past-purged",
        "The log has everything since the position.",
        _WHEN,
        "ask for a later position",
        _purged_since,
    ),
    Check(
        "mysql.past-crash",
        "The server did not crash since the position.",
        _WHEN,
        "ask for a time since the server was last started",
        _crashed_since,
    ),
)

STATEMENTS: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-statements",
        "No statement since the position changed what a copied table is.",
        (Moment.PREFLIGHT,),
        "ask for a time since the statement",
        _statements,
        (Raised(Moment.LOG_READ, "sources.mysql.log.refusals:touched"),),
    ),
)
"""These look through a whole log, so they are asked where `SINCE` found none missing."""

REPLACED: tuple[Check[PastContext], ...] = (
    Check(
        "mysql.past-replaced",
        "No table was replaced since the position without a trace in the log.",
        _WHEN,
        "ask for a time since the table was made",
        _replaced,
    ),
)
