"""Writes a mark into the log at the end of a run's reads. The mark is a message that later reads of the log must find.

Positions are only numbers. A server whose disk was reset to an earlier state continues from an earlier position. With
other transactions, the server eventually passes all positions that it had reached before. The name, the timeline and
the slots of the server are unchanged. So the run writes a message that no other log contains. If the message is in a
log, the log is still the same as during the reads.

The message belongs to no transaction and changes no row
(https://www.postgresql.org/docs/current/functions-admin.html, ``pg_logical_emit_message``).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.postgres.server.pgoutput import Message
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION
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
