"""The trigger that fires after some seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

if TYPE_CHECKING:
    pass


class PauseTrigger(BaseTrigger):
    """Fires after a pause. Its task then checks again what it waits for, because only a task can ask Airflow for the
    states of DAG runs.

    :param seconds: the length of the pause.
    """

    def __init__(self, *, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {"seconds": self.seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        await asyncio.sleep(self.seconds)
        yield TriggerEvent(None)
