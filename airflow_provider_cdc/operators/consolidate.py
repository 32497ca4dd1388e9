"""The last step: rewinds what was touched and publishes."""

from __future__ import annotations

from airflow_provider_cdc.operators.spark_step import SparkStepOperator


class ConsolidateOperator(SparkStepOperator):
    """Rewind every touched key to the initial position, and publish all tables at once.

    XComs: ``published``, the URI of each table's new files by the table's name; and ``counts``.
    """

    step = "consolidate"
    outputs = ("published",)
