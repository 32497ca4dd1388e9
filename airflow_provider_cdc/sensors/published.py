"""The sensor that waits until a copy is published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.storage.uri import SOURCE_PLACEHOLDER, lake_of
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks.storage import storage_settings
from airflow_provider_cdc.operators.base import TargetOperator
from airflow_provider_cdc.sensors.waiting import WaitingSensor
from airflow_provider_cdc.triggers.published import PublishedTrigger, WantedCopy, ask
from airflow_provider_cdc.triggers.waiting import Answer


class PublishedSensor(TargetOperator, WaitingSensor):
    """Wait until a table's latest copy meets all conditions, and return facts about the copy.

    The result has ``table``, ``run_id``, ``path``, ``position``, ``rows`` and ``published_at``. Use the sensor in a DAG
    that reads copies published by other DAGs::

        PublishedSensor(
            task_id="orders", target="s3://lake/raw", table="shop.orders", position="{{ data_interval_end }}"
        )

    Without conditions, any copy is accepted.

    :param target: the folder in which copies are published. ``{source}`` in the path stands for ``source_conn_id``.
    :param table: the table, as ``schema.table``.
    :param position: the copy must be exact at this position or at a later position. The position is a GTID set, an LSN,
        or a time. A time stands for everything that was committed up to this time. The copy meets the condition if its
        ``as_of`` is this time or a later time. A copy without ``as_of`` meets the condition if its run was due at this
        time or later, by Airflow's clock.
    :param published_after: the copy must have been published after this time.
    :param other_than_run: the copy must not have been made by the run with this id. For example, give the run whose
        copy the DAG read last. The latest copy is replaced only by a copy that has a later position, or that belongs to
        a later history of the source.
    :param source_conn_id: the value for ``{source}`` in ``target``.
    :param where: the condition that selected the copied rows. Empty: copies of all rows.
    :param columns: the requested columns. Empty: copies of all columns.
    :param storage_conn_id: connection to the object store, as for `SnapshotTaskGroup`.
    """

    template_fields: Sequence[str] = (
        "target",
        "table",
        "position",
        "published_after",
        "other_than_run",
        "source_conn_id",
        "where",
        "columns",
        "storage_conn_id",
    )

    def __init__(
        self,
        *,
        target: str,
        table: str,
        position: Any = "",
        published_after: Any = "",
        other_than_run: str | None = "",
        source_conn_id: str = "",
        where: str | None = "",
        columns: Sequence[str] | None = (),
        storage_conn_id: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.target = target
        self.table = table
        self.position = position
        self.published_after = published_after
        self.other_than_run = other_than_run
        self.source_conn_id = source_conn_id
        self.where = where
        self.columns = columns
        self.storage_conn_id = storage_conn_id

    def ask(self) -> Answer:
        wanted = self._wanted
        wanted.check()
        storage = storage_settings(self.storage_conn_id)
        return ask(self._lake, self.table, wanted, self.where or "", self.columns or (), storage)

    def trigger(self) -> PublishedTrigger:
        return PublishedTrigger(
            target=self._lake,
            table=self.table,
            wanted=asdict(self._wanted),
            where=self.where or "",
            columns=self.columns or (),
            storage_conn_id=self.storage_conn_id,
            poll_seconds=self.poke_interval,
            outage_seconds=self.outage_seconds,
        )

    @property
    def _wanted(self) -> WantedCopy:
        position, after = (str(as_of.text_of(value) or "") for value in (self.position, self.published_after))
        return WantedCopy(position, after, self.other_than_run or "")

    @property
    def _lake(self) -> str:
        if SOURCE_PLACEHOLDER in self.target and not self.source_conn_id:
            raise ConfigurationError(
                f"the target contains {SOURCE_PLACEHOLDER}, but the argument `source_conn_id` is empty",
                where="parameter target",
                hint="set the argument `source_conn_id`, or use a target without {source}",
            )
        return lake_of(self.target, self.source_conn_id)
