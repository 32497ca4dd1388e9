"""The trigger that waits until a server has reached a position or a time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.errors import PositionError

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.triggers.waiting import Answer, WaitingTrigger


def target_of(text: str, where: str) -> AsOf:
    """Return the position or time that a parameter contains.

    :param where: the name of the parameter, for the error message.
    :raises PositionError: the parameter is neither a position nor a time.
    """
    try:
        target = as_of.parse(text)
    except PositionError as error:
        raise PositionError(error.message, where=where, hint=error.hint) from None
    if not target:
        raise PositionError(
            "it is empty",
            where=where,
            hint="give a time (2026-01-31T00:00:00Z), a GTID set as the server prints it, or an LSN (16/B374D848)",
        )
    return target


class PositionQuestion:
    """Asks whether a server has reached ``target``."""

    def __init__(self, target: AsOf) -> None:
        self._target = target

    def ask(self, source: Source) -> Answer:
        """Ask once.

        :raises CdcError: for the same reasons as `Source.has_reached`.
        """

        reach = source.has_reached(self._target)
        return Answer(reach.reached, reach.lacks, str(as_of.text_of(self._target)))


class PositionTrigger(WaitingTrigger):
    """Fires when the server behind a connection has reached ``position``.

    :param source_conn_id: the connection.
    :param position: a time with its zone, a GTID set or an LSN.
    """

    arguments = ("source_conn_id", "position")

    def __init__(self, *, source_conn_id: str, position: str, poll_seconds: float, outage_seconds: float) -> None:
        super().__init__(poll_seconds=poll_seconds, outage_seconds=outage_seconds)
        self.source_conn_id = source_conn_id
        self.position = position
        self._question: PositionQuestion | None = None

    async def ask(self) -> Answer:
        # The hooks are imported only here, because they are slow to import and DAG files import this module.
        from airflow_provider_cdc.hooks import source_in_event_loop

        if self._question is None:
            self._question = PositionQuestion(target_of(self.position, "parameter position"))
        source = await source_in_event_loop(self.source_conn_id)
        return await asyncio.to_thread(self._question.ask, source)
