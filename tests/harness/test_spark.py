"""Spark's workers run this Python, with the packages of this environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cache import cache_directory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_run_this_interpreter(spark: SparkSession) -> None:
    def interpreter(_: int) -> tuple[str, str, str]:
        import pyspark

        return sys.executable, os.environ["NUMBA_CACHE_DIR"], pyspark.__file__

    found = set(spark.sparkContext.parallelize(range(2), 2).map(interpreter).collect())
    assert {python for python, _, _ in found} == {sys.executable}
    assert {Path(kernels).parent for _, kernels, _ in found} == {cache_directory() / "numba"}
    # What comes from a zip is compiled in every process.
    assert all(Path(module).is_file() for _, _, module in found)
