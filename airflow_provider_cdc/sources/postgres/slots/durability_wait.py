"""Waiting until no crash of the server can take back what was read: until the log is on disk.

With ``synchronous_commit=off`` a transaction is visible before its log is on disk. What a session read is safe once the
log is on disk up to its end after the last read, as seen in that very session: a crash ends every session, even if the
server's main process survives it, so nothing was taken back in between.
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
# Of a page of the log, and of the first page of a segment: access/xlog_internal.h.
_PAGE_HEADER, _SEGMENT_HEADER = 24, 40

# What is inserted is asked for first: what is on disk by then may be more.
_STATE = f"""
SELECT pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_wal_flush_lsn()::text,
    pg_catalog.current_setting('wal_block_size'),
    pg_catalog.pg_size_bytes(pg_catalog.current_setting('wal_segment_size'))::text,
    {START}
"""


def wait(ask: Callable[[str], list[Any]], where: str) -> tuple[Lsn, str]:
    """Wait until all that the log holds now is on disk: its end, and the server's incarnation.

    The incarnation is when the server was started. A restart may take back even what it thought to be on disk
    (``fsync=off``, a machine set back to an earlier state), which nothing else would tell.

    :param ask: runs one query in the session that has read.
    :raises SourceUnavailable: the server does not flush its log.
    """
    ((insert, flushed, page, segment, started),) = ask(_STATE)
    end = insert_end(Lsn.parse(insert), int(page), int(segment))
    deadline = time.monotonic() + FLUSH_SECONDS
    if Lsn.parse(flushed) < end:
        # The end of some transaction makes the server flush. Otherwise it would leave what open ones wrote for some
        # 15 s.
        ask("SELECT pg_catalog.pg_current_xact_id()::text")
        ((flushed,),) = ask(_FLUSHED)
    while Lsn.parse(flushed) < end:
        if time.monotonic() > deadline:
            raise SourceUnavailable(
                f"the log is not on disk up to {end} after {FLUSH_SECONDS:.0f} s",
                where=where,
                hint="look at the server's disk and its walwriter; the task can be retried as it is",
            )
        time.sleep(_POLL_SECONDS)
        ((flushed,),) = ask(_FLUSHED)
    return end, started


_FLUSHED = "SELECT pg_catalog.pg_current_wal_flush_lsn()::text"


def insert_end(insert: Lsn, page_bytes: int, segment_bytes: int) -> Lsn:
    """The end of the last record, given where the next one will begin: behind the header if a page has just begun.

    Nothing would ever flush a header that no record follows. Only its exact size will do: anything more is a record.
    """
    header = _SEGMENT_HEADER if int(insert) % segment_bytes < page_bytes else _PAGE_HEADER
    return Lsn(int(insert) - header) if int(insert) % page_bytes == header else insert
