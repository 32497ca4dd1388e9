"""Failover slots: slots that standbys synchronize, so that they survive when a standby takes over (PostgreSQL 17)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from airflow_provider_cdc.core.options.run import FULL, StepOptions
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, quote, session, value

SINCE = 170_000
"""The first version of PostgreSQL with failover slots. Only the standing slot is one: a run does not go on after a
failover, and the slots of runs would stay on the new primary, where they keep log. Without standbys that synchronize
slots, a failover slot costs nothing."""

_IS_ONE = """(SELECT COALESCE((to_jsonb(s) ->> 'failover')::bool, false)
FROM pg_replication_slots s WHERE s.slot_name = %s)"""
# The worker of a standby has this name, after the name of its cluster. All users see the names of applications.
_SYNCHRONIZED = "EXISTS (SELECT FROM pg_stat_activity WHERE application_name ~ '(^|_)slotsync worker$')"


def allow(settings: ConnectionSettings, connection: Connection, name: str) -> None:
    """Make a slot a failover slot, if the server can and the slot is none. Earlier versions of this provider created
    others."""
    if connection.info.server_version >= SINCE and not value(connection, _IS_ONE, (name,)):
        with session(settings, replication=True) as leader:
            query(leader, f"ALTER_REPLICATION_SLOT {quote(name)} (FAILOVER true)")


@contextmanager
def waiting_for_standbys(connection: Connection, name: str, seconds: float) -> Iterator[None]:
    """Limit the time for which the server waits before it advances the slot.

    To advance a failover slot, the server first waits for the standbys of synchronized_standby_slots, without a time
    limit.

    :raises TransientError: the standbys did not respond in time. The slot was not advanced.
    """
    if not value(connection, _IS_ONE, (name,)):
        yield
        return
    query(connection, f"SET statement_timeout = '{max(1, round(seconds))}s'")
    try:
        yield
    except psycopg.errors.QueryCanceled:
        raise TransientError(
            f"the slot is a failover slot, so it waits for standbys. They did not respond in {seconds:.0f} s",
            where=f"replication slot {name}",
            hint="start the standbys whose slots synchronized_standby_slots names, or remove them from that setting; "
            "until then the server keeps the log",
        ) from None
    query(connection, "RESET statement_timeout")


def after_failover(settings: ConnectionSettings, options: StepOptions) -> str:
    """`Source.after_failover`."""
    with session(settings) as connection:
        version, synchronized = connection.info.server_version, value(connection, _SYNCHRONIZED)
    in_full = "a run in progress fails, and the next run reads the tables in full"
    if options.refresh == FULL or not options.standing_slot:
        return f"{in_full}, as always"
    if version < SINCE:
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
