"""The oldest and the newest supported Airflow, each with the packages of its day and another Python than the tests: how
it reads the package's DAGs, and copies that they make.

``dev/oldest.txt`` and ``dev/newest.txt`` list the versions of packages that were available on that day, except that
``oldest.txt`` has the oldest release of Spark that platforms offer. The wheel is installed with the requirements that
it declares; these files only limit the versions. To update them:

    uv pip compile pyproject.toml --extra spark --extra postgres --extra openlineage --universal \
        --python-version 3.11 --exclude-newer DATE --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        -o dev/newest.txt
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.own_environment import install, interpreter, make_environment, run

ROOT = Path(__file__).parents[2]
LOOK = Path(__file__).with_name("look.py")
OF_THE_CHECKOUT = ("PYTHONPATH", "AIRFLOW_HOME", "SPARK_HOME", "NUMBA_CACHE_DIR")
ENDS = [("oldest", interpreter("3.12")), ("newest", interpreter("3.14", "3.13"))]
"""All other tests run on one Python. Where this machine has others, the ends run on these."""
EXAMPLES = ("every_shop", "nightly_copy", "every_ten_seconds", "waiting")
ACCOUNTS = 20_000
CHECK = """
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
try:
    check_spark(open_launcher("spark_default", {}))
except ConfigurationError as error:
    print(type(error).__name__, error)
"""
PAGES = ("README.md", "docs/dag-authors.md", "docs/filters.md")
DAGS = {
    *("copy_tables", "mysql_snapshot", "postgres_snapshot", "nightly", "control"),
    *("every_shop", "nightly_copy", "every_ten_seconds", "waiting"),
    *("report", "shown_shop_to_lake", "shown_report", "shown_every_shop", "shown_after_the_copy", "shown_open_orders"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: pytest keeps the last three of those, and an environment has two gigabytes.
    with tempfile.TemporaryDirectory(prefix="cdc-end-") as directory:
        yield Path(directory)


class Installed:
    """The wheel in its own environment, with an Airflow that has the shipped DAGs. Spark is installed by `add_spark`.

    :param python: the Python of the environment.
    :param connections: JSON fields by id.
    """

    def __init__(self, folder: Path, end: str, python: str, connections: dict[str, dict[str, Any]]) -> None:
        self._pins = ROOT / f"dev/{end}.txt"
        self._folder = folder
        self._wheel = _build(folder)
        wanted = f"{self._wheel}[openlineage,postgres]", "--constraint", self._pins
        self._python = make_environment(folder, *wanted, interpreter=python)
        self.home = folder / "airflow"
        self.lake = folder / "lake"
        self.lineage = folder / "lineage.jsonl"
        (shipped,) = (self._python.parent.parent / "lib").glob("python*/site-packages/airflow_provider_cdc/dags")
        shutil.copytree(shipped, self.home / "dags")
        spark = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        lineage = {"type": "file", "log_file_path": str(self.lineage), "append": True}
        self._environment = {
            **{name: value for name, value in os.environ.items() if name not in OF_THE_CHECKOUT},
            **{name: value for name, value in spark_environment().items() if name == "JAVA_HOME"},
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CDC__TARGETS": folder.as_uri(),
            "AIRFLOW__OPENLINEAGE__NAMESPACE": "night",
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(lineage),
            "PATH": f"{self._python.parent}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
            **{
                f"AIRFLOW_CONN_{name.upper()}": json.dumps(fields)
                for name, fields in {"spark_default": spark, **connections}.items()
            },
        }
        pinned = dict(line.split(" ;")[0].strip().split("==") for line in self._pins.read_text().splitlines())
        assert pinned["apache-airflow"] in self.airflow("version").split()
        self.airflow("db", "migrate")

    def add_spark(self) -> None:
        install(self._python, self._folder, f"{self._wheel}[spark]", "--constraint", self._pins)

    def airflow(self, *arguments: str) -> str:
        return self.run("-m", "airflow", *arguments)

    def run(self, *arguments: str | Path, **more: str) -> str:
        # `python -m` would also import the package from the checkout, if that were the present folder.
        return run(self._python, *arguments, env=self._environment | more, cwd=self.home)

    def copy(self, dag_id: str, **conf: Any) -> str:
        """Run a DAG to its end, and return its log."""
        given = {"target": self.lake.as_uri(), **conf}
        said = self.airflow("dags", "test", dag_id, "--conf", json.dumps(given))
        assert "state=success" in said or "state:success" in said, said[-8000:]
        return said


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize(("end", "python"), ENDS, ids=[f"{end} on {Path(python).name}" for end, python in ENDS])
def test_a_plain_install_knows_our_dags_and_runs_them(
    end: str, python: str, folder: Path, mysql: MysqlServer, schema: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, word VARCHAR(20))")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    installed = Installed(folder, end, python, dict.fromkeys(("cdc_mysql", "shop_eu", "shop_us"), source))
    asked = {"tables": [f"{schema}.*"]}

    _finds_no_fault(installed, folder / "looked_at")

    assert "pip install 'airflow-provider-cdc[spark]'" in installed.run("-c", CHECK)
    installed.add_spark()
    assert "ConfigurationError" not in installed.run("-c", CHECK)

    said = installed.copy("copy_tables", source_conn_id="cdc_mysql", plan_only=True, **asked)
    assert "Plan (nothing is copied" in said
    assert not installed.lake.exists()

    installed.copy("mysql_snapshot", **asked)
    latest = json.loads((installed.lake / f"{schema}.t/_latest.json").read_text())
    assert latest["rows"] == 3
    _lineage_is_told(installed, mysql, schema, latest)

    _copies_while_rows_change(installed, mysql, schema)

    mysql.query(f"DROP TABLE {schema}.accounts")
    shutil.copy(ROOT / "tests/dags/every_shop.py", installed.home / "dags")
    installed.copy("every_shop", **asked)
    for name in ("shop_eu", "shop_us"):
        assert json.loads((installed.lake / f"{name}/{schema}.t/_latest.json").read_text())["rows"] == 3


def _copies_while_rows_change(installed: Installed, mysql: MysqlServer, schema: str) -> None:
    """Each transaction moves money between two accounts, so a copy of one moment has the sum of all moments."""
    mysql.query(f"CREATE TABLE {schema}.accounts (id INT PRIMARY KEY, balance INT NOT NULL)")
    rows = ", ".join(f"({number}, 100)" for number in range(ACCOUNTS))
    mysql.query(f"INSERT INTO {schema}.accounts VALUES {rows}")
    stop = threading.Event()

    def transfer() -> None:
        chance = random.Random(7)
        with mysql.connect(autocommit=False) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                for account, amount in zip(chance.sample(range(ACCOUNTS), 2), (1, -1), strict=True):
                    change = f"UPDATE {schema}.accounts SET balance = balance + %s WHERE id = %s"
                    cursor.execute(change, (amount, account))
                connection.commit()

    with ThreadPoolExecutor(1) as pool:
        transferring = pool.submit(transfer)
        try:
            said = installed.copy("mysql_snapshot", tables=[f"{schema}.accounts"], chunk_rows=500)
        finally:
            stop.set()
        transferring.result()
    latest = json.loads((installed.lake / f"{schema}.accounts/_latest.json").read_text())
    copied = pq.read_table(latest["path"].removeprefix("file://")).to_pydict()
    assert sorted(copied["id"]) == [*range(ACCOUNTS)]
    assert sum(copied["balance"]) == 100 * ACCOUNTS
    assert re.search(r"consolidate: [1-9]\d* files? rewritten", said), "no row changed before it was read"


def _finds_no_fault(installed: Installed, folder: Path) -> None:
    """With all DAGs that we ship or show in one folder: no errors, and nothing that goes away with the next Airflow."""
    shutil.copytree(installed.home / "dags", folder)
    for name in EXAMPLES:
        shutil.copy(ROOT / f"tests/dags/{name}.py", folder)
    for page in PAGES:
        snippets = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        for number, snippet in enumerate(one for one in snippets if "with DAG(" in one):
            # Some have the names of examples.
            shown = re.sub(r'DAG\("(\w+)"', r'DAG("shown_\1"', snippet)
            (folder / f"{Path(page).stem.replace('-', '_')}_{number}.py").write_text(shown)
    (nightly,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/nightly.md").read_text(), re.DOTALL)
    (folder / "nightly.yaml").write_text(nightly)
    needed = {
        "TEST_BEGIN": "2026-01-01T00:00:00+00:00",
        "TEST_CONNECTION": "shop_eu",
        "TEST_SCHEMA": "shop",
        "TEST_STANDING_SLOT": "",
        "TEST_TABLE": "shop.orders",
        "TEST_TARGET": "s3://lake/raw",
        "TEST_TOLD": "/nowhere",
    }
    said = installed.run(LOOK, folder, **needed)
    found = json.loads(next(line for line in said.splitlines() if line.startswith('{"dags":')))
    assert found["problems"] == []
    assert set(found["dags"]) == DAGS


def _lineage_is_told(installed: Installed, mysql: MysqlServer, schema: str, latest: dict[str, Any]) -> None:
    """By Airflow's OpenLineage provider: the table, its asset, the columns, the rows, the position."""
    events = [json.loads(line) for line in installed.lineage.read_text().splitlines()]
    ended = [one for one in events if one["eventType"] == "COMPLETE" and one["outputs"]]
    (copied,) = (one for one in ended if one["job"]["name"] == "mysql_snapshot.consolidate")
    ((source,), (asset,)) = copied["inputs"], copied["outputs"]
    assert (source["namespace"], source["name"]) == (f"mysql://{mysql.host}:{mysql.port}", f"{schema}.t")
    assert (asset["namespace"], asset["name"]) == ("x-cdc://cdc_mysql", f"{schema}/t")
    for dataset in (source, asset):
        columns = [(one["name"], one["type"]) for one in dataset["facets"]["schema"]["fields"]]
        assert columns == [("id", "int"), ("word", "varchar(20)")]
        assert dataset["facets"]["version"]["datasetVersion"] == latest["position"]
    assert asset["outputFacets"]["outputStatistics"]["rowCount"] == 3
    (folder,) = asset["facets"]["symlinks"]["identifiers"]
    assert (folder["namespace"], folder["name"]) == ("file", f"{installed.lake}/{schema}.t")


def _build(folder: Path) -> Path:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    assert version("airflow-provider-cdc") in wheel.name
    return wheel
