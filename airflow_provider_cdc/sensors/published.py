"""Waits for a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow_provider_cdc.core.positions import as_of
from airflow_provider_cdc.core.storage.target import SOURCE_PLACEHOLDER, lake_of
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.base import TargetOperator
from airflow_provider_cdc.sensors.waiting import WaitingSensor
from airflow_provider_cdc.triggers.published import PublishedTrigger, Wanted, ask
from airflow_provider_cdc.triggers.waiting import Answer


class PublishedSensor(TargetOperator, WaitingSensor):
    """Wait until a table's latest copy is the one that is wanted, and return what is told of it: ``table``, ``run_id``,
    ``path``, ``position``, ``rows``, ``published_at``.

    For a DAG that others publish for::

        PublishedSensor(
            task_id="orders", target="s3://lake/raw", table="shop.orders", position="{{ data_interval_end }}"
        )

    With several conditions, all of them have to hold; without any, any copy will do.

    :param target: the folder that is published in; ``{source}`` in it stands for ``source_conn_id``.
    :param table: the table, as ``schema.table``.
    :param position: what the copy must have, at least: a GTID set or an LSN; or a time: all that was committed up to
        it. The copy was asked to be exact as of that time or a later one; or its run was due then, by Airflow's clock.
    :param published_after: the time after which it was published.
    :param other_than_run: id of a run whose copy it must not be, such as the one that was read last. A latest copy only
        ever gives way to one of a later position, or of a later history of the source.
    :param source_conn_id: what ``{source}`` stands for.
    :param where: the condition that a part of the table is copied by; empty: all rows are.
    :param columns: the columns that were asked for; none: all were.
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

    def ask(self) -> Answer:
        wanted = self._wanted
        wanted.check()
        return ask(self._lake, self.table, wanted, self.where or "", self.columns or ())

    def trigger(self) -> PublishedTrigger:
        return PublishedTrigger(
            target=self._lake,
            table=self.table,
            wanted=asdict(self._wanted),
            where=self.where or "",
            columns=self.columns or (),
            poll_seconds=self.poke_interval,
            outage_seconds=self.outage_seconds,
        )

    @property
    def _wanted(self) -> Wanted:
        position, after = (str(as_of.text_of(value) or "") for value in (self.position, self.published_after))
        return Wanted(position, after, self.other_than_run or "")

    @property
    def _lake(self) -> str:
        if SOURCE_PLACEHOLDER in self.target and not self.source_conn_id:
            raise ConfigurationError(
                f"it has {SOURCE_PLACEHOLDER}, and source_conn_id is empty",
                where="parameter target",
                hint="give source_conn_id, or the whole target",
            )
        return lake_of(self.target, self.source_conn_id)
