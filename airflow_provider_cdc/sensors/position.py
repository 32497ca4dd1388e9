"""The sensor that waits until a server has reached a position."""

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

    Use the sensor in a DAG that records a position on the primary and reads from a replica. Use it also in a DAG that
    may start only when no later commit can change the state at a given time::

        PositionSensor(task_id="caught_up", source_conn_id="replica", position="{{ ti.xcom_pull('record') }}")

    The meaning of "reached" depends on the kind of target:

    - GTID set: all transactions of the set are visible to readers.
    - LSN: on a primary, the log up to the LSN is on disk. On a standby, the changes up to the LSN are visible to
      readers.
    - Time: no later commit can change the state at this time. The clock of a MySQL server or of a PostgreSQL primary
      has passed the time. A PostgreSQL standby has replayed a commit after the time.

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
