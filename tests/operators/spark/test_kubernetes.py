"""Drivers in pods of Kubernetes. The service speaks a part of Kubernetes' API; ``spark-submit`` and the client library
are real (`harness.kubernetes_service`). What is the same for all platforms is tested in ``test_emr_serverless``."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from airflow_provider_cdc.errors import ConfigurationError, PreflightError, SparkFailed
from airflow_provider_cdc.hooks.platforms import JobGoneError, JobSpec, Phase
from airflow_provider_cdc.hooks.spark import CdcSparkHook, open_platform
from airflow_provider_cdc.jobs.runtime.driver import PACKAGE_VARIABLE
from airflow_provider_cdc.operators.spark.launchers.registry import check_spark, open_launcher
from harness.kubernetes_service import NAMESPACE, KubernetesService, kubernetes_service
from harness.mysql_server import MysqlServer
from tests.operators.spark.test_emr_serverless import Remote, executed, secrets_in_processes, soon, waiting_run
from tests.operators.spark.test_step import CONTEXT

TOKEN = "0123456789abcdef" * 2
FIELDS = {
    "launcher": "kubernetes",
    "namespace": NAMESPACE,
    "service_account": "cdc-driver",
    "image": "registry.example/cdc/spark:1",
}

pytestmark = pytest.mark.timeout(1800)


def connect(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    fields = {"conn_type": "cdc_spark", "extra": {**FIELDS, **more}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps(fields))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesService]:
    """A namespace whose pods do not start."""
    with kubernetes_service(tmp_path, "", sys.executable) as (service, config):
        service.held = True
        monkeypatch.setenv("KUBECONFIG", str(config))
        connect(monkeypatch)
        yield service


def spec(seconds: int = 7200) -> JobSpec:
    code, arguments = "s3://lake/run/remote/code/1", ["--token", TOKEN, "--nonce", "n0nce"]
    app, package = f"{code}/snapshot.py", f"{code}/airflow_provider_cdc.zip"
    properties = {"spark.log.level": "WARN"}
    return JobSpec(f"run-{TOKEN}", TOKEN, app, package, arguments, properties, int(time.time()) + seconds)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, "the client of Kubernetes is not installed"),
        ({"image": None}, "it has no image"),
        ({"namespace": None}, "it has no namespace"),
        ({"service_account": None}, "it has no service_account"),
        ({"archive": "s3://lake/cdc-deps-1-cp312-x86_64.tar.gz"}, "does not use these fields: archive"),
    ],
)
def test_the_check_finds_what_no_pod_can_start_with(
    more: dict[str, Any], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    connect(monkeypatch, **more)
    works, message = CdcSparkHook("spark").test_connection()
    assert not works
    assert problem in message
    if not more:
        # Another machine may have the client, Java and Spark.
        monkeypatch.setenv("JAVA_HOME", "/nowhere")
        assert not open_launcher("spark", {}).check(here=False)
        assert "/nowhere/bin/java" in str(open_launcher("spark", {}).check())


@pytest.mark.long
def test_a_job_is_one_pod_with_a_limit_that_kubernetes_keeps(
    service: KubernetesService, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CdcSparkHook("spark").test_connection() == (True, "the platform can be used")
    platform, asked = open_platform("spark"), spec()
    assert platform.find(TOKEN) == ""
    # Airflow may have its connections in the environment, which spark-submit would inherit.
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "mysql://copier:s3cret-of-shop@db")
    stop, seen = threading.Event(), list[str]()
    searching = threading.Thread(target=secrets_in_processes, args=("s3cret-of-shop", stop, seen))
    searching.start()
    try:
        job = platform.start(asked)
    finally:
        stop.set()
        searching.join()
    assert seen == []
    assert platform.start(asked) == job == platform.find(TOKEN) == f"cdc-{TOKEN}"
    (started,) = service.jobs.values()
    pod = started.request["pod"]["spec"]
    assert 7100 < pod["activeDeadlineSeconds"] <= 7200
    assert pod["serviceAccountName"] == FIELDS["service_account"]
    assert pod["restartPolicy"] == "Never"
    assert pod["initContainers"][0]["command"][-2:] == [asked.app, asked.package]
    variables = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
    assert variables[PACKAGE_VARIABLE].endswith("/airflow_provider_cdc.zip")
    assert {one["image"] for one in (*pod["initContainers"], *pod["containers"])} == {FIELDS["image"]}
    assert [*platform.arguments(job)][-4:] == asked.arguments
    (properties,) = [
        one["data"]["spark.properties"] for (kind, _), one in service.objects.items() if kind == "configmaps"
    ]
    assert "spark.authenticate=true" in properties
    assert "spark.log.level=WARN" in properties
    assert "n0nce" not in json.dumps([*service.objects.values()])
    # What the worker itself reaches the cluster with.
    assert "t0ken-of-airflow" not in json.dumps([started.request, *service.objects.values()])
    for state, details, phase, shown in (
        ("SCHEDULED", "", Phase.RUNNING, ""),
        ("RUNNING", "", Phase.RUNNING, ""),
        ("SUCCESS", "", Phase.SUCCEEDED, ""),
        ("FAILED", "exit code 1", Phase.FAILED, "is Failed: Error: exit code 1"),
        ("FAILED", "timeout", Phase.FAILED, "is Failed: DeadlineExceeded"),
    ):
        started.state, started.details = state, details
        found = platform.state(job)
        assert found.phase is phase
        assert shown in found.details
        assert (f"kubectl logs --all-containers {job}" in found.hint) == (phase is Phase.FAILED)
    # An image that cannot be pulled now may be pulled later.
    started.state, service.fault = "SCHEDULED", "ImagePullBackOff"
    assert platform.state(job).phase is Phase.RUNNING
    # The pod of a spark-submit that was killed before it created the config map never starts.
    service.objects.clear()
    assert platform.find(TOKEN) == ""
    assert service.deleted == [job]
    for ask in (platform.state, platform.arguments):
        with pytest.raises(JobGoneError):
            ask(job)
    platform.cancel(job)


@pytest.mark.long
def test_a_pod_that_never_starts_is_deleted(service: KubernetesService) -> None:
    pod = {"metadata": {"name": f"cdc-{TOKEN}"}, "spec": {"containers": [{"name": "driver", "image": "UPPER"}]}}
    job = service.start({"name": f"cdc-{TOKEN}", "pod": pod}).request["name"]
    platform, service.fault = open_platform("spark"), "InvalidImageName"
    state = platform.state(job)
    assert state.phase is Phase.FAILED
    assert "InvalidImageName: the stand-in was asked for it" in state.details
    assert service.deleted == [job]


@pytest.mark.long
def test_a_refusal_that_lasts_is_a_mistake_of_the_connection(
    service: KubernetesService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.denied = {"patch"}
    with pytest.raises(PreflightError, match="may not patch configmaps in the namespace spark"):
        check_spark(open_launcher("spark", {}))
    service.denied = set()
    service.refusals = 1000
    with pytest.raises(SparkFailed, match="busy"):
        check_spark(open_launcher("spark", {}))
    service.refusals = 0
    connect(monkeypatch, namespace="another")
    platform = open_platform("spark")
    monkeypatch.setattr(platform, "find", lambda token: "")
    monkeypatch.setattr(platform, "cancel", lambda job: None)
    with pytest.raises(ConfigurationError, match=r"cannot use resource .pods. in the namespace .another"):
        platform.start(spec())


class OnKubernetes(Remote):
    def connect(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        connect(monkeypatch, **more)


@pytest.fixture
def made(mysql: MysqlServer, schema: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with (
        kubernetes_service(tmp_path, s3, sys.executable) as (service, config),
        waiting_run(mysql, schema, s3, monkeypatch) as waiting,
    ):
        monkeypatch.setenv("KUBECONFIG", str(config))
        found = OnKubernetes(service, *waiting)
        found.connect(monkeypatch)
        yield found


@pytest.mark.long
def test_a_copy_of_pods_is_exact_and_its_password_is_nowhere(made: Remote, capfd: pytest.CaptureFixture[str]) -> None:
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
    objects = made.service.objects  # type: ignore[attr-defined]
    assert made.password not in json.dumps([*(job.request for job in made.jobs), *objects.values()])
    assert "snapshot: done in" in capfd.readouterr().out


@pytest.mark.long
def test_a_pod_outlives_its_worker_and_ends_with_its_task(made: Remote) -> None:
    made.service.held = True
    task = made.step()
    killing = threading.Thread(
        target=lambda: (soon(lambda: task._job and made.jobs, "no job"), task.on_kill()), daemon=True
    )
    killing.start()
    with pytest.raises(AirflowException, match="Airflow ended this task"):
        task.execute(CONTEXT)
    killing.join()
    assert made.jobs == [], "the pod was deleted"
    # The trigger follows the next one.
    made.service.held = False
    result = executed(lambda: made.step(deferrable=True))
    assert result["counts"]
    soon(lambda: made.jobs[-1].state != "RUNNING", "the job goes on")
    assert [job.state for job in made.jobs] == ["SUCCESS"]
