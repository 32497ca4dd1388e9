"""Waits for a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.sensors.waiting import WaitingSensor
from airflow_provider_cdc.triggers.position import PositionQuestion, PositionTrigger, target_of
from airflow_provider_cdc.triggers.waiting import Answer


class PositionSensor(WaitingSensor):
    """Wait until a server has reached a position or a time, and return it.

    For a DAG that records a position on the primary and reads on a replica, or that needs the past of a time to be
    final::

        PositionSensor(task_id="caught_up", source_conn_id="replica", position="{{ ti.xcom_pull('record') }}")

    A server has reached

    - a GTID set, when it shows all of these transactions to readers;
    - an LSN, when that part of the log is on its disk, or, on a standby, shown to readers;
    - a time, when no commit that begins later belongs to it. MySQL: something was committed after it, so ``as_of`` that
      time needs no waiting. PostgreSQL: the primary's clock has passed it; a standby has replayed a later commit.

    :param source_conn_id: connection to the server, of type ``cdc_mysql``, ``cdc_postgres``, ``mysql`` or ``postgres``.
    :param position: a time with its zone (``2026-01-31T00:00:00Z``), a GTID set, or an LSN.
    """

    template_fields: Sequence[str] = ("source_conn_id", "position")

    def __init__(self, *, source_conn_id: str, position: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.source_conn_id = source_conn_id
        self.position = position
        self._question: PositionQuestion | None = None

    def ask(self) -> Answer:
        if self._question is None:
            self._question = PositionQuestion(target_of(self._text, "parameter position"))
        return self._question.ask(open_hook(self.source_conn_id).get_conn())

    def trigger(self) -> PositionTrigger:
        return PositionTrigger(
            source_conn_id=self.source_conn_id,
            position=self._text,
            poll_seconds=self.poke_interval,
            outage_seconds=self.outage_seconds,
        )

    @property
    def _text(self) -> str:
        return str(as_of.text_of(self.position))
