"""Writes a mark into the log at the end of a run's reads. The mark is a message that later reads of the log must find.

Positions are only numbers. A server whose disk was reset to an earlier state continues from an earlier position. With
other transactions, the server eventually passes all positions that it had reached before. The name, the timeline and
the slots of the server are unchanged. So the run writes a message that no other log contains. If the message is in a
log, the log is still the same as during the reads.

The message belongs to no transaction and changes no row
(https://www.postgresql.org/docs/current/functions-admin.html, ``pg_logical_emit_message``).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.sources.postgres.log.pgoutput import Message
from airflow_provider_cdc.sources.postgres.server.session import APPLICATION


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
