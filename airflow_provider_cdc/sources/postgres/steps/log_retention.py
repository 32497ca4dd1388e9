"""Estimates how long a PostgreSQL server keeps the log for the slot of a run."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import NeededLog
from airflow_provider_cdc.sources.api.planning import Runway
from airflow_provider_cdc.sources.postgres.server.session import query, session
from airflow_provider_cdc.sources.postgres.slots import slots

_KEPT = "max_slot_wal_keep_size"
_IDLE = "idle_replication_slot_timeout"
# Before PostgreSQL 17, the view has no column inactive_since, and before PostgreSQL 18 there is no such timeout. The
# server invalidates slots only at checkpoints.
_SLOTS = (
    "SELECT s.slot_name::text, s.safe_wal_size, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), s.restart_lsn)::int8, "
    "s.wal_status = 'unreserved', "
    "extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8, "
    "pg_current_wal_insert_lsn()::text, "
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
    """`Source.runway`. The slot keeps the log up to a limit in bytes, so the time is estimated from the write
    rate."""
    with session(settings) as connection:
        ((megabytes,),) = query(connection, "SELECT setting::bigint FROM pg_settings WHERE name = %s", (_KEPT,))
        ((rate,),) = query(connection, _RATE)
    if megabytes < 0:
        why = f"{_KEPT} is -1: only the disk limits the log that a slot keeps"
        return Runway(None, why, unbounded=True)
    if not rate:
        return Runway(None, f"{_KEPT} is {megabytes:,} MB, and the rate at which the server writes log is unknown")
    written = f"the server writes {rate / 2**20 * 3600:,.1f} MB of log per hour on average"
    return Runway(megabytes * 2**20 / rate, f"{_KEPT} is {megabytes:,} MB, and {written}")


def needed_log(settings: ConnectionSettings, identity: Mapping[str, str]) -> NeededLog:
    """Implements `Source.needed_log`. All slots of the run are considered."""
    names = [identity["slot"], *slots.forward_slots(identity).values()]
    with session(settings) as connection:
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
