"""A worker without the extra ``spark``: it parses DAGs, and says what to install before a step starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from harness.airflow_home import ROOT

BLOCK = """
import sys
from airflow.providers_manager import ProvidersManager

# The provider's description is on this machine, and Airflow reads it.
ProvidersManager().initialize_providers_configuration()
for name in [*sys.modules]:
    if name.startswith("airflow.providers.apache"):
        del sys.modules[name]

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j") or name.startswith("airflow.providers.apache"):
            raise ModuleNotFoundError(f"No module named {name!r}")

sys.meta_path.insert(0, NotInstalled())
"""


def say(code: str) -> str:
    """What a Python prints in which neither PySpark nor Airflow's provider for Spark is installed."""
    spark = {"conn_type": "spark", "host": "local[2]"}
    environment = {**os.environ, "AIRFLOW_CONN_SPARK": json.dumps(spark), "AIRFLOW__CDC__TARGETS": "file:///lake"}
    command = [sys.executable, "-c", BLOCK + code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_all_dags_are_parsed() -> None:
    said = say("""
import pkgutil
from importlib import import_module

from airflow.dag_processing.dagbag import DagBag

for part in ("operators", "hooks", "links", "notifications", "sensors", "task_groups", "triggers"):
    package = import_module(f"airflow_provider_cdc.{part}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        import_module(module.name)
bag = DagBag("dags")
print(bag.import_errors)
print(*sorted(bag.dags))
""")
    errors, dags = said.splitlines()[-2:]
    assert errors == "{}"
    assert {*dags.split()} >= {"control", "copy_tables", "mysql_snapshot", "postgres_snapshot"}


@pytest.mark.slow
def test_preflight_says_what_to_install_and_asks_no_worker_that_runs_no_step() -> None:
    said = say("""
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
launcher = open_launcher("spark", {})
check_spark(launcher, here=False)
launcher.check_reachable()
try:
    check_spark(launcher)
except ConfigurationError as error:
    print(error)
""")
    assert "spark_conn_id 'spark': the packages for Spark are not installed on this worker" in said
    assert "pip install 'airflow-provider-cdc[spark]'" in said
