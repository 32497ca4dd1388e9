"""A position in the past, and whether a copy can be exact there.

The rows are read now and rewound to the past position, so what has to hold during a run has to have held since then:
the settings that the log does not show, the definitions of the copied tables, one history of the server without a
crash. What the log shows is read from the log; a setting counts by the time at which it was last set, and by the
server's start, before which nothing is known of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.run.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ExactnessError,
    ImageNotWhole,
    LogGone,
    PreflightError,
    Problem,
    SourceUnavailable,
)
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.long_prepared import LongPrepared, PreparedWalker
from airflow_provider_cdc.sources.mysql.log.positions.prefixes import Prefix, latest_commit, prefix_at, prefix_of
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
from airflow_provider_cdc.sources.mysql.server.server import (
    WATCHED_IN_THE_PAST,
    identity,
    last_set,
    setting_problems,
    started,
    with_mark,
)
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value
from airflow_provider_cdc.sources.mysql.steps.preflight import recheck
from airflow_provider_cdc.sources.mysql.steps.snapshot import NO_POSITION, tables_of
from airflow_provider_cdc.sources.mysql.steps.statement_writes import check_writes
from airflow_provider_cdc.sources.mysql.tables.identity import with_identities
from airflow_provider_cdc.sources.mysql.tables.replaced import made_since
from airflow_provider_cdc.sources.planning.server_clock import wait_for_clock

_POLL_SECONDS = 0.5
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


def check_past(settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan]) -> None:
    """`GoesBack.check_past`."""
    with session(settings) as connection:
        _check_time(connection, as_of)
        past = resolve(settings, as_of)
        tables, problems = recheck(connection, tables_of(connection, plans), plans)
        problems = [*problems, *replication_problems(connection, past.prefix.position)]
        problems = [*problems, *problems_since(settings, connection, past)]
        # Without a whole log there is nothing to look through.
        if problems or (problems := statement_problems(settings, connection, past, tables)):
            raise PreflightError(problems)
        if problems := replacement_problems(settings, connection, past, tables):
            raise PreflightError(problems)


def record_past(
    settings: ConnectionSettings, as_of: AsOf, plans: Sequence[TablePlan], wait_seconds: float
) -> InitialPoint:
    """`GoesBack.record_past`."""
    with session(settings) as connection:
        # First: what is set from now on shows up as a difference.
        found = identity(settings, connection)
        if problems := setting_problems(connection):
            raise PreflightError(problems)
        _check_time(connection, as_of)
        past = resolve(settings, as_of, wait_seconds, final=True)
        if not past.prefix.position:
            raise PreflightError([NO_POSITION])
        wait_until_visible(connection, past.prefix.position, wait_seconds)
        tables, problems = recheck(connection, tables_of(connection, plans), plans)
        tables = with_identities(connection, tables, {})
        problems = [*problems, *replication_problems(connection, past.prefix.position)]
        # What the log says is found when it is read for the rows; preflight said it before any work.
        problems = [*problems, *problems_since(settings, connection, past)]
        if problems or (problems := replacement_problems(settings, connection, past, tables)):
            raise PreflightError(problems)
        found = with_mark(settings, connection, found, past.prefix.place)
    return InitialPoint(str(past.prefix.position), found, tables, 0.0)


def replication_problems(connection: Connection, position: GtidSet) -> list[Problem]:
    """What is wrong if the server was a replica since ``position``: a promoted one tells no longer that it was, but its
    log names the servers whose transactions it applied."""
    executed = GtidSet.parse(value(connection, "@@global.gtid_executed"))
    own = GtidSet.parse(f"{value(connection, '@@global.server_uuid')}:1")
    if {uuid for uuid, _, _ in (executed - position).items()} <= {uuid for uuid, _, _ in own.items()}:
        return []
    return setting_problems(connection, replicated=True)


def _check_time(connection: Connection, as_of: AsOf) -> None:
    if isinstance(as_of, Lsn):
        raise PreflightError(
            [Problem("parameter as_of", f"{as_of} is an LSN, and the source is MySQL", "give a time or a GTID set")]
        )
    if isinstance(as_of, datetime):
        wait_for_clock(
            as_of, lambda: datetime.fromtimestamp(float(value(connection, "UNIX_TIMESTAMP(SYSDATE(6))")), UTC)
        )


def resolve(settings: ConnectionSettings, as_of: AsOf, wait_seconds: float = 0, *, final: bool = False) -> Past:
    """The position that ``as_of``, which is no LSN, means.

    :param final: a time is final once something was committed after it; it is waited for, up to ``wait_seconds``.
    :raises SourceUnavailable: nothing was.
    :raises LogGone: the log no longer reaches back to there.
    :raises SourceReplaced: the set is no state that the server went through.
    """
    if isinstance(as_of, GtidSet):
        prefix = prefix_of(settings, as_of)
        # A file's stamp is any time that a session was told to take for the present one.
        moments = [prefix.latest or datetime.fromtimestamp(int(prefix.place.stamp or 0), UTC), prefix.following]
        # All that came before the next transaction is a state at this position.
        return Past(prefix, min(filter(None, moments)), prefix.following)
    assert isinstance(as_of, datetime)
    until = time.monotonic() + wait_seconds
    while (prefix := prefix_at(settings, as_of)).following is None and final:
        if time.monotonic() > until:
            raise SourceUnavailable(
                f"nothing was committed after {as_of:%Y-%m-%d %H:%M:%S %Z} yet, and what is committed next may still "
                "belong to that time",
                where=settings.address,
                hint="commit anything on the server, ask for an earlier time, or wait for longer "
                "(as_of_wait_seconds); the task can be retried",
            )
        time.sleep(_POLL_SECONDS)
    return Past(prefix, as_of, as_of)


def problems_since(settings: ConnectionSettings, connection: Connection, past: Past) -> list[Problem]:
    """Why a copy cannot be exact at ``past``, but for what the log says: each with the earliest time at which it could
    be, as far as this problem goes.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    known = last_set(connection)
    problems = [
        Problem(
            name,
            f"was set at {when:%Y-%m-%d %H:%M:%S} UTC, after the time that is asked for, and what it was before is not "
            "known",
            _later(when),
        )
        for name, when in known.items()
        if when is not None and when >= past.moment
    ]
    if untold := [name for name in WATCHED_IN_THE_PAST if name not in known]:
        problems.append(
            Problem(
                ", ".join(untold),
                "the server does not tell when it was last set",
                "start it with performance_schema=ON, and ask for a time since then",
            )
        )
    start = datetime.fromtimestamp(int(started(connection)), UTC)
    if start >= past.moment:
        problems.append(
            Problem(
                "server",
                f"was started at {start:%Y-%m-%d %H:%M:%S} UTC, after the time that is asked for, and with which "
                "options it ran before is not known",
                _later(start),
            )
        )
    purged = GtidSet.parse(value(connection, "@@global.gtid_purged"))
    if beyond := purged - past.prefix.position:
        problems.append(
            Problem(
                "gtid_purged",
                f"has transactions that the position lacks: {beyond}",
                "ask for a later position: these were purged from the log, or gtid_purged was set to them, since then",
            )
        )
    try:
        check_continuity(settings, log_files(connection), past.prefix.place)
    except (ExactnessError, LogGone) as error:
        problems.append(Problem("log", error.message, "ask for a time since the server was last started"))
    return problems


def replacement_problems(
    settings: ConnectionSettings, connection: Connection, past: Past, tables: Sequence[Table]
) -> list[Problem]:
    """Tables that were replaced since ``past`` without a trace in the log, with the earliest time that is possible.

    Which identities they had there is not known. So of one that was made or altered later the log has to say so.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    if past.until is None:
        return []
    copied = list({one.name: one for table in tables for one in (*table.cascades_from, table)}.values())
    found = made_since(settings, connection, past.prefix.place, copied, past.until)
    return [Problem(str(name), why, _later(when)) for name, (why, when) in found.items()]


def statement_problems(
    settings: ConnectionSettings, connection: Connection, past: Past, tables: Sequence[Table]
) -> list[Problem]:
    """The last statement in the log since ``past`` that a copy of ``tables`` cannot go back beyond, with the earliest
    time that is possible.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    # The end first: its file is then among the files.
    end, files = end_of_log(settings, connection), log_files(connection)
    check_place(settings, files, past.prefix.place)
    found = _last_break(settings, past.prefix, end, files, tables)
    if found is None:
        return []
    broken, when = found
    return [Problem(broken.where, broken.message, _later(when))]


def wait_until_visible(connection: Connection, position: GtidSet, seconds: float) -> None:
    """Wait until the server shows all of ``position`` to readers: it is in the log a moment earlier.

    :raises SourceUnavailable: it does not.
    """
    until = time.monotonic() + seconds
    while not position <= GtidSet.parse(value(connection, "@@global.gtid_executed")):
        if time.monotonic() > until:
            raise SourceUnavailable(
                "transactions of the position are in the log and not visible yet", hint="the task can be retried"
            )
        time.sleep(0.05)


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
