"""The Spark steps `snapshot` (reads all chunks of all tables) and `extract_delta` (reads the changes meanwhile)."""

from __future__ import annotations

from airflow_provider_cdc.operators.spark.step import SparkStepOperator


class SnapshotOperator(SparkStepOperator):
    """Read every chunk of every table into files below the run's folder.

    XComs: ``counts`` and ``snapshot_upper``, a position at or after everything that the step read.
    """

    step = "snapshot"
    outputs = ("snapshot_upper",)


# The fourth step: reads the net change of the window from the log.


class ExtractDeltaOperator(SparkStepOperator):
    """Read the net change between the initial position and ``snapshot_upper`` from the log.

    XComs: ``counts``.
    """

    step = "extract_delta"
