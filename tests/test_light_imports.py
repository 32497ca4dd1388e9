"""Airflow parses DAG files continually, so what they import loads no library that takes long to load."""

from __future__ import annotations

import subprocess
import sys

import pytest

AIRFLOW = (
    "assets control get_provider_info hooks.catalog hooks.storage nightly operators.clean operators.consolidate "
    "operators.lock_and_record operators.preflight operators.release operators.spark.step operators.verify "
    "sensors.position sensors.published task_groups.snapshot triggers.waiting verify"
).split()
SOURCES = ["hooks.mysql", "hooks.postgres"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "libraries"),
    [(AIRFLOW, {"numba", "pyarrow", "pyiceberg", "pyspark"}), (SOURCES, {"numba", "pyiceberg", "pyspark"})],
    ids=["Airflow", "sources"],
)
def test_modules_load_no_library_that_they_need_later(modules: list[str], libraries: set[str]) -> None:
    imports = ", ".join(f"airflow_provider_cdc.{name}" for name in modules)
    code = f"import sys, {imports}; print(*sorted({libraries!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
