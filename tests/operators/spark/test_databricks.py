"""Jobs on Databricks. The service speaks its API, and the hook is that of Airflow's provider. What is the same for all
platforms is tested in ``test_emr_serverless``."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, SparkFailed
from airflow_provider_cdc.hooks.databricks import RequestRefused
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobGoneError, JobSpec, Phase, Platform
from airflow_provider_cdc.hooks.spark import CdcSparkHook, open_platform
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
from airflow_provider_cdc.triggers import spark_job
from airflow_provider_cdc.triggers.spark_job import SparkJobTrigger
from harness.databricks_service import RELEASE, TOKEN, DatabricksService, databricks_service
from harness.mysql_server import MysqlServer
from harness.own_environment import run
from tests.operators.spark.test_emr_serverless import (
    Remote,
    event_of,
    executed,
    secrets_in_processes,
    soon,
    start_and_kill_a_worker,
    waiting_run,
)
from tests.operators.spark.test_step import CONTEXT

CLUSTER = {"spark_version": RELEASE, "node_type_id": "m6i.large", "num_workers": 2}

pytestmark = pytest.mark.timeout(1800)


def connect(monkeypatch: pytest.MonkeyPatch, service: DatabricksService, token: str = TOKEN, **more: Any) -> None:
    """Create the connections to Spark and to the workspace, and to a database."""
    extra = {"launcher": "databricks", "conn_id": "workspace", "cluster": CLUSTER, **more}
    workspace = {"conn_type": "databricks", "host": service.url, "port": int(service.url.rpartition(":")[2])}
    workspace |= {"schema": "http", "password": token}
    other = {"conn_type": "mysql", "host": service.url, "password": token}
    for name, fields in (
        ("SPARK", {"conn_type": "cdc_spark", "extra": extra}),
        ("WORKSPACE", workspace),
        ("OTHER", other),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatabricksService]:
    """A workspace whose clusters do not start."""
    with databricks_service(tmp_path, "", sys.executable) as service:
        service.held = True
        connect(monkeypatch, service)
        yield service


def spec(tmp_path: Path, token: str = "t0k3n") -> JobSpec:
    folder = tmp_path.as_uri()
    arguments = ["--token", token, "--nonce", "n0nce"]
    name, deadline = f"dag.snapshot.run-{token}", int(time.time()) + 600
    package = f"{folder}/airflow_provider_cdc.zip"
    return JobSpec(name, token, f"{folder}/snapshot.py", package, arguments, {"spark.log.level": "WARN"}, deadline)


def test_a_job_is_one_run_on_a_new_cluster_in_dedicated_mode(
    service: DatabricksService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = {**CLUSTER, "policy_id": "P1", "spark_conf": {"spark.task.maxFailures": "8"}}
    connect(monkeypatch, service, cluster=json.dumps(cluster), requirements="/Volumes/lake/python/requirements.txt")
    platform, asked = open_platform("spark"), spec(tmp_path)
    job = platform.start(asked)
    assert platform.start(asked) == job
    request = service.jobs[job].request
    assert 590 < request.pop("timeout_seconds") <= 600
    encrypted = {"spark.io.encryption.enabled": "true"}
    assert request == {
        "run_name": "dag.snapshot.run-t0k3n",
        "idempotency_token": "t0k3n",
        "tasks": [
            {
                "task_key": "cdc",
                "new_cluster": {
                    **cluster,
                    "data_security_mode": "SINGLE_USER",
                    "spark_conf": {**encrypted, "spark.task.maxFailures": "8", "spark.log.level": "WARN"},
                },
                "spark_python_task": {
                    "python_file": (tmp_path / "databricks.py").as_uri(),
                    "parameters": [asked.package, asked.app, "--token", "t0k3n", "--nonce", "n0nce"],
                },
                "libraries": [{"requirements": "/Volumes/lake/python/requirements.txt"}],
            }
        ],
    }
    assert platform.arguments(job)[-4:] == ["--token", "t0k3n", "--nonce", "n0nce"]
    assert platform.state(job).phase is Phase.RUNNING
    # A task that is being killed cannot ask Airflow for a connection.
    monkeypatch.delenv("AIRFLOW_CONN_WORKSPACE")
    platform.cancel(job)
    platform.cancel(job)
    assert service.jobs[job].state == "CANCELLED"


@pytest.mark.parametrize(
    ("state", "details", "phase", "shown"),
    [
        ("SCHEDULED", "", Phase.RUNNING, ""),
        ("RUNNING", "", Phase.RUNNING, ""),
        ("SUCCESS", "", Phase.SUCCEEDED, ""),
        ("FAILED", "Cluster 1 was terminated", Phase.FAILED, "is FAILED: Cluster 1 was terminated"),
        ("FAILED", "timeout", Phase.FAILED, "is TIMEDOUT"),
        ("CANCELLED", "", Phase.FAILED, "is CANCELED: without a reason"),
    ],
)
def test_states(state: str, details: str, phase: Phase, shown: str, service: DatabricksService, tmp_path: Path) -> None:
    platform = open_platform("spark")
    job = platform.start(spec(tmp_path))
    service.jobs[job].state, service.jobs[job].details = state, details
    found = platform.state(job)
    assert found.phase is phase
    assert shown in found.details
    assert (f"/#job/1/run/{job}" in found.hint) == (phase is Phase.FAILED)


def test_a_run_that_is_no_longer_kept_is_gone(service: DatabricksService) -> None:
    platform = open_platform("spark")
    for ask in (platform.state, platform.arguments):
        with pytest.raises(JobGoneError):
            ask("7")
    platform.cancel("7")


def test_a_proxy_that_answers_with_404_does_not_end_a_job(service: DatabricksService, tmp_path: Path) -> None:
    platform = open_platform("spark")
    job = platform.start(spec(tmp_path))
    service.behind_proxy = True
    for ask in (platform.state, platform.arguments, platform.cancel):
        with pytest.raises(RequestRefused, match="HTTP status 404"):
            ask(job)


@pytest.mark.slow
def test_an_active_run_is_found_by_its_token_among_many(service: DatabricksService, tmp_path: Path) -> None:
    platform = open_platform("spark")
    first, *others = [platform.start(spec(tmp_path, f"token-{number}-end")) for number in range(60)]
    assert platform.find("token-0-end") == first
    assert platform.find("token-end") == ""
    platform.cancel(first)
    assert platform.find("token-0-end") == ""
    assert platform.find("token-59-end") == others[-1]


@pytest.mark.slow
def test_a_lost_answer_and_throttling_start_no_second_job(service: DatabricksService, tmp_path: Path) -> None:
    platform: Platform = open_platform("spark")
    service.lost_answers, service.refusals = 1, 1
    job = platform.start(spec(tmp_path))
    assert (service.lost_answers, service.refusals) == (0, 0)
    assert [*service.jobs] == [job]


def test_a_definition_that_databricks_refuses_is_a_mistake_of_the_connection(
    service: DatabricksService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, service, cluster={**CLUSTER, "num_wokers": 2})
    with pytest.raises(ConfigurationError, match=r"Databricks refuses the job: .*num_wokers"):
        open_platform("spark").start(spec(tmp_path))
    connect(monkeypatch, service, token="another")
    with pytest.raises(ConfigurationError, match="Invalid access token"):
        open_platform("spark").start(spec(tmp_path))
    assert not service.jobs


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, ""),
        ({"token": "another"}, "the workspace 127.0.0.1 cannot be used: PERMISSION_DENIED"),
        ({"requirements": "s3://lake/requirements.txt"}, "Databricks cannot read s3://lake/requirements.txt"),
        ({"cluster": {**CLUSTER, "policy_id": "P1"}}, "Cluster policy P1 cannot be found"),
        ({"cluster": {"num_workers": 0}}, "it has no spark_version"),
        ({"cluster": {**CLUSTER, "spark_version": "17.9"}}, "the workspace has no spark_version 17.9"),
        ({"cluster": {**CLUSTER, "spark_version": "16.4.x-scala2.12"}}, "Apache Spark 3.5.2, .* has no Spark 4"),
        ({"cluster": {**CLUSTER, "data_security_mode": "USER_ISOLATION"}}, "only in dedicated access mode"),
        ({"cluster": {**CLUSTER, "node_type_id": "i3"}}, "the workspace has no node type i3"),
        ({"cluster": {**CLUSTER, "node_type_id": "m4.large"}}, "may not be encrypted"),
        ({"cluster": {**CLUSTER, "driver_node_type_id": "m4.large"}}, "may not be encrypted"),
        ({"cluster": {"spark_version": RELEASE, "instance_pool_id": "p", "num_workers": 2}}, "may not be encrypted"),
        ({"cluster": {**CLUSTER, "node_type_id": "m4.large", "num_workers": 0}}, ""),
        (
            {
                "cluster": {
                    **CLUSTER,
                    "node_type_id": "m4.large",
                    "spark_conf": {"spark.network.crypto.enabled": "true"},
                }
            },
            "",
        ),
        ({"cluster": "{"}, "it is not a JSON object"),
        ({"cluster": None}, "it has no cluster"),
        ({"conn_id": None}, "it has no conn_id"),
        ({"conn_id": "nothing"}, "no connection 'nothing'"),
        ({"conn_id": "other"}, "the connection 'other' is of the type mysql"),
        ({"cluster": {**CLUSTER, "spark_conf": None}}, ""),
        ({"cluster": {**CLUSTER, "spark_conf": ["a=b"]}}, "cluster.spark_conf: it is not a JSON object"),
        ({"cluster": {**CLUSTER, "node_type_id": ["i3"]}}, "the workspace has no node type"),
        ({"archive": "s3://lake/packages.tar.gz"}, "does not use these fields: archive"),
        ({"limit_minutes": "0"}, "limit_minutes is '0'"),
    ],
)
def test_the_check_finds_what_no_job_can_start_with(
    more: dict[str, Any], problem: str, service: DatabricksService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, service, **more)
    works, message = CdcSparkHook("spark").test_connection()
    assert works == (not problem), message
    if problem:
        with pytest.raises(ConfigurationError, match=problem):
            check_spark(open_launcher("spark", {}))
    assert not service.jobs


@pytest.mark.slow
def test_only_a_refusal_that_lasts_fails_the_checks_for_good(service: DatabricksService) -> None:
    service.refusals = 3
    with pytest.raises(SparkFailed, match="API requests to Databricks failed 3 times"):
        check_spark(open_launcher("spark", {}))
    assert not service.refusals
    check_spark(open_launcher("spark", {}))


def test_without_the_provider_the_check_names_the_extra(
    service: DatabricksService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.databricks.hooks.databricks", None)
    (problem,) = open_platform("spark").check(here=True)
    assert "airflow-provider-cdc[databricks]" in problem.hint
    # Another machine may have it.
    assert not open_platform("spark").check(here=False)


class OnDatabricks(Remote):
    service: DatabricksService

    def connect(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        connect(monkeypatch, self.service, **more)


@pytest.fixture
def made(mysql: MysqlServer, schema: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with (
        databricks_service(tmp_path, s3, sys.executable) as service,
        waiting_run(mysql, schema, s3, monkeypatch) as waiting,
    ):
        found = OnDatabricks(service, *waiting)
        found.connect(monkeypatch)
        yield found


@pytest.mark.slow
def test_one_cluster_executes_the_steps_of_three_tasks(made: Remote, capfd: pytest.CaptureFixture[str]) -> None:
    arguments: Any = {"source_conn_id": "shop", "run_uri": made.run.uri, "spark_conn_id": "spark"}
    with DAG("my_dag") as dag:
        tasks = [
            kind(task_id=kind.step, shared_app_seconds=60.0, **arguments)
            for kind in (SnapshotOperator, ExtractDeltaOperator, ConsolidateOperator)
        ]
        tasks[0] >> tasks[1] >> tasks[2]
    for task in tasks:
        task.execute({**CONTEXT, "dag": dag})
    made.finish()
    (job,) = made.jobs
    soon(lambda: job.state != "RUNNING", "the job goes on")
    assert job.state == "SUCCESS", job.output[-2000:]
    assert made.password not in json.dumps(job.request) + job.output
    assert TOKEN not in json.dumps(job.request)
    assert "snapshot: done in" in capfd.readouterr().out


@pytest.mark.long
def test_a_copy_on_a_cluster_that_has_only_the_listed_packages_is_exact_and_its_password_is_nowhere(
    made: OnDatabricks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.service.python = str(tmp_path / "bare/bin/python")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    made.service.volumes.mkdir()
    listed = run(sys.executable, "-m", "airflow_provider_cdc.bundle", "--requirements")
    (made.service.volumes / "requirements.txt").write_text(listed)
    made.connect(monkeypatch, requirements="/Volumes/requirements.txt")
    stop, found = threading.Event(), list[str]()
    searching = threading.Thread(target=secrets_in_processes, args=(made.password, stop, found))
    searching.start()
    try:
        made.finish()
    finally:
        stop.set()
        searching.join()
    assert found == []
    assert len(made.jobs) == 3


@pytest.mark.long
def test_the_next_try_continues_the_job_of_a_killed_worker(made: Remote) -> None:
    job = start_and_kill_a_worker(made)
    made.step().execute(CONTEXT)
    assert made.jobs == [job]
    soon(lambda: job.state != "RUNNING", "the job goes on")
    assert job.state == "SUCCESS", job.output[-2000:]


@pytest.mark.long
def test_a_deferred_task_has_the_result_of_its_run(made: Remote) -> None:
    counts = executed(lambda: made.step(deferrable=True))["counts"]
    assert counts.items() <= records.encode(Run.load(made.run).steps["snapshot"]).items()
    (job,) = made.jobs
    soon(lambda: job.state != "RUNNING", "the job goes on")
    assert job.state == "SUCCESS", job.output[-2000:]


@pytest.mark.slow
def test_a_trigger_follows_a_run_through_an_outage_and_ends_it_with_its_task(
    service: DatabricksService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_job, "POLL_SECONDS", 0.0)
    run = Storage(tmp_path.as_uri())
    job = open_platform("spark").start(spec(tmp_path))
    records.write(run, remote.follower_file("t0k3n"), remote.Follower("try"))
    followed = FollowedJob(run.uri, job, "t0k3n", "try", int(time.time()) + 600)
    given: Any = {"spark_conn_id": "spark", "storage_conn_id": "", "job": asdict(followed), "until": None}
    # The hook repeats a request three times; then the trigger waits.
    service.refusals = 4

    async def ended_by_a_user() -> None:
        trigger = SparkJobTrigger(**given)

        async def is_over() -> bool:
            return True

        monkeypatch.setattr(trigger, "_is_over", is_over)
        following = asyncio.ensure_future(anext(aiter(trigger.run())))
        while service.refusals or not records.read(remote.Follower, run, remote.follower_file("t0k3n")).renewals:
            await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(ended_by_a_user())
    assert service.jobs[job].state == "CANCELLED"
    assert run.exists(remote.revoked_file("t0k3n"))
    # Another triggerer finds the run ended.
    event = event_of(SparkJobTrigger(**given))
    assert (event["failure"], event["timed_out"], event["job"]["id"]) == (None, False, job)
    assert run.exists(remote.ended_file("t0k3n"))


@pytest.mark.long
def test_a_run_that_databricks_ends_and_a_cancelled_one_are_replaced(made: OnDatabricks) -> None:
    made.service.limit = 1.0
    with pytest.raises(AirflowException, match="is TIMEDOUT"):
        made.step().execute(CONTEXT)
    made.service.limit = None
    task = made.step()
    killing = threading.Thread(
        target=lambda: (soon(lambda: task._job and len(made.jobs) == 2, "no job"), task.on_kill()), daemon=True
    )
    killing.start()
    with pytest.raises(AirflowException, match="Airflow ended this task"):
        task.execute(CONTEXT)
    killing.join()
    made.step().execute(CONTEXT)
    soon(lambda: made.jobs[-1].state != "RUNNING", "the job goes on")
    assert [job.state for job in made.jobs] == ["FAILED", "CANCELLED", "SUCCESS"]
