"""The base class of the triggers. It implements polling until the answer is yes, and the tolerance of short outages.

A sensor and its trigger poll in the same way. The sensor polls in a worker, and the trigger polls in the triggerer.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Answer:
    """The result of one poll.

    :param yes: whether the wait is over.
    :param text: the answer in words, for the log.
    :param found: the result of the sensor's task, as JSON.
    """

    yes: bool
    text: str
    found: Any = None


@dataclass(frozen=True)
class WaitFailure:
    """An error that a trigger sends to its task.

    ``message`` contains no secrets, because errors of this package never do. ``type`` is the name of the error's class.
    """

    message: str
    terminal: bool
    type: str = "CdcError"


class Outage:
    """Tolerates transient errors. If there was no answer for too long, the last error is raised.

    :param seconds: the number of seconds for which the errors may last.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: float | None = None

    def over(self) -> None:
        """Record that the server or store has answered."""
        self._since = None

    def bear(self, error: TransientError) -> str:
        """Return the text to log for ``error``.

        :raises TransientError: the outage has lasted for too long. The raised error is ``error`` itself.
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        if lasted >= self._seconds:
            raise error
        return f"No answer; retrying for {self._seconds - lasted:.0f} s more: {error}"


class WaitingTrigger(BaseTrigger):
    """Polls a server or store until the answer is yes.

    The event of the trigger is ``{"found": …}``, or ``{"failure": …}`` with a `WaitFailure`. Airflow serializes only
    the arguments of the trigger, which are ids, names and positions, never credentials.

    :param poll_seconds: how long to wait between two polls.
    :param outage_seconds: how long the server or store may fail to answer.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The names of the trigger's arguments. The attributes that hold the arguments have the same names."""

    def __init__(self, *, poll_seconds: float, outage_seconds: float) -> None:
        super().__init__()
        self.poll_seconds = poll_seconds
        self.outage_seconds = outage_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = (*self.arguments, "poll_seconds", "outage_seconds")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    @abstractmethod
    async def ask(self) -> Answer:
        """Ask once.

        :raises TransientError: the server or store did not answer.
        """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        outage = Outage(self.outage_seconds)
        while True:
            try:
                answer = await self._answer(outage)
            except CdcError as error:
                failure = WaitFailure(str(error), isinstance(error, TerminalError), type(error).__name__)
                yield TriggerEvent({"failure": asdict(failure)})
                return
            if answer is not None:
                if answer.yes:
                    yield TriggerEvent({"found": answer.found})
                    return
                self.log.info("Not yet: %s", answer.text)
            await asyncio.sleep(self.poll_seconds)

    async def _answer(self, outage: Outage) -> Answer | None:
        try:
            answer = await self.ask()
        except TransientError as error:
            self.log.warning("%s", outage.bear(error))
            return None
        outage.over()
        return answer
