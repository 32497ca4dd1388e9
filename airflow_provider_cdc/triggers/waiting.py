"""Asking again and again until the answer is yes, through outages that are not too long.

Sensors and their triggers ask the same questions, a sensor in a worker and a trigger in the triggerer.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError


@dataclass(frozen=True)
class Answer:
    """What somebody who was asked said.

    :param yes: whether what is waited for has happened.
    :param said: the answer in words, for the log.
    :param found: what the sensor's task returns: JSON.
    """

    yes: bool
    said: str
    found: Any = None


@dataclass(frozen=True)
class Failure:
    """An error on its way from a trigger to its task. ``message`` holds no secret: errors never do. ``type`` is the
    name of its class."""

    message: str
    terminal: bool
    type: str = "CdcError"


class Outage:
    """Bears transient errors, until there was nothing else for too long.

    :param seconds: how long.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._since: float | None = None

    def over(self) -> None:
        """Somebody answered."""
        self._since = None

    def bear(self, error: TransientError) -> str:
        """What to log of ``error``.

        :raises TransientError: ``error``; it has been going on for too long.
        """
        now = self._clock()
        self._since = now if self._since is None else self._since
        lasted = now - self._since
        if lasted >= self._seconds:
            raise error
        return f"No answer, which is borne for {self._seconds - lasted:.0f} s more: {error}"


class WaitingTrigger(BaseTrigger):
    """Asks until the answer is yes.

    Its event is ``{"found": …}``, or ``{"failure": …}`` with a `Failure`. What is serialized of it are its arguments:
    ids, names and positions, never a credential.

    :param poll_seconds: how long to wait between two questions.
    :param outage_seconds: for how long whoever is asked may fail to answer.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    """The names of the arguments, which are attributes, too."""

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

        :raises TransientError: nobody answered.
        """

    async def run(self) -> AsyncIterator[TriggerEvent]:
        outage = Outage(self.outage_seconds)
        while True:
            try:
                answer = await self._answer(outage)
            except CdcError as error:
                failure = Failure(str(error), isinstance(error, TerminalError), type(error).__name__)
                yield TriggerEvent({"failure": asdict(failure)})
                return
            if answer is not None:
                if answer.yes:
                    yield TriggerEvent({"found": answer.found})
                    return
                self.log.info("Not yet: %s", answer.said)
            await asyncio.sleep(self.poll_seconds)

    async def _answer(self, outage: Outage) -> Answer | None:
        try:
            answer = await self.ask()
        except TransientError as error:
            self.log.warning("%s", outage.bear(error))
            return None
        outage.over()
        return answer
