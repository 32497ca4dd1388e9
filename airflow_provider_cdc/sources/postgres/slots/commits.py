"""Reads the commit times of all transactions of the database, for any publication.

Reading through a publication would not return all commits: the server sends nothing for a transaction that changes no
table of the publication. So the same time would mean a different position for each publication. The output plugin
test_decoding, which comes with PostgreSQL, reports all transactions. This module ignores the plugin's text of the
changes. It sets a low limit for decoding memory, so for a larger transaction the server only reports that there are
changes.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import ConfigurationError, LogGone, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query, session, slot_errors, value
from airflow_provider_cdc.sources.postgres.slots import slots

PLUGIN = "test_decoding"
PART_BYTES = 256 * 2**20
"""Bytes of log that one call decodes. The server stores the result of a call on its disk until the call returns."""

# The server reports BEGIN at the position of the transaction's first record. If a transaction is large, the server
# streams the transaction in blocks. It reports the first block at the position of the transaction's first change.
#
# The text of a change or message may be so long that the server cannot match it with a regular expression (256 MB). So
# select the rows by the first characters of their text. A replication origin may set any commit time, also infinity.
_COMMITS = """
SELECT lsn::text, CASE WHEN data ^@ 'COMMIT ' OR data ^@ 'committing ' THEN (extract(epoch FROM LEAST(GREATEST(
        substring(data FROM '\\(at (.*)\\)$')::timestamptz, '0001-01-02 UTC'), '9999-12-30 UTC')) * 1000000)::int8 END,
    substring(data FROM ' ([0-9]+)(?: \\(at .*)?$')
FROM pg_logical_slot_get_changes(%s, %s, NULL, 'include-xids', 'on', 'include-timestamp', 'on',
    'skip-empty-xacts', 'off', 'stream-changes', 'on')
WHERE data ^@ 'BEGIN ' OR data ^@ 'opening a streamed block for transaction TXN '
    OR data ^@ 'COMMIT ' OR data ^@ 'committing streamed transaction TXN '
"""


@dataclass(frozen=True)
class Commit:
    """The commit of a transaction.

    - ``end``: the end of the commit record.
    - ``at``: the commit time in microseconds since 1970. If logical replication applied the transaction, this is the
      time on the server that first committed it.
    - ``xid``: the id of the transaction, as the catalog shows it (``xmin``).
    - ``begin``: a position that no change of the transaction is before.
    """

    end: Lsn
    at: int
    xid: str
    begin: Lsn


class NoFreeSlot(SourceUnavailable):
    """All replication slots of the server are in use, so no slot can be copied."""


def commits_since(settings: ConnectionSettings, slot: str, start: Lsn) -> Generator[Commit]:
    """Yield the commits whose records begin at ``start`` or later, in log order, up to the end of the flushed log.

    :param slot: a slot that has the log since ``start``. The slot is not changed.
    :raises LogGone: the slot is gone.
    :raises SourceUnavailable: the slot no longer has the log since ``start``.
    :raises ConfigurationError: the server lacks test_decoding.
    :raises NoFreeSlot: the server has no slot for a copy of ``slot``.
    """
    copy = f"{slots.PREFIX}times_{uuid4().hex[:12]}"
    with session(settings) as connection, slot_errors(f"replication slot {slot}"):
        query(connection, "SET logical_decoding_work_mem = '64kB'")
        try:
            # Temporary slots are dropped when their session ends.
            query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true, %s)", (slot, copy, PLUGIN))
        except psycopg.errors.UndefinedFile:
            raise ConfigurationError(
                f"the server lacks the output plugin {PLUGIN}, which is needed to find out when transactions committed",
                where="parameter as_of",
                hint="install PostgreSQL's additional modules on the server (the package postgresql-contrib), or give "
                "an LSN",
            ) from None
        except psycopg.errors.ConfigurationLimitExceeded:
            raise NoFreeSlot(
                "all replication slots are in use, and one more is needed to find out when transactions committed",
                where=f"replication slot {slot}",
                hint="drop unused slots, or raise max_replication_slots; then retry the task",
            ) from None
        try:
            advance(connection, copy, start)
        except LogGone as error:
            # When the caller checked the slot, the slot still had the log since ``start``. So another run has advanced
            # the slot meanwhile.
            raise SourceUnavailable(
                f"another run advanced the slot in the meantime: {error.message}",
                where=f"replication slot {slot}",
                hint="retry the task",
            ) from error
        at, end = start, Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        while at < end:
            # Each call decodes again all transactions that were open at the position where the call begins.
            part = max(PART_BYTES, _decoded_again(connection, copy))
            begins: dict[str, Lsn] = {}
            for lsn, when, xid in query(connection, _COMMITS, (copy, str(min(end, Lsn(int(at) + part))))):
                if when is None:
                    begins.setdefault(xid, Lsn.parse(lsn))
                else:
                    yield Commit(Lsn.parse(lsn), when, xid, begins[xid])
            before, at = at, _confirmed(connection, copy)
            if at <= before:
                return


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
