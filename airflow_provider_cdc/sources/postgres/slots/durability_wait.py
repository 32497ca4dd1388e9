"""Waits until the log is on disk, so that no crash of the server can undo transactions that a session has read.

With ``synchronous_commit=off``, a transaction is visible before its log is on disk. So a session determines the end of
the log after its last read, and waits until the log is on disk up to that end. A crash would end every session, even if
the server's main process survives. So if the session that made the reads sees the log on disk, no crash occurred before
that, and its reads are safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.postgres.server.session_setup import START

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
