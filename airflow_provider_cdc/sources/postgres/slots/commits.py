"""Reads the commit times of the transactions that changed published tables, from the log of a standing slot.

The output plugin is pgoutput, as everywhere in this package. It reports only transactions that changed a table of the
slot's publication or wrote a logical message. Other transactions change no row of a copied table
(docs/design/as-of.md).

The server decodes the changes, too, but returns only the commits.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import (
    Connection,
    query,
    quote,
    session,
    slot_errors,
    value,
)
from airflow_provider_cdc.sources.postgres.slots import slots

PART_BYTES = 256 * 2**20
"""Bytes of log that one call decodes. The server stores the result of a call on its disk until the call returns."""

# A Commit message begins with this byte.
_COMMITS = """
SELECT data FROM pg_logical_slot_get_binary_changes(%s, %s, NULL, 'proto_version', '1', 'publication_names', %s,
    'messages', 'true') WHERE get_byte(data, 0) = ascii('C')
"""
_COMMIT = struct.Struct(">cBQQq")
"""The type of the message, flags, the beginning and the end of the commit record, and the commit time in microseconds
since 2000."""
_YEAR_2000 = 946_684_800_000_000
_EARLIEST, _LATEST = -62_135_510_400_000_000, 253_402_128_000_000_000
"""The times 0001-01-02 and 9999-12-30, in microseconds since 1970. A replication origin may set any commit time, also
infinity."""


@dataclass(frozen=True)
class LogCommit:
    """The commit of a transaction.

    - ``end``: the end of the commit record.
    - ``at``: the commit time in microseconds since 1970. If logical replication applied the transaction, this is the
      time on the server that first committed it.
    """

    end: Lsn
    at: int


class NoFreeSlot(SourceUnavailable):
    """All replication slots of the server are in use, so no slot can be copied."""


def commits_since(settings: ConnectionSettings, slot: str, start: Lsn) -> Generator[LogCommit]:
    """Yield the commits whose records begin at ``start`` or later, in log order, up to the end of the flushed log.

    :param slot: a slot that has the log since ``start``. Its publication has the same name. The slot is not changed.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: the slot no longer has the log since ``start``.
    :raises NoFreeSlot: the server has no slot for a copy of ``slot``.
    """
    with copied_slot(settings, slot, start) as (connection, copy):
        at, end = start, Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        while at < end:
            # Each call decodes again all transactions that were open at the position where the call begins.
            part = max(PART_BYTES, _decoded_again(connection, copy))
            upto = min(end, Lsn(int(at) + part))
            for (message,) in query(connection, _COMMITS, (copy, str(upto), quote(slot))):
                _, _, _, ended, when = _COMMIT.unpack(message)
                yield LogCommit(Lsn(ended), min(max(when + _YEAR_2000, _EARLIEST), _LATEST))
            before, at = at, _confirmed(connection, copy)
            if at <= before:
                return


@contextmanager
def copied_slot(settings: ConnectionSettings, slot: str, at: Lsn) -> Iterator[tuple[Connection, str]]:
    """Yield a session, and the name of a temporary copy of ``slot`` at the position ``at``. The copy ends with the
    session.

    :raises LogGone, SourceUnavailable, NoFreeSlot: see `commits_since`.
    """
    copy = f"{slots.PREFIX}times_{uuid4().hex[:12]}"
    with session(settings) as connection, slot_errors(f"replication slot {slot}"):
        try:
            query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true)", (slot, copy))
        except psycopg.errors.ConfigurationLimitExceeded:
            raise NoFreeSlot(
                "all replication slots are in use, and one more is needed to find out when transactions committed",
                where=f"replication slot {slot}",
                hint="drop unused slots, or raise max_replication_slots; then retry the task",
            ) from None
        try:
            advance(connection, copy, at)
        except LogGone as error:
            # When the caller checked the slot, the slot still had the log since this position. So another run has
            # advanced the slot meanwhile.
            raise SourceUnavailable(
                f"another run advanced the slot in the meantime: {error.message}",
                where=f"replication slot {slot}",
                hint="retry the task",
            ) from error
        yield connection, copy


def advance(connection: Connection, slot: str, to: Lsn) -> None:
    """Advance a slot to ``to``. The slot then returns the transactions whose commit records begin at ``to`` or later.

    :raises LogGone: the slot is already past ``to``, the log does not reach ``to``, or the log is gone.
    """
    confirmed = _confirmed(connection, slot)
    if confirmed < to:
        with slot_errors(f"replication slot {slot}"):
            sql = "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, %s)"
            ((at,),) = query(connection, sql, (slot, str(to)))
        confirmed = Lsn.parse(at)
    if confirmed != to:
        raise LogGone(
            f"the slot is at the position {confirmed}, but {to} was requested",
            where=f"replication slot {slot}",
            hint="request a later time or position",
        )


def _confirmed(connection: Connection, slot: str) -> Lsn:
    slot_state = slots.state(connection, slot)
    if slot_state is None or slot_state.confirmed is None:
        raise LogGone("the slot is gone", where=f"replication slot {slot}", hint="retry the task")
    return slot_state.confirmed


def _decoded_again(connection: Connection, slot: str) -> int:
    return int(
        value(
            connection,
            "(SELECT confirmed_flush_lsn - restart_lsn FROM pg_replication_slots WHERE slot_name = %s)::int8",
            (slot,),
        )
    )
