"""The last step: rewinds what was touched and publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.run import read_is_latest
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.operators.base import airflow_errors, say_skipped
from airflow_provider_cdc.operators.spark_step import SparkStepOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class ConsolidateOperator(SparkStepOperator):
    """Rewind every touched key to the initial position, and publish all tables at once.

    XComs: ``published``, the URI of each table's new files by the table's name; ``latest``, by the table's name,
    whether this run's copy is the one that ``_latest.json`` names (a newer one stays); ``skipped``, why each table that
    was named is not published, by its name; and ``counts``.
    """

    step = "consolidate"
    outputs = ("published", "skipped")

    def execute(self, context: Context) -> dict[str, Any]:
        found = super().execute(context)
        with airflow_errors():
            latest = read_is_latest(Storage(self.run_uri))
        for table in (name for name, is_latest in latest.items() if not is_latest):
            self.log.warning(
                "%s is published at %s, but a newer copy stays the latest: one of a later position (or, where "
                "positions do not tell, recorded later) was published before it. Readers of _latest.json see that one. "
                "If the source was set back on purpose, remove _latest.json and clear this task.",
                table,
                found["published"][table],
            )
        say_skipped(self.log, found["skipped"])
        return {**found, "latest": latest}
