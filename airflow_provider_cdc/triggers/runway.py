"""The trigger that waits until a server keeps its log for long enough."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.triggers.waiting import Answer, WaitingTrigger

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.api.source import Source


def hours_of(given: object, where: str) -> float:
    """Return the number of hours in a parameter. The value of the parameter may come from a template.

    :param where: the name of the parameter, for the error message.
    :raises ConfigurationError: the value is not a finite number above 0.
    """
    try:
        hours = float(str(given))
    except ValueError:
        hours = math.nan
    if not 0 < hours < math.inf:
        raise ConfigurationError(
            f"{given!r} is not a number of hours", where=where, hint="give a number above 0, such as 6"
        )
    return hours


def ask_runway(source: Source, hours: float) -> Answer:
    """Return whether the source will keep its log for ``hours`` from now on.

    :raises ConfigurationError: sources of this kind do not report their runway.
    """

    runway = source.runway()
    if runway.seconds is None:
        return Answer(runway.unbounded, runway.why, {"hours": None, "why": runway.why})
    hours_left = runway.seconds / 3600
    message = f"the server keeps its log for {hours_left:,.1f} hours from now on, not for {hours:g} ({runway.why})"
    return Answer(hours_left >= hours, message, {"hours": hours_left, "why": runway.why})


class RunwayTrigger(WaitingTrigger):
    """Fires when the server behind a connection keeps its log for ``hours`` from now on.

    :param source_conn_id: the connection.
    """

    arguments = ("source_conn_id", "hours")

    def __init__(self, *, source_conn_id: str, hours: float, poll_seconds: float, outage_seconds: float) -> None:
        super().__init__(poll_seconds=poll_seconds, outage_seconds=outage_seconds)
        self.source_conn_id = source_conn_id
        self.hours = hours

    async def ask(self) -> Answer:
        # The hooks are imported only here, because they are slow to import and DAG files import this module.
        from airflow_provider_cdc.hooks import source_in_event_loop

        source = await source_in_event_loop(self.source_conn_id)
        return await asyncio.to_thread(ask_runway, source, self.hours)
