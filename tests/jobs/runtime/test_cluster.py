"""On a real cluster, executors without this package get it as a zip file, and need no Airflow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime.driver import package_zip, to_environment
from harness.environment import spark_environment
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.jobs.cluster import Cluster, cluster, environment_without_us

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def workers(work: Path) -> Iterator[Cluster]:
    os.environ.update(spark_environment())
    with cluster(work, environment_without_us(work / "cache")) as running:
        yield running


@pytest.fixture(scope="module")
def shipped(work: Path) -> Path:
    return package_zip(work)


@pytest.mark.long
def test_executors_run_the_shipped_package_without_airflow_and_compile_once(
    workers: Cluster, shipped: Path, work: Path
) -> None:
    found = []
    for _ in range(2):
        done = workers.submit(ROOT / "tests/jobs/probe_app.py", py_files=shipped)
        assert done.returncode == 0, done.stderr[-3000:]
        found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    first, second = found
    assert first["airflow"] == second["airflow"] == []
    assert first["init"].endswith("airflow_provider_cdc.zip/airflow_provider_cdc/__init__.py")
    assert first["package"] == second["package"]
    assert all(module.startswith(f"{work}/cache/airflow-provider-cdc/shipped/") for module in first["modules"])
    assert (first["hits"], first["misses"]) == (0, 1)
    assert (second["hits"], second["misses"]) == (1, 0)


@pytest.mark.long
def test_a_run_on_a_cluster_publishes_the_initial_position(
    workers: Cluster, shipped: Path, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    mysql.query(f"CREATE TABLE {schema}.visits (note VARCHAR(20))")
    for table in ("orders", "visits"):
        columns = "(id, note)" if table == "orders" else "(note)"
        rows = ",".join(f"({n}, 'row {n}')" if table == "orders" else f"('row {n % 7}')" for n in range(500))
        mysql.query(f"INSERT INTO {schema}.{table} {columns} VALUES {rows}")
    settings = settings_of(mysql)
    run = Pipeline(None, settings, tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=60)
    run.record()
    expected = {
        name: sorted(mysql.query(f"SELECT * FROM {schema}.{name}"))  # the state at the initial position
        for name in ("orders", "visits")
    }
    for step in ("snapshot", "extract_delta", "consolidate"):
        done = workers.submit(
            ROOT / f"spark_apps/{step}.py",
            "--run-uri",
            run.run.uri,
            py_files=shipped,
            more=to_environment(settings),
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert f"{step}: done in" in done.stdout
        assert step in Run.load(run.run).steps
        if step == "snapshot":
            # Rows that no chunk returned, rows to be taken out, a row to be put back as it was.
            mysql.query(f"DELETE FROM {schema}.orders WHERE id < 50")
            mysql.query(f"UPDATE {schema}.orders SET note = 'changed' WHERE id = 77")
            mysql.query(f"INSERT INTO {schema}.orders VALUES (1000, 'new')")
            extend_the_window(run, settings)
    tables = Run.load(run.run).result_of(ConsolidateResult).published
    for name, own in expected.items():
        assert sorted(published(tables[f"{schema}.{name}"])[1]) == own


def extend_the_window(run: Pipeline, settings: object) -> None:
    """Move the bound on the reads behind what was just written: a larger window must give the same result."""
    bound = run.source.bound_reads()
    entries = {name: run.run.read_json(name) for name in run.run.files("ledger")}
    ((name, record),) = [(name, entry) for name, entry in entries.items() if entry["kind"] == "ReadsEnded"]
    record["entry"]["result"].update(snapshot_upper=str(bound.upper), log_end=bound.log_end)
    run.run.write_json(name, record)


@pytest.mark.long
def test_a_terminal_error_in_an_executor_ends_the_app_with_its_message_and_no_trace(
    workers: Cluster, shipped: Path, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.days (id INT, day DATE, PRIMARY KEY (id, day))")
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute(f"INSERT INTO {schema}.days VALUES (1, '0000-00-00')")
        connection.commit()
    settings = settings_of(mysql)
    run = Pipeline(None, settings, tmp_path.as_uri(), [f"{schema}.*"])
    run.record()
    done = workers.submit(
        ROOT / "spark_apps/snapshot.py", "--run-uri", run.run.uri, py_files=shipped, more=to_environment(settings)
    )
    assert done.returncode == 2
    assert f"snapshot failed: ValueNotRepresentable: [CDC-1050] {schema}.days" in done.stdout
    assert "\tat " not in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    error = Storage(run.run.uri).read_json("errors/snapshot.json")
    assert (error["type"], error["terminal"]) == ("ValueNotRepresentable", True)
    assert error["message"].startswith(f"[CDC-1050] {schema}.days")
