"""Waits for log that lasts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.sensors.waiting import WaitingSensor
from airflow_provider_cdc.triggers.runway import RunwayTrigger, ask_runway, hours_of
from airflow_provider_cdc.triggers.waiting import Answer


class RunwaySensor(WaitingSensor):
    """Wait until a server will have its log for so many hours from now on, and return ``hours`` (None: no bound) and
    ``why``.

    For a DAG whose copies take long: a run fails whose log is thrown away before it has read it. ::

        RunwaySensor(task_id="enough_log", source_conn_id="cdc_mysql", hours=12)

    What the server's settings say counts. MySQL: for how long it keeps its log. PostgreSQL: the size up to which a slot
    keeps the log, at the rate at which the server has written it since its statistics began. A server without such a
    bound has enough; one whose bound is not known has not.

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
