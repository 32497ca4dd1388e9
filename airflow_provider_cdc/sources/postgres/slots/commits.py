"""When transactions committed: all that changed anything in the database, whatever publication tells of them.

A publication does not do for that: the server says nothing of transactions that change none of its tables, and a time
would mean another position to each. test_decoding, which comes with PostgreSQL, tells of all. Its text of the changes
themselves is of no use here; with so little memory, the server says of larger transactions only that there are changes.
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
"""Of log that one call decodes: the server keeps what it returns on its disk until then."""

_COMMITS = """
SELECT lsn::text, (extract(epoch FROM substring(data FROM '\\(at (.*)\\)$')::timestamptz) * 1000000)::int8
FROM pg_logical_slot_get_changes(%s, %s, NULL, 'include-xids', 'off', 'include-timestamp', 'on',
    'skip-empty-xacts', 'off', 'stream-changes', 'on')
WHERE data ~ '^(COMMIT|committing streamed transaction) '
"""


@dataclass(frozen=True)
class Commit:
    """A transaction's commit: where its record ends, and when it was, in microseconds since 1970.

    What came from another server by logical replication has that server's time.
    """

    end: Lsn
    at: int


def commits_since(settings: ConnectionSettings, slot: str, start: Lsn) -> Generator[Commit]:
    """The commits whose records begin at ``start`` or later, in the order of the log, as far as it is on disk.

    :param slot: one that has the log since ``start``. It stays as it is.
    :raises LogGone: it is gone.
    :raises SourceUnavailable: it has not, any more.
    :raises ConfigurationError: the server lacks test_decoding.
    """
    copy = f"{slots.PREFIX}times_{uuid4().hex[:12]}"
    with session(settings) as connection, slot_errors(f"replication slot {slot}"):
        query(connection, "SET logical_decoding_work_mem = '64kB'")
        try:
            # Temporary slots end with their session.
            query(connection, "SELECT pg_copy_logical_replication_slot(%s, %s, true, %s)", (slot, copy, PLUGIN))
        except psycopg.errors.UndefinedFile:
            raise ConfigurationError(
                f"the server lacks the output plugin {PLUGIN}, without which nothing tells when transactions committed",
                where="parameter as_of",
                hint="install PostgreSQL's additional modules on the server (the package postgresql-contrib), or give "
                "an LSN",
            ) from None
        try:
            advance(connection, copy, start)
        except LogGone as error:
            # It had that log when the caller looked.
            raise SourceUnavailable(
                f"another run had the slot move on meanwhile: {error.message}",
                where=f"replication slot {slot}",
                hint="the task can be retried as it is",
            ) from error
        at, end = start, Lsn.parse(value(connection, "pg_current_wal_flush_lsn()::text"))
        while at < end:
            # What was open at the beginning is decoded again by every call.
            part = max(PART_BYTES, _decoded_again(connection, copy))
            for lsn, when in query(connection, _COMMITS, (copy, str(min(end, Lsn(int(at) + part))))):
                yield Commit(Lsn.parse(lsn), when)
            before, at = at, _confirmed(connection, copy)
            if at <= before:
                return


def advance(connection: Connection, slot: str, to: Lsn) -> None:
    """Move a slot on to ``to``: it then tells of the transactions whose commit records begin there or later.

    :raises LogGone: it is beyond that already, or the log does not reach there, or is gone.
    """
    confirmed = _confirmed(connection, slot)
    if confirmed < to:
        with slot_errors(f"replication slot {slot}"):
            sql = "SELECT end_lsn::text FROM pg_replication_slot_advance(%s, %s)"
            ((at,),) = query(connection, sql, (slot, str(to)))
        confirmed = Lsn.parse(at)
    if confirmed != to:
        raise LogGone(
            f"the slot stands at {confirmed}, and {to} was wanted",
            where=f"replication slot {slot}",
            hint="ask for a later time or position",
        )


def _confirmed(connection: Connection, slot: str) -> Lsn:
    slot_state = slots.state(connection, slot)
    if slot_state is None or slot_state.confirmed is None:
        raise LogGone("the slot is gone", where=f"replication slot {slot}", hint="the task can be retried")
    return slot_state.confirmed


def _decoded_again(connection: Connection, slot: str) -> int:
    return int(
        value(
            connection,
            "(SELECT confirmed_flush_lsn - restart_lsn FROM pg_replication_slots WHERE slot_name = %s)::int8",
            (slot,),
        )
    )
