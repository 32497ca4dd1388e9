"""Batches on Google Cloud. The service speaks the API of Dataproc, with the provider's hook and Google's client library
(`harness.google_provider`). What is the same for all platforms is tested in ``test_emr_serverless``."""

from __future__ import annotations

import ast
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_cdc.errors import ConfigurationError, SparkFailed
from airflow_provider_cdc.hooks import dataproc_serverless
from airflow_provider_cdc.hooks.dataproc_serverless import DataprocServerless
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, Phase
from airflow_provider_cdc.hooks.spark import CdcSparkHook, open_platform
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
from harness.dataproc_service import PROJECT, REGION, DataprocService, dataproc_service
from harness.mysql_server import MysqlServer
from harness.own_environment import run
from harness.s3_server import BUCKET
from tests.operators.spark.test_emr_serverless import (
    Remote,
    executed,
    secrets_in_processes,
    soon,
    waiting_run,
)
from tests.operators.spark.test_step import CONTEXT

TOKEN = "0123456789abcdef" * 2
FIELDS = {
    "launcher": "dataproc_serverless",
    "project_id": PROJECT,
    "region": REGION,
    "subnetwork_uri": "lake-subnet",
    "service_account": f"cdc@{PROJECT}.iam.gserviceaccount.com",
    "image": f"europe-docker.pkg.dev/{PROJECT}/cdc/spark:1",
}

pytestmark = pytest.mark.timeout(1800)


def connect(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    fields = {"conn_type": "cdc_spark", "extra": {**FIELDS, **more}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(fields))


def let_the_hook_reach(service: DataprocService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace only the address of the service, which the hook derives from the region, and the credentials."""
    import grpc
    from airflow.providers.google.cloud.hooks.dataproc import DataprocHook
    from google.cloud.dataproc_v1 import BatchControllerClient
    from google.cloud.dataproc_v1.services.batch_controller.transports import BatchControllerGrpcTransport

    def client(self: Any, region: str) -> Any:
        assert region == REGION
        assert self.extras == {"project": PROJECT}
        return BatchControllerClient(
            transport=BatchControllerGrpcTransport(channel=grpc.insecure_channel(service.address))
        )

    monkeypatch.setattr(DataprocHook, "get_batch_client", client)
    google = {"conn_type": "google_cloud_platform", "extra": {"project": PROJECT}}
    monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(google))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DataprocService]:
    """A region whose batches do not start."""
    with dataproc_service(tmp_path, "", sys.executable) as service:
        service.held = True
        let_the_hook_reach(service, monkeypatch)
        connect(monkeypatch)
        yield service


def spec(seconds: int = 7200) -> JobSpec:
    code, arguments = "gs://lake/run/remote/code/1", ["--token", TOKEN, "--nonce", "n0nce"]
    app, package = f"{code}/snapshot.py", f"{code}/airflow_provider_cdc.zip"
    properties = {"spark.log.level": "WARN"}
    return JobSpec(f"run-{TOKEN}", TOKEN, app, package, arguments, properties, int(time.time()) + seconds)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, "the provider for Google is not installed"),
        ({"runtime_version": "2.3"}, "2.3 has no Spark 4"),
        ({"image": None}, "it names no packages"),
        ({"archive": "gs://lake/cdc-deps-1-cp313-x86_64.tar.gz"}, "another Python or processor"),
        ({"limit_minutes": 9}, "cannot have a limit of 9 minutes"),
        ({"project_id": None}, "it has no project_id"),
        ({"region": "europe-west3-a"}, "'europe-west3-a' is no region"),
        ({"region": "europe-west3/"}, "'europe-west3/' is no region"),
        ({"service_account": None}, "it has no service_account"),
        ({"cluster": {"num_workers": 2}}, "does not use these fields: cluster"),
    ],
)
def test_the_check_finds_what_no_batch_can_start_with(
    more: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "airflow.providers.google.cloud.hooks.dataproc", None)
    connect(monkeypatch, **more)
    works, message = CdcSparkHook("spark").test_connection()
    assert not works
    assert problem in message
    if not more:
        # Another machine may have the provider.
        assert not open_platform("spark").check(here=False)
        assert "airflow-provider-cdc[google]" in message


@pytest.mark.long
def test_a_job_is_one_batch_with_a_limit_that_google_keeps(
    service: DataprocService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, archive="gs://lake/python/cdc-deps-1-cp312-x86_64.tar.gz")
    assert CdcSparkHook("spark").test_connection() == (True, "the platform can be used")
    platform, asked = open_platform("spark"), spec()
    # The same request again, a lost answer, and throttling.
    service.lost_answers, service.refusals = 1, 1
    job = platform.start(asked)
    assert platform.start(asked) == job == platform.find(TOKEN)
    assert (service.lost_answers, service.refusals) == (0, 0)
    (started,) = service.jobs.values()
    execution = started.request["environment_config"]["execution_config"]
    assert 7190 < float(execution.pop("ttl").removesuffix("s")) <= 7200
    assert started.request == {
        "batch_id": f"cdc-{TOKEN}",
        "pyspark_batch": {
            "main_python_file_uri": asked.app,
            "args": asked.arguments,
            "python_file_uris": [asked.package],
            "archive_uris": ["gs://lake/python/cdc-deps-1-cp312-x86_64.tar.gz#environment"],
        },
        "runtime_config": {
            "version": "3.0",
            "container_image": FIELDS["image"],
            "properties": {
                "spark.authenticate": "true",
                "spark.network.crypto.enabled": "true",
                "spark.dataproc.driverEnv.PYTHONPATH": "./environment",
                "spark.executorEnv.PYTHONPATH": "./environment",
                "spark.log.level": "WARN",
            },
        },
        "environment_config": {
            "execution_config": {
                "service_account": FIELDS["service_account"],
                "subnetwork_uri": FIELDS["subnetwork_uri"],
            }
        },
    }
    assert platform.arguments(job) == asked.arguments
    for state, details, phase, shown in (
        ("SCHEDULED", "", Phase.RUNNING, ""),
        ("RUNNING", "", Phase.RUNNING, ""),
        ("SUCCESS", "", Phase.SUCCEEDED, ""),
        ("FAILED", "out of quota", Phase.FAILED, "is FAILED: out of quota"),
        ("CANCELLED", "", Phase.FAILED, "is CANCELLED: without a reason"),
    ):
        started.state, started.details = state, details
        found = platform.state(job)
        assert found.phase is phase
        assert shown in found.details
        assert (f"{job}/driveroutput" in found.hint) == (phase is Phase.FAILED)
    # A task that is being killed cannot ask Airflow for a connection.
    started.state = "RUNNING"
    monkeypatch.delenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT")
    platform.cancel(job)
    platform.cancel(job)
    assert started.state == "CANCELLED"
    for ask in (platform.state, platform.arguments):
        with pytest.raises(JobGoneError):
            ask("cdc-another")
    platform.cancel("cdc-another")
    assert platform.find("another") == ""


@pytest.mark.long
def test_a_refusal_that_lasts_is_a_mistake_of_the_connection(
    service: DataprocService, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, service_account="cdc@another.iam.gserviceaccount.com")
    with pytest.raises(ConfigurationError, match=r"Google refuses the batch: .*does not exist"):
        open_platform("spark").start(spec())
    connect(monkeypatch, project_id="another")
    with pytest.raises(ConfigurationError, match=r"the batches cannot be listed: .*dataproc.batches.list"):
        check_spark(open_launcher("spark", {}))
    connect(monkeypatch)
    monkeypatch.setattr(dataproc_serverless, "REQUEST_SECONDS", 2.0)
    service.refusals = 1000
    with pytest.raises(SparkFailed, match="Quota exceeded"):
        check_spark(open_launcher("spark", {}))
    # The service ends a batch after ten minutes at the earliest; its driver ends itself before.
    service.refusals = 0
    open_platform("spark").start(spec(60))
    assert [service.seconds(job) for job in service.jobs.values()] == [600.0]


class OnGoogle(Remote):
    def connect(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        connect(monkeypatch, **more)


@pytest.fixture
def made(mysql: MysqlServer, schema: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with (
        dataproc_service(tmp_path, s3, sys.executable) as service,
        waiting_run(mysql, schema, s3, monkeypatch) as waiting,
    ):
        let_the_hook_reach(service, monkeypatch)
        # The store of the tests.
        monkeypatch.setattr(DataprocServerless, "stores", ("s3",))
        found = OnGoogle(service, *waiting)
        found.connect(monkeypatch)
        yield found


@pytest.mark.long
def test_a_copy_of_batches_is_exact_and_its_password_is_nowhere(
    made: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made.service.python = str(tmp_path / "bare/bin/python")
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    said = run(sys.executable, "-m", "airflow_provider_cdc.bundle", "--to", f"s3://{BUCKET}/python")
    archive = ast.literal_eval(said.partition("conf = ")[2])["spark.archives"].removesuffix("#environment")
    made.connect(monkeypatch, image=None, archive=archive)
    # The Python of this machine need not be that of the runtime.
    monkeypatch.setattr(DataprocServerless, "check", lambda self, *, here: [])
    stop, found = threading.Event(), list[str]()
    searching = threading.Thread(target=secrets_in_processes, args=(made.password, stop, found))
    searching.start()
    try:
        made.finish()
    finally:
        stop.set()
        searching.join()
    assert found == []
    assert [job.state for job in made.jobs] == ["SUCCESS"] * 3
    assert made.password not in json.dumps([job.request for job in made.jobs])
    assert "snapshot: done in" in capfd.readouterr().out


@pytest.mark.long
def test_a_batch_outlives_its_worker_and_ends_with_its_task(made: Remote) -> None:
    made.service.held = True
    task = made.step()
    killing = threading.Thread(
        target=lambda: (soon(lambda: task._job and made.jobs, "no job"), task.on_kill()), daemon=True
    )
    killing.start()
    with pytest.raises(AirflowException, match="Airflow ended this task"):
        task.execute(CONTEXT)
    killing.join()
    assert [job.state for job in made.jobs] == ["CANCELLED"]
    # The trigger follows the next one.
    made.service.held = False
    result = executed(lambda: made.step(deferrable=True))
    assert result["counts"]
    soon(lambda: made.jobs[-1].state != "RUNNING", "the job goes on")
    assert [job.state for job in made.jobs] == ["CANCELLED", "SUCCESS"]
