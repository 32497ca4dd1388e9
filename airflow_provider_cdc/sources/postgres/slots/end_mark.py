"""The mark that the reads of a run end with: a message in the log, which whoever reads the log afterwards must meet.

Positions are only numbers. A server whose disk was put back goes on from an earlier one, and by and by passes all that
it had reached before, with other transactions. Its name, its timeline and its slots are those that it had. So what says
that a log is still the one that the reads saw is something in it that no other log has.

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
    """A message that nobody else wrote, somewhere from ``since`` on. Its text is what a segment of the log is given."""

    since: Lsn
    token: str

    def __str__(self) -> str:
        return f"{self.since} {self.token}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The mark of its text.

        :raises PositionError: it is none.
        """
        since, _, token = text.partition(" ")
        return cls(Lsn.parse(since), token)

    def is_in(self, message: Message) -> bool:
        """Whether it is this message."""
        return (message.prefix, message.content) == (APPLICATION, self.token.encode())


def write(ask: Callable[[str], list[Any]]) -> EndMark:
    """Write a new mark into the log; it need not be on disk yet.

    :param ask: runs one query.
    """
    token = uuid.uuid4().hex
    ((since, _),) = ask(
        "SELECT pg_catalog.pg_current_wal_insert_lsn()::text, "
        f"pg_catalog.pg_logical_emit_message(false, '{APPLICATION}', '{token}')::text"
    )
    return EndMark(Lsn.parse(since), token)


def log_end(end: Lsn, mark: EndMark | None = None) -> LogEnd:
    """``UpperBound.log_end``: where the log ends, and the mark before it, if there is one."""
    return LogEnd(f"{end} {mark}" if mark is not None else str(end))


def parse_log_end(text: LogEnd) -> tuple[Lsn, str]:
    """What `log_end` made: the place, and the mark's text. Runs that an earlier version began have none."""
    end, _, mark = text.partition(" ")
    return Lsn.parse(end), mark
