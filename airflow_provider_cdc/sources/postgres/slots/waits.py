"""Waits for transactions of the server, and marks the end of a run's reads in the log.

The mark is a message that later reads of the log must find.

Positions are only numbers. A server whose disk was reset to an earlier state continues from an earlier position. With
other transactions, the server eventually passes all positions that it had reached before. The name, the timeline and
the slots of the server are unchanged. So the run writes a message that no other log contains. If the message is in a
log, the log is still the same as during the reads.

The message belongs to no transaction and changes no row
(https://www.postgresql.org/docs/current/functions-admin.html, ``pg_logical_emit_message``).
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

import psycopg

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError, LockNotGranted, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.pgoutput import Message
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION, Connection, mapped_errors, query, session
from airflow_provider_cdc.sources.postgres.server.session_setup import START


@dataclass(frozen=True)
class EndMark:
    """A unique message in the log, at or after ``since``. The plan of a log segment contains the mark as text."""

    since: Lsn
    token: str

    def __str__(self) -> str:
        return f"{self.since} {self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a mark.

        :raises PositionError: the text does not describe a mark.
        """
        since, _, token = text.partition(" ")
        return cls(Lsn.parse(since), token)

    def is_in(self, message: Message) -> bool:
        """Return whether ``message`` is this mark."""
        return (message.prefix, message.content) == (APPLICATION, self.token.encode())


def write(ask: Callable[[str], list[Any]]) -> EndMark:
    """Write a new mark into the log. The mark may not be on disk yet when this function returns.

    :param ask: runs one query.
    """
    token = uuid.uuid4().hex
    ((since, _),) = ask(
        "SELECT pg_catalog.pg_current_wal_insert_lsn()::text, "
        f"pg_catalog.pg_logical_emit_message(false, '{APPLICATION}', '{token}')::text"
    )
    return EndMark(Lsn.parse(since), token)


def log_end(end: Lsn, mark: EndMark | None = None) -> LogEnd:
    """Return ``UpperBound.log_end``. It has the end of the log and, if there is a mark before the end, the mark."""
    return LogEnd(f"{end} {mark}" if mark is not None else str(end))


def parse_log_end(text: LogEnd) -> tuple[Lsn, str]:
    """Parse the result of `log_end`: return the position and the mark's text (empty in runs of earlier versions)."""
    end, _, mark = text.partition(" ")
    return Lsn.parse(end), mark


# Waits until the log is on disk, so that no crash of the server can undo transactions that a session has read.
#
# With ``synchronous_commit=off``, a transaction is visible before its log is on disk. So a session determines the end
# of the log after its last read, and waits until the log is on disk up to that end. A crash would end every session,
# even if the server's main process survives. So if the session that made the reads sees the log on disk, no crash
# occurred before that, and its reads are safe.


FLUSH_SECONDS = 60.0

_POLL_SECONDS = 0.01
# Header sizes of a log page, and of the first page of a segment. Source: access/xlog_internal.h.
_PAGE_HEADER, _SEGMENT_HEADER = 24, 40

# The flush position is read after the insert position, so it may be the later one of the two positions.
_STATE = f"""
SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_wal_flush_lsn()::text,
    pg_catalog.current_setting('wal_block_size'),
    pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))::text,
    {START}
"""


def wait(ask: Callable[[str], list[Any]], where: str) -> tuple[Lsn, str]:
    """Wait until the current log is on disk up to its end. Return this end, and the server's incarnation.

    The incarnation is the time at which the server was started. A restart may lose even log that the server considered
    to be on disk (``fsync=off``, or a machine that is reset to an earlier state). Only the incarnation shows such a
    loss.

    :param ask: runs one query in the session that made the reads.
    :raises SourceUnavailable: the server does not flush its log.
    """
    ((insert, flushed, page, segment, started),) = ask(_STATE)
    end = insert_end(Lsn.parse(insert), int(page), int(segment))
    deadline = time.monotonic() + FLUSH_SECONDS
    if Lsn.parse(flushed) < end:
        # When this statement's transaction ends, the server flushes the log. Otherwise the log of open transactions
        # could stay unflushed for about 15 s.
        ask("SELECT pg_catalog.pg_current_xact_id()::text")
        ((flushed,),) = ask(_FLUSHED)
    while Lsn.parse(flushed) < end:
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"the server did not write its log to disk up to {end} in {FLUSH_SECONDS:.0f} s",
                where=where,
                hint="check the server's disk and its walwriter, then retry the task",
            )
        time.sleep(_POLL_SECONDS)
        ((flushed,),) = ask(_FLUSHED)
    return end, started


_FLUSHED = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"


def insert_end(insert: Lsn, page_bytes: int, segment_bytes: int) -> Lsn:
    """Return the end of the last record, given the position where the next record will begin.

    At the beginning of a page, the position is directly after the page header. In that case, the size of the header is
    subtracted, because the server does not flush a header before a record follows it. If the offset in the page is
    greater than the size of the header, the page contains a record, and nothing is subtracted.
    """
    header = _SEGMENT_HEADER if int(insert) % segment_bytes < page_bytes else _PAGE_HEADER
    return Lsn(int(insert) - header) if int(insert) % page_bytes == header else insert


# Waits for transactions that delay a slot's consistent point, and for transactions whose commit is in the log but not
# yet visible.


NAME_SECONDS = 10.0
"""Seconds between log messages about the transactions for which the command still waits."""

_COMMIT_POLL_SECONDS = 0.02
_CANCEL_SECONDS = 1.0
_XIDS = 1 << 32
"""Number of different ids of type xid. Ids of type xid8 do not wrap around."""

_log = logging.getLogger(__name__)


def consistent_point(settings: ConnectionSettings, connection: Connection, sql: str, seconds: float) -> tuple[Lsn, str]:
    """Run CREATE_REPLICATION_SLOT on a replication connection, for at most ``seconds``. Return the slot's consistent
    point, and the name of the exported snapshot (empty if there is none).

    :raises LockNotGranted: the command had to wait for more than ``seconds``.
    """
    # statement_timeout does not apply to commands of the replication protocol, and lock_timeout would apply separately
    # to each transaction that the command waits for.
    query(connection, "SET lock_timeout = 0")
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(settings, connection, seconds, done), daemon=True)
    watching.start()
    try:
        ((_, point, snapshot, _),) = query(connection, sql)
        return Lsn.parse(point), snapshot or ""
    except psycopg.errors.QueryCanceled:
        raise _held_up(settings, "the slot's starting point", seconds) from None
    finally:
        done.set()


def wait_until_visible(
    settings: ConnectionSettings, connection: Connection, seconds: float, only: Collection[str] | None = None
) -> None:
    """Wait until every transaction whose commit may already be in the log is visible.

    A commit is written to the log first and becomes visible afterwards, usually at once. If the server waits for
    standbys, the commit becomes visible only after they have answered. If a transaction committed before the slot's
    point, but a read does not see the transaction, then neither the read nor the log has its changes. So this function
    waits for every transaction that is in progress right after the point was fixed. It does not wait for sessions that
    are idle in a transaction. Their commits have not begun, so they will come after the point.

    :param only: the ids (of type xid) of the transactions to wait for, which were in progress a moment ago. None: wait
        for all transactions.
    :raises LockNotGranted: some transactions did not end within ``seconds``. The message lists these transactions.
    """
    # A snapshot lists running transactions only up to the latest transaction that has ended. So begin and end a new
    # transaction here. This transaction is later than all other transactions.
    query(connection, "SELECT pg_current_xact_id()")
    ((began, committing, waiting),) = query(connection, _BEGAN, {})
    if only is not None:
        waiting = [xid for xid in waiting if str(int(xid) % _XIDS) in only]
    deadline = time.monotonic() + seconds
    while waiting:
        arguments = {"waiting": waiting, "committing": committing}
        waiting = [xid for (xid,) in query(connection, _UNSETTLED, arguments)]
        if waiting and time.monotonic() > deadline:
            raise _held_up(settings, f"the copy's view of the commits in progress ({began})", seconds)
        time.sleep(_COMMIT_POLL_SECONDS if waiting else 0)


# The reported state of a subscription's worker is not reliable. In the state "idle in transaction", the worker may
# commit changes that it applies in parallel. In the state "idle", it may run COMMIT PREPARED. While the worker waits
# for the publisher, it commits in neither of these ways.
_WORKER = "{0}.backend_type LIKE 'logical replication%%worker'"
_WAITS_FOR_MORE = "{0}.wait_event IN ('LogicalApplyMain', 'LogicalParallelApplyMain', 'applytransaction')"
_MAY_COMMIT = f"""CASE WHEN {_WORKER} THEN {_WAITS_FOR_MORE} IS NOT TRUE
    ELSE {{0}}.state IS NULL OR {{0}}.state NOT LIKE '{{1}}%%' END"""
# The worker of a subscription does not report its query, so use the start of its transaction. The COMMIT PREPARED of a
# worker counts as a separate transaction.
_STATEMENT = f"concat({{0}}.pid, ' ', CASE WHEN {_WORKER} THEN {{0}}.xact_start ELSE {{0}}.query_start END)"

# A prepared transaction has no session. The commit of a prepared transaction can have begun only if some session runs a
# COMMIT PREPARED. The query that the server reports for a session may be hidden from this user, truncated, or invalid
# as text.
_BEGAN = f"""
SELECT pg_current_snapshot()::text, ARRAY(
    SELECT {_STATEMENT.format("w")} FROM pg_stat_activity w
    WHERE w.pid <> pg_backend_pid() AND {_MAY_COMMIT.format("w", "idle")}
        AND (w.query ~* 'prepared|insufficient privilege' OR {_WORKER.format("w")} OR w.state = 'disabled'
            OR octet_length(w.query) >= pg_size_bytes(current_setting('track_activity_query_size')) - 8)),
    ARRAY(SELECT x::text FROM pg_snapshot_xip(pg_current_snapshot()) x)
"""

_UNSETTLED = f"""
SELECT x FROM unnest(%(waiting)s::text[]) x
LEFT JOIN pg_stat_activity a ON a.backend_xid = x::xid8::xid
LEFT JOIN pg_prepared_xacts p ON p.transaction = x::xid8::xid
WHERE NOT pg_visible_in_snapshot(x::xid8, pg_current_snapshot())
    AND {_MAY_COMMIT.format("a", "idle in transaction")}
    AND (p.transaction IS NULL OR EXISTS (
        SELECT FROM pg_stat_activity w
        WHERE {_STATEMENT.format("w")} = ANY(%(committing)s) AND {_MAY_COMMIT.format("w", "idle")}))
"""


def _held_up(settings: ConnectionSettings, what: str, seconds: float) -> LockNotGranted:
    with session(settings) as connection:
        named = blockers(connection)
    return LockNotGranted(
        f"open transactions delayed {what} for {seconds:.0f} s: {'; '.join(named) or 'they have ended by now'}",
        where=settings.address,
        hint="wait until the transactions end, or end them (pg_terminate_backend, ROLLBACK PREPARED), then retry the "
        "task",
    )


def blockers(connection: Connection, seconds: float = 0) -> list[str]:
    """Return the transactions for which the creation of a slot would wait. These are transactions that have written,
    including prepared transactions, and have run for at least ``seconds``."""
    running: list[tuple[Any, ...]] = query(
        connection,
        "SELECT pid, usename, COALESCE(state, 'state not shown: GRANT pg_read_all_stats'), wait_event, "
        "extract(epoch FROM now() - xact_start)::float8 FROM pg_stat_activity "
        "WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
        "AND xact_start <= now() - make_interval(secs => %s) ORDER BY xact_start LIMIT 20",
        (seconds,),
    )
    prepared: list[tuple[Any, ...]] = query(
        connection,
        "SELECT gid, owner, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts "
        "WHERE prepared <= now() - make_interval(secs => %s) ORDER BY prepared LIMIT 20",
        (seconds,),
    )
    return [
        f"session {pid} of {user}, {what}{f', waiting for {event}' if event else ''}, for {duration(age)}"
        for pid, user, what, event, age in running
    ] + [f"prepared transaction {gid!r} of {owner}, for {duration(age)}" for gid, owner, age in prepared]


def _watch(settings: ConnectionSettings, waiting: Connection, seconds: float, done: threading.Event) -> None:
    """Regularly log the transactions that a command waits for. Cancel the command if it takes more than ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = min(NAME_SECONDS, seconds)
    while not done.wait(pause):
        if time.monotonic() >= deadline:
            with suppress(psycopg.Error), mapped_errors("cancel"):
                waiting.cancel_safe(timeout=5)
            # Repeat the cancel request until the command has ended. The server may not have received the command yet,
            # or may be too busy to process the request.
            pause = _CANCEL_SECONDS
            continue
        with suppress(CdcError), session(settings) as connection:
            _log.info(
                "Waiting up to %.0f s more for write transactions to end (other sessions are not blocked): %s",
                deadline - time.monotonic(),
                "; ".join(blockers(connection)) or "they have ended by now",
            )
        pause = max(0.0, min(NAME_SECONDS, deadline - time.monotonic()))
