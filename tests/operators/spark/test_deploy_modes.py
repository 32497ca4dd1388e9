"""The arguments of `spark-submit` in each mode of docs/deploying.md, with the connections and properties of that page.

A script takes the place of spark-submit, and records its arguments.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import AirflowException

from airflow_provider_cdc.operators.spark.launchers.client import checks
from harness.airflow_home import ROOT
from tests.operators.spark import test_step
from tests.operators.spark.test_step import CONTEXT, PASSWORD, operator, seen
from tests.seeds import some

# The script, the run and the connections of those tests.
run, surroundings = test_step.run, test_step.surroundings

PAGE = (ROOT / "docs/deploying.md").read_text()


def section(title: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The connection and the properties that the page shows for a mode."""
    text = re.split(r"^## ", PAGE.partition(f"\n## {title}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    (connection,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    shown = re.findall(r"```python\nspark_conf = (.*?)```", text, re.DOTALL)
    return json.loads(connection), ast.literal_eval(shown[0]) if shown else {}


@pytest.mark.parametrize(
    ("title", "master", "more"),
    some(
        ("Local", "local[4]", []),
        ("Standalone", "spark://spark-master.example.com:7077", []),
        ("YARN", "yarn", ["--queue", "root.nightly"]),
        (
            "Kubernetes",
            "k8s://https://kubernetes.default.svc:443",
            ["--conf", "spark.kubernetes.namespace=spark"],
        ),
        plain=2,
    ),
)
def test_each_mode_is_submitted_as_the_page_says(
    title: str, master: str, more: list[str], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, properties = section(title)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(connection))
    if title == "Kubernetes":
        # In client mode the hook only asks whether it is there.
        monkeypatch.setattr(checks, "find_spec", lambda name: SimpleNamespace(origin=None))
        monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    if title == "YARN":
        monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    operator(run, conf=properties).execute(CONTEXT)
    argv, environment = seen(run)
    assert argv[argv.index("--master") + 1] == master
    assert argv[argv.index("--deploy-mode") + 1] == "client"
    pairs = list(pairwise(argv))
    if more:
        assert tuple(more) in pairs
    for name, value in properties.items():
        assert ("--conf", f"{name}={value}") in pairs
    assert argv[argv.index("--py-files") + 1].endswith("airflow_provider_cdc.zip")
    # On a cluster the executors' Python is the cluster's own business; the driver's never is.
    assert ("PYSPARK_PYTHON" in environment) == (title == "Local")
    assert environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert json.loads(environment["CDC_SOURCE"])["password"] == PASSWORD
    assert PASSWORD not in " ".join(argv)


@pytest.mark.parametrize("title", ["Standalone", "YARN", "Kubernetes"])
def test_cluster_mode_is_refused_in_each_of_them(title: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    connection, _ = section(title)
    connection["extra"]["deploy-mode"] = "cluster"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(connection))
    with pytest.raises(AirflowException, match="deploy mode of the connection is cluster"):
        operator(run).execute(CONTEXT)
    assert not Path(run.path("seen.json")).exists()


@pytest.mark.skipif(find_spec("kubernetes") is not None, reason="it is installed here")
def test_kubernetes_without_its_package_is_refused_with_what_to_install(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(section("Kubernetes")[0]))
    with pytest.raises(AirflowException, match="pip install apache-airflow-providers-cncf-kubernetes"):
        operator(run).execute(CONTEXT)
