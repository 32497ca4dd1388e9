"""The sensor that waits until a server keeps its log for long enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.sensors.waiting import WaitingSensor
from airflow_provider_cdc.triggers.runway import RunwayTrigger, ask_runway, hours_of
from airflow_provider_cdc.triggers.waiting import Answer


class RunwaySensor(WaitingSensor):
    """Wait until a server's settings ensure that it will keep its log for a given number of hours from now on.

    The result has ``hours`` and ``why``. If ``hours`` is None, the server keeps its log without a limit. Use the sensor
    in a DAG whose copies take long, because a run fails if the server removes the log before the run has read it::

        RunwaySensor(task_id="enough_log", source_conn_id="cdc_mysql", hours=12)

    The runway is computed from the server's settings. On MySQL, the runway is the time for which the server keeps its
    log. On PostgreSQL, the runway is the maximum size of the log that a slot retains, divided by the rate at which the
    server has written log since its statistics began; or the time for which a slot may be idle, if this is shorter. If
    a server keeps its log without a limit, the wait ends for any number of hours. If the limit is unknown, the wait
    does not end before its timeout.

    :param source_conn_id: connection to the server, of type ``cdc_mysql``, ``cdc_postgres``, ``mysql`` or ``postgres``.
    :param hours: how long the run may take.
    """

    template_fields: Sequence[str] = ("source_conn_id", "hours")

    def __init__(self, *, source_conn_id: str, hours: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source_conn_id = source_conn_id
        self.hours = hours

    def ask(self) -> Answer:
        return ask_runway(open_hook(self.source_conn_id).get_conn(), self._hours)

    def trigger(self) -> RunwayTrigger:
        return RunwayTrigger(
            source_conn_id=self.source_conn_id,
            hours=self._hours,
            poll_seconds=self.poke_interval,
            outage_seconds=self.outage_seconds,
        )

    @property
    def _hours(self) -> float:
        return hours_of(self.hours, "parameter hours")
