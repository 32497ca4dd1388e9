"""The third step: reads all chunks of all tables."""

from __future__ import annotations

from airflow_provider_cdc.operators.spark.step import SparkStepOperator


class SnapshotOperator(SparkStepOperator):
    """Read every chunk of every table into files below the run's folder.

    XComs: ``counts`` and ``snapshot_upper``, a position at or after everything that the step read.
    """

    step = "snapshot"
    outputs = ("snapshot_upper",)
