"""The oldest and the newest Airflow that we claim to run on, each as it was on its day: one copy by the shipped DAG.

``dev/oldest.txt`` and ``dev/newest.txt`` hold what an index had to offer on that day. The wheel is installed by what it
declares itself, and they only say which versions there were. To pin anew:

    uv pip compile pyproject.toml --extra postgres --universal --python-version 3.11 --exclude-newer DATE \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links -o dev/newest.txt
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.environment import spark_environment
from harness.mysql_server import MysqlServer

ROOT = Path(__file__).parents[2]
OF_THE_CHECKOUT = ("PYTHONPATH", "AIRFLOW_HOME", "SPARK_HOME", "NUMBA_CACHE_DIR")


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: pytest keeps the last three of those, and an environment has two gigabytes.
    with tempfile.TemporaryDirectory(prefix="cdc-end-") as directory:
        yield Path(directory)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("end", ["oldest", "newest"])
def test_a_plain_install_runs_the_shipped_dag(end: str, folder: Path, mysql: MysqlServer, schema: str) -> None:
    pins = ROOT / f"dev/{end}.txt"
    python = _install(folder, pins)
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, word VARCHAR(20))")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    home = folder / "airflow"
    (shipped,) = (python.parent.parent / "lib").glob("python*/site-packages/airflow_provider_cdc/dags")
    shutil.copytree(shipped, home / "dags")
    spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    environment = {
        **{name: value for name, value in os.environ.items() if name not in OF_THE_CHECKOUT},
        **{name: value for name, value in spark_environment().items() if name == "JAVA_HOME"},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_CDC_MYSQL": json.dumps(source),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(spark),
        "AIRFLOW__CDC__TARGETS": folder.as_uri(),
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    pinned = dict(line.split(" ;")[0].strip().split("==") for line in pins.read_text().splitlines())
    assert pinned["apache-airflow"] in _run(python, "-m", "airflow", "version", env=environment).split()
    _run(python, "-m", "airflow", "db", "migrate", env=environment)
    asked = {"tables": [f"{schema}.*"], "target": (folder / "lake").as_uri()}
    said = _run(python, "-m", "airflow", "dags", "test", "mysql_snapshot", "--conf", json.dumps(asked), env=environment)
    latest = folder / f"lake/{schema}.t/_latest.json"
    assert latest.exists(), said
    assert json.loads(latest.read_text())["rows"] == 3


def _install(folder: Path, pins: Path) -> Path:
    """The wheel, with what it declares, in an environment of its own."""
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    assert version("airflow-provider-cdc") in wheel.name
    home = folder / "venv"
    _run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin/python"
    wanted = [f"{wheel}[postgres]", "--constraint", str(pins)]
    by_uv: list[str | Path] = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        *wanted,
    ]
    if subprocess.run(by_uv, capture_output=True, check=False).returncode != 0:
        # An index may be configured for pip alone.
        _run(python, "-m", "ensurepip")
        _run(python, "-m", "pip", "install", "--quiet", *wanted)
    return python


def _run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-8000:]
    return said
