"""The log that a run still needs: how much of it there is, and when the source removes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class NeededLog:
    """The state of the log that a run needs, at one moment.

    ``written`` is the place of the end of the log in bytes. It only increases, so two values show how fast the log
    grows. ``kept`` is the number of bytes from the beginning of the needed log to the end of the log. ``seconds`` is
    the time after which a setting lets the server remove the beginning of the needed log. ``room`` is the number of
    bytes that can be written before the server removes it. Both are None if there is no such limit, or if the limit is
    unknown. ``limit`` names the setting with its value, for messages. ``hint`` says how to make the server keep its log
    for longer. ``begins`` is the beginning of the needed log. It moves if the run lets log go that it has recorded.
    ``certain`` is false if ``seconds`` is only the earliest time, and the server may as well never remove the log.
    """

    written: int
    kept: int
    seconds: float | None = None
    room: int | None = None
    limit: str = ""
    hint: str = ""
    begins: str = ""
    certain: bool = True


@runtime_checkable
class TellsNeededLog(Protocol):
    """A source that reports when its server will remove the log that a run needs."""

    def needed_log(self, identity: Mapping[str, str], since: Sequence[Mapping[str, str]]) -> NeededLog:
        """Return the state of the needed log. If several limits apply, return the first one that will be reached.

        :param identity: the identity in the run's initial point.
        :param since: the identities that were recorded at the positions of the copies that the run rolls forward.
        :raises SourceUnavailable: the server cannot be reached.
        """
