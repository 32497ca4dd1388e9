"""The fourth step: reads the changes made meanwhile."""

from __future__ import annotations

from airflow_provider_cdc.operators.spark.step import SparkStepOperator


class ExtractDeltaOperator(SparkStepOperator):
    """Read the net change between the initial position and ``snapshot_upper`` from the log.

    XComs: ``counts``.
    """

    step = "extract_delta"
