"""Pieces of the log that a run's slot keeps. The slot follows the recorded pieces, so the server can remove their log.

A piece is a range of LSNs. A transaction belongs to the piece in which its commit record begins. The slot may be at any
position before the piece: the reader skips older transactions by their positions. So it does no harm if a crash sets
the slot back.
"""

from __future__ import annotations

from contextlib import closing

import psycopg

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn, Position
from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import Waiting
from airflow_provider_cdc.sources.postgres.log.segments import check_slot, messages
from airflow_provider_cdc.sources.postgres.log.walker import LogWalker
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import (
    mapped_errors,
    query,
    reading_session,
    session,
    slot_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.end_mark import EndMark, parse_log_end

_RESTART = "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = %s AND database = current_database()"


def waiting(settings: ConnectionSettings, initial: Lsn, facts: PostgresFacts, place: LogEnd) -> Waiting:
    """`Source.waiting`."""
    start = parse_log_end(place)[0] if place else initial
    with session(settings) as connection:
        flushed = Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        rows = query(connection, _RESTART, (facts.slot,))
        limit, used = slots.room(connection, "max_replication_slots", 0)
    restart = Lsn.parse(rows[0][0]) if rows and rows[0][0] else start
    obstacle = ""
    if limit - used < 2:
        # An exported snapshot needs a slot when it begins, or begins again. It must not wait for a long piece.
        obstacle = f"fewer than 2 replication slots are free (max_replication_slots = {limit})"
    return Waiting(max(0, int(flushed) - int(start)), max(0, int(start) - int(restart)), obstacle)


def check_joined(settings: ConnectionSettings, start: LogEnd, end: LogEnd, initial: Lsn, facts: PostgresFacts) -> None:
    """`Source.check_joined`. The log must still have the mark that was written before ``end``."""
    begin, (stop, mark) = parse_log_end(start)[0] if start else initial, parse_log_end(end)
    slot, publication = facts.slot, facts.publication.name
    if not mark:
        # The piece ends at a position to which the run moved. No mark was written there.
        raise LogGone(
            "the server restarted, and no mark shows that it still has the log of the last piece",
            where=f"replication slot {slot}, before {stop}",
        )
    with session(settings) as connection:
        check_slot(connection, slot, begin, stop)
    walker = LogWalker(slot, begin, stop, [], EndMark.parse(mark))
    with reading_session(settings) as reading, mapped_errors(slot), slot_errors(slot):
        with closing(messages(reading, slot, publication, begin, stop, marked=True)) as parts:
            for batch in parts:
                if walker.run(batch):
                    break
        walker.close()


def place_is_before(one: LogEnd, other: LogEnd) -> bool:
    """`Source.is_before`."""
    return parse_log_end(one)[0] < parse_log_end(other)[0]


def is_within(position: str, upper: Position) -> bool:
    """`Source.is_within`. A transaction is in a position if its commit record begins before it."""
    return Lsn.parse(position) < Lsn.expect(upper)


def acknowledge(settings: ConnectionSettings, facts: PostgresFacts, end: LogEnd) -> None:
    """`Source.acknowledge`."""
    name, target = facts.slot, parse_log_end(end)[0]
    with session(settings) as connection:
        slot = slots.state(connection, name)
        if slot is None or slot.lost or slot.confirmed is None or slot.confirmed >= target:
            return
        try:
            query(connection, "SELECT pg_catalog.pg_replication_slot_advance(%s, %s::pg_lsn)", (name, str(target)))
        except (psycopg.errors.ObjectInUse, psycopg.errors.ObjectNotInPrerequisiteState):
            # Another attempt acknowledges at the same time, or has already advanced the slot further.
            return
