"""Tasks of a real Airflow that are deferred while their job runs: their triggerer is killed, or stopped, and a user
ends the task."""

from __future__ import annotations

import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.acts import act_on
from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from harness.airflow_home import ROOT, AirflowHome
from harness.airflow_server import Components, running_airflow
from harness.jobs_service import APPLICATION, JobsService, RemoteJob, jobs_service
from harness.pipeline import published_counts
from harness.postgres_server import SUPERUSER, PostgresServer
from harness.s3_server import BUCKET, s3_environment
from harness.server_process import free_port
from tests.dags.site import Site
from tests.dags.test_lost_airflow import soon

DAG = "limited_shop"

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@dataclass
class Deferring:
    """An Airflow that defers by default, and the service with its jobs."""

    server: PostgresServer
    database: str
    lake: Storage
    airflow: Components
    site: Site
    service: JobsService

    def rows(self) -> Counter[Any]:
        return Counter(self.server.query("SELECT * FROM accounts", database=self.database))

    def begin(self) -> tuple[Storage, RemoteJob]:
        """Trigger a DAG run, and return its run and its job when the snapshot is deferred, and reads nothing more."""
        before = {*self.lake.folders("_runs")}
        status, answer = self.site.trigger(DAG)
        assert status == 200, answer
        (name,) = soon(lambda: {*self.lake.folders("_runs")} - before, "no run begins")
        run = self.lake.folder(name)
        soon(lambda: Run.exists(run) and effective.read(run).readers, "nothing is read")
        act_on(run, "pause", "ann")
        soon(lambda: self.snapshot["state"] == "deferred", "the task is not deferred")
        return run, [*self.service.jobs.values()][-1]

    @property
    def snapshot(self) -> Any:
        return next(one for one in self.tasks if one["task_id"].endswith("snapshot"))

    @property
    def tasks(self) -> list[Any]:
        name = self.site.last_run(DAG)["dag_run_id"]
        return list(self.site.ask(f"/api/v2/dags/{DAG}/dagRuns/{name}/taskInstances")[1]["task_instances"])

    def end(self, task: Any, state: str) -> None:
        name = self.site.last_run(DAG)["dag_run_id"]
        path = f"/api/v2/dags/{DAG}/dagRuns/{name}/taskInstances/{task['task_id']}"
        status, answer = self.site.ask(path, {"new_state": state}, "PATCH")
        assert status == 200, answer


@pytest.fixture(scope="module")
def deferring(postgres: PostgresServer, s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deferring]:
    folder = tmp_path_factory.mktemp("deferring")
    (folder / "dags").mkdir()
    (folder / "jobs").mkdir()
    shutil.copy(ROOT / "tests/dags/limited_shop.py", folder / "dags")
    database = "deferring"
    postgres.query(f"CREATE DATABASE {database} STRATEGY file_copy")
    postgres.query(
        "CREATE TABLE accounts (id int PRIMARY KEY, amount int); ALTER TABLE accounts REPLICA IDENTITY FULL;"
        "INSERT INTO accounts SELECT n, n FROM generate_series(1, 1500) n; ANALYZE",
        database=database,
    )
    source = {"conn_type": "cdc_postgres", "host": postgres.host, "port": postgres.port}
    with jobs_service(folder / "jobs", s3, sys.executable) as (service, url):
        role = "arn:aws:iam::000000000000:role/job"
        spark = {"application_id": APPLICATION, "execution_role_arn": role, "conn_id": "emr"}
        aws = {"endpoint_url": url, "region_name": "us-east-1"}
        airflow = AirflowHome(
            folder / "airflow",
            {
                "cdc_shop": {**source, "login": SUPERUSER, "schema": database},
                "spark_default": {"conn_type": "cdc_spark", "extra": spark},
                "emr": {"conn_type": "aws", "login": "AKIAEMR", "password": "s3cret-emr", "extra": aws},
            },
        )
        store = s3_environment(s3)
        target = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        airflow.environment |= {
            **store,
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
            # Otherwise, it takes longer until another triggerer takes over.
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "10",
            "TEST_TARGET": target,
        }
        airflow.prepare()
        port = free_port()
        with pytest.MonkeyPatch.context() as patch, running_airflow(airflow, port) as components:
            for name, value in store.items():
                patch.setenv(name, value)
            site = Site(f"http://127.0.0.1:{port}", components, "public", folder)
            site.log_in()
            site.wait_for_dag(DAG)
            yield Deferring(postgres, database, Storage(target), components, site, service)
    assert not postgres.drop_database(database)


def test_a_job_goes_on_when_its_triggerer_is_killed(deferring: Deferring) -> None:
    run, job = deferring.begin()
    expected = deferring.rows()
    deferring.airflow.kill("triggerer")
    deferring.server.query("UPDATE accounts SET amount = -1 WHERE id < 100", database=deferring.database)
    deferring.airflow.start("triggerer")
    act_on(run, "limit", "ann", max_rows_per_second=0)
    act_on(run, "resume", "ann")
    state, states = deferring.site.wait_for_end(DAG)
    assert state == "success", (states, job.output[-3000:])
    assert {one["try_number"] for one in deferring.tasks} == {1}
    assert [one.state for one in deferring.service.jobs.values()] == ["SUCCESS"]
    # The output of the driver is in the log of the task.
    logs = deferring.site.folder.glob("airflow/logs/**/task_id=snapshot/*")
    assert sum(file.read_text().count("snapshot: done in") for file in logs) == 1
    (copy,) = Run.load(run).result_of(ConsolidateResult).published.values()
    assert published_counts(copy)[1] == expected


def test_a_job_outlives_a_triggerer_that_is_stopped_and_ends_with_its_task(deferring: Deferring) -> None:
    _, job = deferring.begin()
    first = deferring.airflow._processes.pop("triggerer")
    first.terminate()
    first.wait()
    assert job.state == "RUNNING"
    deferring.airflow.start("triggerer")
    deferring.end(deferring.snapshot, "failed")
    soon(lambda: job.state == "CANCELLED", "the job goes on")
    assert deferring.site.wait_for_end(DAG)[0] == "failed"
