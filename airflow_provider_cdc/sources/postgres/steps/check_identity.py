"""Checks that a session has reached the server on which the run began, and that the run's slot and publication are
unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.options.run import FULL, StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError, SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings, NeededLog, Reach, Runway
from airflow_provider_cdc.sources.postgres.catalog.schema import HINT, leaves
from airflow_provider_cdc.sources.postgres.checks.asked import OF_A_RUN
from airflow_provider_cdc.sources.postgres.checks.context import RunContext
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import Connection, log_session, query, session, value
from airflow_provider_cdc.sources.postgres.server.session_setup import of_log
from airflow_provider_cdc.sources.postgres.slots import publications, slots


def check_identity(connection: Connection, expected: PostgresFacts, position: Lsn, log: Connection) -> None:
    """Check that this server has the ``expected`` identity, and that the run's slot and publication are unchanged.

    :param log: a session of the server that has the run's slots.
    :raises SourceReplaced: this is another server, or the server has been promoted or restored since the run began.
    :raises LogGone: the run's slot is gone, was invalidated, or was advanced by another client.
    :raises ExactnessError: the publication was altered, so the log may lack changes.
    """
    context = RunContext(connection, expected=expected, position=position, log=log)
    if problems := problems_of(OF_A_RUN, Moment.EACH_STEP, context):
        raise ExactnessError(
            "; ".join(f"{problem.where} {problem.what}" for problem in problems), hint="trigger a new run"
        )


def check_published(connection: Connection, facts: PostgresFacts, tables: Sequence[Table]) -> None:
    """Check that the run's own publication has had all relations of ``tables`` since the run began. Otherwise the log
    may lack changes.

    :param facts: the facts of the run's initial point.
    :raises SchemaChanged: a relation left the publication.
    """
    if facts.since is None:
        return
    followed = [table for table in tables if table.details.get(publications.FOLLOWED)]
    relations = {leaf.oid: table for table in followed for leaf in leaves(table)}
    members = publications.members_since(connection, facts.publication.name, facts.since, list(relations))
    for oid, table in relations.items():
        if oid not in members:
            raise SchemaChanged(
                "a relation of the table is no longer in the run's publication", where=str(table.name), hint=HINT
            )


# Finds out whether a server has reached a position or a time. The server may be a standby or the primary.


# On a standby, readers see the transactions that the standby has replayed. One of the two functions works only on a
# standby, the other only on a primary.
_HERE = (
    "SELECT pg_is_in_recovery(), "
    "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END::text, "
    "CASE WHEN pg_is_in_recovery() THEN pg_last_xact_replay_timestamp() ELSE clock_timestamp() END"
)


def has_reached(settings: ConnectionSettings, target: AsOf) -> Reach:
    """`Source.has_reached`.

    A primary has reached a time when its clock is past the time. A standby has reached a time when it has replayed a
    commit with a later time. The standby's own clock does not count, because it does not show which transactions are
    still to be replayed.
    """
    if isinstance(target, GtidSet):
        raise ConfigurationError(
            "the position is a GTID set, but the source is PostgreSQL",
            where=settings.address,
            hint="give an LSN or a time",
        )
    with session(settings) as connection:
        ((standby, text, when),) = query(connection, _HERE)
    if isinstance(target, Lsn):
        here = Lsn.parse(text or "0/0")
        return Reach(
            here >= target,
            f"the server is at {here}; the requested position is {format_count(target - here, 'byte')} of log ahead",
        )
    assert isinstance(target, datetime)
    assert when is None or isinstance(when, datetime)
    if when is not None and when > target:
        return Reach(True)
    if not standby:
        return Reach(False, f"the server's clock shows {when:%Y-%m-%d %H:%M:%S} UTC")
    last = (
        f"the last replayed commit was at {when:%Y-%m-%d %H:%M:%S} UTC"
        if when
        else "the standby has not replayed any commit yet"
    )
    return Reach(False, f"the standby has not replayed a commit after the requested time; {last}")


# Estimates how long a PostgreSQL server keeps the log for the slot of a run.


_KEPT = "max_slot_wal_keep_size"
_IDLE = "idle_replication_slot_timeout"
# Before PostgreSQL 17, the view has no column inactive_since, and before PostgreSQL 18 there is no such timeout. The
# server invalidates slots only at checkpoints.
_SLOTS = (
    f"SELECT s.slot_name::text, s.safe_wal_size, pg_wal_lsn_diff({slots.LOG_END}, s.restart_lsn)::int8, "
    "s.wal_status = 'unreserved', "
    "extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8, "
    f"({slots.LOG_END})::text, "
    f"(SELECT setting::int8 FROM pg_settings WHERE name = '{_KEPT}'), "
    f"(SELECT setting::int8 FROM pg_settings WHERE name = '{_IDLE}'), "
    "(SELECT setting::int8 FROM pg_settings WHERE name = 'checkpoint_timeout') "
    "FROM pg_replication_slots s WHERE s.slot_name = ANY(%s) AND s.database = current_database()"
)
# The average rate at which the server has written log, in bytes per second since its statistics were last reset.
_RATE = (
    "SELECT wal_bytes::float8 / greatest(1, extract(epoch FROM clock_timestamp() - stats_reset)::float8) "
    "FROM pg_stat_wal"
)


def runway(settings: ConnectionSettings) -> Runway:
    """`Source.runway`. The slot keeps the log up to a limit in bytes, so the time is estimated from the write rate.

    Since PostgreSQL 18, a second setting limits the time for which no session uses a slot. The standing slot is not
    used between two runs, and the run's slot is hardly used while tables are read.
    """
    with session(settings) as connection, log_session(settings, connection) as log:
        limits = dict(query(log, "SELECT name, setting::int8 FROM pg_settings WHERE name = ANY(%s)", ([_KEPT, _IDLE],)))
        ((rate,),) = query(connection, _RATE)
    by_size, idle = _by_size(limits[_KEPT], rate), limits.get(_IDLE, 0)
    if not idle or (by_size.seconds is not None and by_size.seconds <= idle):
        return by_size
    return Runway(
        float(idle),
        f"{_IDLE} is {idle:,} s: the server invalidates a slot that is not used for this time. Set it to 0, or to more "
        "than the longest time between two runs",
    )


def _by_size(megabytes: int, rate: float | None) -> Runway:
    if megabytes < 0:
        why = f"{_KEPT} is -1: only the disk limits the log that a slot keeps"
        return Runway(None, why, unbounded=True)
    if not rate:
        return Runway(None, f"{_KEPT} is {megabytes:,} MB, and the rate at which the server writes log is unknown")
    written = f"the server writes {rate / 2**20 * 3600:,.1f} MB of log per hour on average"
    return Runway(megabytes * 2**20 / rate, f"{_KEPT} is {megabytes:,} MB, and {written}")


def needed_log(settings: ConnectionSettings, facts: PostgresFacts) -> NeededLog:
    """Implements `Source.needed_log`. All slots of the run are considered."""
    names = [facts.slot, *facts.forward_slots.values()]
    with session(of_log(settings)) as connection:
        rows = query(connection, _SLOTS, (names,))
    states = [_state(*row) for row in rows]
    return min(states, key=_soonest) if states else NeededLog(0, 0)


def _soonest(state: NeededLog) -> tuple[float, float]:
    never = float("inf")
    return (
        never if state.seconds is None else state.seconds,
        never if state.room is None else float(state.room),
    )


def _state(
    name: str,
    room: int | None,
    kept: int | None,
    unreserved: bool | None,
    idle: float | None,
    end: str,
    most: int,
    idle_most: int | None,
    checkpoint: int,
) -> NeededLog:
    limit, seconds = f"{_KEPT} = {most:,} MB" if most >= 0 else f"{_KEPT} = -1", None
    hint = f"raise {_KEPT}"
    if idle is not None and idle_most:
        seconds = max(0.0, idle_most - idle)
        if room is None:
            limit, hint = f"{_IDLE} = {idle_most:,} s", f"raise {_IDLE}"
    if unreserved:
        # The log is removed at the next checkpoint, unless the limit is raised before.
        seconds = min(seconds, float(checkpoint)) if seconds is not None else float(checkpoint)
        limit, hint, room = f"{_KEPT} = {most:,} MB, exceeded by slot {name}", f"raise {_KEPT} at once", None
    written = int(Lsn.parse(end))
    return NeededLog(written, kept or 0, seconds, room, limit, hint, begins=f"{name}:{written - (kept or 0)}")


# What a failover would do.


# The worker of a standby has this name, after the name of its cluster. All users see the names of applications.
_SYNCHRONIZED = "EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '(^|_)slotsync worker$')"


def after_failover(settings: ConnectionSettings, options: StepOptions) -> str:
    """`Source.after_failover`."""
    with session(settings) as connection:
        has_slots, synchronized = slots.may_fail_over(connection), value(connection, _SYNCHRONIZED)
    in_full = "a run in progress fails, and the next run reads the tables in full"
    if options.refresh == FULL or not options.standing_slot:
        return f"{in_full}, as always"
    if not has_slots:
        return f"{in_full}, because slots stay on the old primary. PostgreSQL 17 and later can synchronize them"
    if not synchronized:
        return (
            f"{in_full}, because no standby synchronizes slots now. On the standby, set sync_replication_slots = on, "
            "hot_standby_feedback = on, primary_slot_name, and dbname in primary_conninfo"
        )
    return (
        "a run in progress fails; the next run goes on from the last copies if the standby that takes over "
        "synchronizes slots and has all of their positions; otherwise it reads the tables in full"
    )
