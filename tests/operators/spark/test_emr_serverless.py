"""Steps whose driver a jobs service starts. The service speaks the API of EMR Serverless, and the hook is that of the
Amazon provider; a job is a real ``spark-submit``, which shares only the S3 server with the tests."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowTaskTimeout, TaskDeferred
from airflow.sdk.module_loading import import_string
from airflow.triggers.base import BaseTrigger
from pyarrow import fs

from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError, SparkFailed
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.platforms import Phase
from airflow_provider_cdc.hooks.spark import CdcSparkHook
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from airflow_provider_cdc.operators.spark.launchers import remote as launchers
from airflow_provider_cdc.operators.spark.launchers.registry import (
    Job,
    SparkRequest,
    check_spark,
    open_launcher,
)
from airflow_provider_cdc.operators.spark.launchers.remote import RemoteLauncher
from airflow_provider_cdc.operators.verify import VerifyOperator
from airflow_provider_cdc.triggers import spark_job
from harness.jobs_service import APPLICATION, JobsService, RemoteJob, jobs_service
from harness.mysql_server import MysqlServer
from harness.own_environment import run
from harness.pipeline import Pipeline, published_counts, settings_of
from harness.s3_server import BUCKET, s3_environment
from harness.secret_service import ARN, SecretService, secret_service
from tests.operators.spark.test_step import CONTEXT

ROOT = Path(__file__).parents[3]
SECONDS = 300.0

pytestmark = pytest.mark.timeout(1800)


def soon(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


@dataclass
class Remote:
    """A run that waits for its snapshot, and the service with its jobs."""

    service: JobsService
    run: Storage
    password: str
    expected: Counter[Any]

    def connect(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
        """Create the Spark connection."""
        role = "arn:aws:iam::000000000000:role/job"
        extra = {"application_id": APPLICATION, "execution_role_arn": role, "conn_id": "emr", **more}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "cdc_spark", "extra": extra}))

    def step(self, kind: Any = SnapshotOperator, **arguments: Any) -> Any:
        return kind(task_id="t", source_conn_id="shop", run_uri=self.run.uri, spark_conn_id="spark", **arguments)

    @property
    def jobs(self) -> list[RemoteJob]:
        return list(self.service.jobs.values())

    def finish(self, **arguments: Any) -> None:
        """Execute the steps that are left, and compare the copy."""
        for kind in (SnapshotOperator, ExtractDeltaOperator, ConsolidateOperator):
            if kind.step not in Run.load(self.run).steps:
                self.step(kind, **arguments).execute(CONTEXT)
        (copy,) = Run.load(self.run).result_of(ConsolidateResult).published.values()
        assert published_counts(copy)[1] == self.expected


@contextmanager
def waiting_run(
    mysql: MysqlServer, schema: str, s3: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Storage, str, Counter[Any]]]:
    """A run that waits for its snapshot. Yield its folder, the password of its source, and the rows of the copy."""
    password, user = f"corr3ct-{uuid.uuid4().hex}", f"copier_{uuid.uuid4().hex[:8]}"
    mysql.query(f"CREATE USER {user} IDENTIFIED BY '{password}'")
    mysql.query(f"GRANT ALL ON *.* TO {user}")
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    mysql.query(f"INSERT INTO {schema}.orders VALUES {','.join(f'({n}, {n % 7})' for n in range(300))}")
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    shop = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": user, "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(shop))
    lake = f"s3://{BUCKET}/{uuid.uuid4().hex}"
    pipeline = Pipeline(None, settings_of(mysql, user, password), lake, [f"{schema}.*"], chunk_rows=60)
    pipeline.record()
    expected = Counter(mysql.query(f"SELECT * FROM {schema}.orders"))
    mysql.query(f"UPDATE {schema}.orders SET note = 'later' WHERE id < 100")
    mysql.query(f"DELETE FROM {schema}.orders WHERE id > 250")
    yield pipeline.run, password, expected
    mysql.query(f"DROP USER {user}")


@pytest.fixture
def made(mysql: MysqlServer, schema: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    with (
        jobs_service(tmp_path, s3, sys.executable) as (service, url),
        waiting_run(mysql, schema, s3, monkeypatch) as (folder, password, expected),
    ):
        aws = {"endpoint_url": url, "region_name": "us-east-1"}
        emr = {"conn_type": "aws", "login": "AKIAEMR", "password": "s3cret-emr", "extra": aws}
        monkeypatch.setenv("AIRFLOW_CONN_EMR", json.dumps(emr))
        remote_run = Remote(service, folder, password, expected)
        remote_run.connect(monkeypatch)
        yield remote_run


def secrets_in_processes(secret: str, stop: threading.Event, found: list[str]) -> None:
    """Search the arguments and the environment of all processes, again and again."""
    while not stop.is_set():
        for process in Path("/proc").glob("[0-9]*"):
            command = b""
            for name in ("cmdline", "environ"):
                try:
                    content = (process / name).read_bytes()
                except OSError:
                    continue
                command = command or content
                if secret.encode() in content:
                    found.append(f"{process / name} of {command[:400]!r}")
        stop.wait(0.5)


@pytest.mark.slow
def test_one_job_executes_the_steps_of_three_tasks(made: Remote) -> None:
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
    assert [job.state for job in made.jobs] == ["SUCCESS"]


@pytest.fixture(params=["connection", "store"])
def secrets(request: pytest.FixtureRequest, made: Remote, s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The secret store with the password of the source. None: the connection has the password."""
    if request.param == "connection":
        yield None
        return
    # The identity of the machines of this test is the one that reaches the store.
    with secret_service({ARN: made.password}, s3_environment(s3)["AWS_ACCESS_KEY_ID"]) as service:
        shop = json.loads(os.environ["AIRFLOW_CONN_SHOP"])
        del shop["password"]
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**shop, "extra": {"secret_ref": ARN}}))
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", service.url)
        made.service.variables["AWS_ENDPOINT_URL_SECRETS_MANAGER"] = service.url
        yield service


@pytest.mark.long
def test_a_copy_whose_driver_a_service_started_is_exact_and_its_password_is_nowhere(
    made: Remote,
    secrets: SecretService | None,
    s3: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    handed: list[str] = []
    seal = remote.answer_request

    def noted(run: Storage, token: str, nonce: str, settings: Any, answered: str) -> str:
        handed.append(json.dumps(settings))
        return seal(run, token, nonce, settings, answered)

    monkeypatch.setattr(remote, "answer_request", noted)
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    made.service.python = str(tmp_path / "bare/bin/python")
    said = run(sys.executable, "-m", "airflow_provider_cdc.bundle", "--extras=aws", "--to", f"s3://{BUCKET}/python")
    archive = ast.literal_eval(said.partition("conf = ")[2])["spark.archives"].removesuffix("#environment")
    made.connect(monkeypatch, archive=archive)
    assert CdcSparkHook("spark").test_connection() == (True, "the platform can be used")
    stop, found = threading.Event(), list[str]()
    searching = threading.Thread(target=secrets_in_processes, args=(made.password, stop, found))
    searching.start()
    events = tmp_path / "events"
    events.mkdir()
    try:
        made.finish(conf={"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()})
    finally:
        stop.set()
        searching.join()
    assert found == []
    assert len(made.jobs) == len([*events.iterdir()]) == 3
    # With a secret store, the password does not even travel sealed: driver and executors read it themselves.
    assert (made.password in "".join(handed)) == (secrets is None)
    assert secrets is None or len(secrets.read) > 1 + len(made.jobs)
    # Neither a password, nor what the worker itself reaches the service with.
    requests = json.dumps([job.request for job in made.jobs])
    assert made.password not in requests
    assert "s3cret-emr" not in requests
    # The output of the driver is in the log of the task.
    shown = capfd.readouterr()
    assert "snapshot: done in" in shown.out
    assert made.password not in shown.out + shown.err
    # All files of the jobs: their output, the event logs, what the drivers wrote.
    assert holding(made.password, fs.LocalFileSystem(), str(tmp_path)) == []
    variables = s3_environment(s3)
    store = fs.S3FileSystem(
        access_key=variables["AWS_ACCESS_KEY_ID"],
        secret_key=variables["AWS_SECRET_ACCESS_KEY"],
        endpoint_override=s3,
        region="us-east-1",
    )
    folder = made.run.uri.removeprefix("s3://").rpartition("/_runs/")[0]
    assert holding("snapshot: done in", store, folder), "the parts of the output are among the files"
    assert holding(made.password, store, folder) == []
    for job in made.jobs:
        arguments = job.request["jobDriver"]["sparkSubmit"]["entryPointArguments"]
        assert holding(arguments[arguments.index("--nonce") + 1], store, folder) == []
    assert not [file for file in made.run.files("remote") if file.endswith((".request.json", ".settings.json"))]


def holding(text: str, store: fs.FileSystem, folder: str) -> list[str]:
    """The files that have this text."""
    files = [one for one in store.get_file_info(fs.FileSelector(folder, recursive=True)) if one.is_file]
    return [one.path for one in files if text.encode() in store.open_input_stream(one.path).read()]


def start_and_kill_a_worker(made: Remote) -> RemoteJob:
    """Kill a task with SIGKILL while its job runs, and return the job."""
    program = """
import sys
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from tests.operators.killed_task import CONTEXT
SnapshotOperator(task_id="t", source_conn_id="shop", run_uri=sys.argv[1], spark_conn_id="spark").execute(CONTEXT)
"""
    command = [sys.executable, "-c", program, made.run.uri]
    worker = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        soon(lambda: [one for one in made.jobs if one.state == "RUNNING"], "no job was started")
    finally:
        worker.kill()
        worker.wait()
    return made.jobs[-1]


@pytest.mark.long
def test_the_next_try_continues_the_job_of_a_killed_worker(made: Remote) -> None:
    job = start_and_kill_a_worker(made)
    made.step().execute(CONTEXT)
    assert made.jobs == [job]
    assert job.state == "SUCCESS", job.output[-2000:]


@pytest.mark.long
def test_a_revoked_driver_ends_even_if_its_platform_does_not_end_it(made: Remote) -> None:
    job = start_and_kill_a_worker(made)
    made.step().give_up(made.run, open_hook("shop").settings(), killed=True)
    soon(lambda: job.state == "FAILED", "the driver goes on")
    assert "this driver ends, because Airflow has revoked it" in job.output


@pytest.mark.long
def test_a_driver_ends_at_its_deadline_even_if_nobody_ends_its_job(
    made: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(monkeypatch, limit_minutes=1)
    # Nobody gives the driver its settings.
    job = start_and_kill_a_worker(made)
    soon(lambda: job.state == "FAILED", "the driver goes on")
    assert "this driver ends, because its deadline has passed" in job.output


@pytest.mark.long
def test_a_lost_answer_starts_no_second_job(made: Remote) -> None:
    made.service.lost_answers = 1000
    with pytest.raises(AirflowException, match="emr_serverless"):
        made.step().execute(CONTEXT)
    assert len(made.jobs) == 1, "the requests of one try have one token"
    made.service.lost_answers = 0
    task = made.step()

    def throttle() -> None:
        soon(lambda: task._job, "the job was not found")
        # The library itself repeats a request twice.
        made.service.refusals = 4

    threading.Thread(target=throttle, daemon=True).start()
    task.execute(CONTEXT)
    assert made.service.refusals == 0
    assert [job.state for job in made.jobs] == ["SUCCESS"]


@pytest.mark.long
def test_a_killed_driver_and_a_cancelled_one_are_replaced(made: Remote) -> None:
    service = made.service
    threading.Thread(
        target=lambda: service.kill(soon(lambda: [job for job in made.jobs if job.process], "no job")[0]), daemon=True
    ).start()
    with pytest.raises(AirflowException, match="exit code"):
        made.step().execute(CONTEXT)
    task = made.step()
    killing = threading.Thread(
        target=lambda: (soon(lambda: task._job and len(made.jobs) == 2, "no job"), task.on_kill()), daemon=True
    )
    killing.start()
    with pytest.raises(AirflowException, match="Airflow ended this task"):
        task.execute(CONTEXT)
    killing.join()
    made.step().execute(CONTEXT)
    assert [job.state for job in made.jobs] == ["FAILED", "CANCELLED", "SUCCESS"]


@dataclass
class Tries:
    """Tries of a step whose jobs wait for resources. No try polls by itself."""

    made: Remote

    def submit(self, step: str = "snapshot", properties: dict[str, str] | None = None) -> tuple[RemoteLauncher, Job]:
        launcher: Any = open_launcher("spark", properties or {}, log=logging.getLogger("tries"))
        settings, token = open_hook("shop").settings(), uuid.uuid4().hex
        return launcher, launcher.submit(SparkRequest("name", step, self.made.run, [], token, settings))

    def is_revoked(self, job: Job) -> bool:
        return self.made.run.exists(remote.revoked_file(job.token))

    @property
    def states(self) -> list[str]:
        return [job.state for job in self.made.jobs]


@pytest.fixture
def tries(made: Remote, monkeypatch: pytest.MonkeyPatch) -> Tries:
    made.service.held = True
    monkeypatch.setattr(launchers, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(spark_job, "RENEW_SECONDS", 0.0)
    return Tries(made)


@pytest.mark.slow
def test_of_two_tries_only_the_later_one_follows_and_ends_the_job(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, job = tries.submit()
    second, same = tries.submit()
    assert job == same
    # As if Airflow had lost the worker of the first try, and now kills it.
    first.cancel(job)
    assert tries.states == ["SCHEDULED"]
    assert not tries.is_revoked(job)
    with pytest.raises(SparkFailed, match="another try of this task follows"):
        first.poll(job)
    assert second.poll(job).phase is Phase.RUNNING
    # A task that is being killed cannot ask Airflow for a connection.
    monkeypatch.delenv("AIRFLOW_CONN_EMR")
    second.cancel(job)
    assert tries.states == ["CANCELLED"]
    assert tries.is_revoked(job)


@pytest.mark.slow
def test_a_run_has_at_most_one_job_that_is_not_revoked(tries: Tries, monkeypatch: pytest.MonkeyPatch) -> None:
    made, service = tries.made, tries.made.service
    # A worker that is killed before its job is started.
    service.refusals = 1000
    with pytest.raises(SparkFailed, match="Throttling"):
        tries.submit()
    service.refusals = 0
    _, second = tries.submit()
    assert len(made.jobs) == 1
    revoked = [name for name in made.run.files("remote") if name.endswith(".revoked.json")]
    assert len(revoked) == 1, "if the first request arrives late, its driver ends"
    assert not tries.is_revoked(second)
    # A worker that is killed before it knows the id, and one that continues its job.
    made.run.delete_file(f"remote/{second.token}.id.json")
    launcher, same = tries.submit()
    assert same == second
    # A job that the service no longer knows may still run.
    lost = service.jobs.pop(second.id)
    assert launcher.poll(same).phase is Phase.FAILED
    assert tries.is_revoked(same)
    service.jobs[lost.id] = lost
    _, third = tries.submit()
    # A job that would go on with the step of the next task.
    _, fourth = tries.submit("extract_delta")
    assert tries.states == ["SCHEDULED", "CANCELLED", "SCHEDULED"]
    assert [tries.is_revoked(job) for job in (third, fourth)] == [True, False]
    # Without the right to cancel a job, there is no other job before the driver has ended itself.
    service.may_cancel = False
    with pytest.raises(SparkFailed, match="CancelJobRun"):
        tries.submit("consolidate")
    assert tries.is_revoked(fourth)
    # A job that failed while no task followed it, for example because of that.
    made.jobs[-1].state = "FAILED"
    launcher, fifth = tries.submit("extract_delta")
    service.may_cancel = True
    assert tries.states == ["SCHEDULED", "CANCELLED", "FAILED", "SCHEDULED"]
    # A service that holds a job back beyond its limit.
    monkeypatch.setattr(spark_job, "PATIENCE_SECONDS", -1.0 - 24 * 3600)
    ended = launcher.poll(fifth)
    assert "has not ended at its deadline" in ended.details
    assert (tries.states[-1], tries.is_revoked(fifth)) == ("CANCELLED", True)


@pytest.mark.slow
def test_a_try_that_was_taken_over_does_not_give_up_the_run(tries: Tries) -> None:
    first: Any = tries.made.step()
    taking = threading.Thread(target=lambda: (soon(lambda: first._job, "no job"), tries.submit()), daemon=True)
    taking.start()
    with pytest.raises(AirflowException, match="another try of this task follows"):
        first.execute(CONTEXT)
    taking.join()
    # As if this was the last try that Airflow allows.
    context: Any = {**CONTEXT, "ti": SimpleNamespace(**vars(CONTEXT["ti"]), task=first)}
    for callback in first.on_failure_callback:
        callback(context)
    first.on_kill()
    assert tries.states == ["SCHEDULED"]
    assert not tries.is_revoked(first._job[1])


@pytest.mark.slow
def test_the_key_of_the_lineage_server_is_in_no_job(tries: Tries, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in (
        ("auth.apiKey", "s3cret-key"),
        ("transports.b.headers.X-Key", "s3cret-key"),
        ("urlParams.key", "s3cret-key"),
        ("url", "https://me:s3cret-key@lineage"),
        ("url", "https://lineage?key=s3cret-key"),
        ("url", "https://lineage"),
    ):
        openlineage = {"transport.type": "http", f"transport.{name}": value, "parentRunId": "run"}
        properties = {f"spark.openlineage.{key}": text for key, text in openlineage.items()}
        # No job is continued, because the last one was for another step.
        tries.submit(("snapshot", "consolidate")[len(tries.states) % 2], properties)
        request = json.dumps(tries.made.jobs[-1].request)
        assert "s3cret-key" not in request
        assert ("transport" in request) == (value == "https://lineage")
        assert "spark.openlineage.parentRunId=run" in request
    assert "reads these" not in caplog.text
    open_launcher("spark", {"spark.hadoop.fs.s3a.secret.key": "k"}, log=logging.getLogger("tries"))
    assert "reads these Spark properties, too: spark.hadoop.fs.s3a.secret.key" in caplog.text


def driver_of(job: RemoteJob, run: Storage) -> None:
    """What a driver does first."""
    arguments = job.request["jobDriver"]["sparkSubmit"]["entryPointArguments"]
    values = dict(pairwise(arguments))
    remote.request_settings(run, values["--token"], values["--nonce"])


def stored(trigger: BaseTrigger) -> Any:
    """The trigger as the triggerer gets it from Airflow's database."""
    path, arguments = trigger.serialize()
    return import_string(path)(**json.loads(json.dumps(arguments)))


def event_of(trigger: Any) -> Any:
    async def first() -> Any:
        return (await anext(aiter(trigger.run()))).payload

    return json.loads(json.dumps(asyncio.run(asyncio.wait_for(first(), SECONDS))))


def executed(make: Callable[[], Any]) -> Any:
    """The result of a task that is deferred."""
    with pytest.raises(TaskDeferred) as deferred:
        make().execute(CONTEXT)
    event = event_of(stored(deferred.value.trigger))
    return getattr(make(), deferred.value.method_name)(CONTEXT, event=event)


@pytest.mark.long
def test_deferred_tasks_have_the_results_of_their_jobs(made: Remote) -> None:
    target = made.run.uri.partition("/_runs/")[0]
    for kind in (SnapshotOperator, ExtractDeltaOperator, ConsolidateOperator):
        result = executed(lambda kind=kind: made.step(kind, deferrable=True))  # type: ignore[misc]
        shown = records.encode(Run.load(made.run).steps[kind.step])
        assert result["counts"].items() <= shown.items()
    (copy,) = result["published"].values()
    assert published_counts(copy)[1] == made.expected
    arguments: Any = {"source_conn_id": "shop", "spark_conn_id": "spark", "target": target, "deferrable": True}
    # This task writes the request of its app before it is deferred, and not when it goes on.
    verified = executed(lambda: VerifyOperator(task_id="v", what="files", tables=[*result["published"]], **arguments))
    assert verified["outcomes"] == dict.fromkeys(result["published"], "same")
    assert [job.state for job in made.jobs] == ["SUCCESS"] * 4


@pytest.mark.slow
def test_a_deferred_task_goes_on_when_its_job_has_ended_or_a_program_asks_for_settings(
    tries: Tries, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    made, run = tries.made, tries.made.run
    monkeypatch.setattr(spark_job, "POLL_SECONDS", 0.0)
    driver = threading.Thread(
        target=lambda: driver_of(soon(lambda: made.jobs, "no job was started")[0], run), daemon=True
    )
    driver.start()
    limited: Any = {**CONTEXT, "ti": SimpleNamespace(**vars(CONTEXT["ti"]), start_date=datetime.now(UTC))}
    with pytest.raises(TaskDeferred) as deferred:
        made.step(deferrable=True, execution_timeout=timedelta(seconds=9000)).execute(limited)
    driver.join()
    (job,) = made.jobs
    token = job.request["clientToken"]
    assert made.password not in json.dumps(deferred.value.trigger.serialize())
    assert deferred.value.timeout is None, "Airflow would fail the task, and nobody would end the job"

    def resumed(event: Any) -> Any:
        return getattr(made.step(deferrable=True), deferred.value.method_name)(CONTEXT, event=event)

    # A short outage of the service. The library itself repeats a request several times.
    made.service.refusals = 8
    run.write_json(remote.log_file(token, 0), ["the first part"])

    def renewals() -> int:
        return records.read(remote.Follower, run, remote.follower_file(token)).renewals

    # The trigger is stopped, and Airflow does not say that the task is over: the triggerer may only be restarted.
    async def stopped() -> None:
        following = asyncio.ensure_future(anext(aiter(stored(deferred.value.trigger).run())))
        while made.service.refusals:
            await asyncio.sleep(0.05)
        before = renewals()
        while renewals() < before + 2:
            await asyncio.sleep(0.05)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    asyncio.run(asyncio.wait_for(stopped(), SECONDS))
    assert capfd.readouterr().out.count("the first part") == 1
    # The time limit.
    late = stored(deferred.value.trigger)
    late.until = 0.0
    event = event_of(late)
    task = made.step(deferrable=True)
    with pytest.raises(AirflowTaskTimeout):
        task.resume(CONTEXT, event=event)
    assert task._job is not None, "Airflow then kills the task, which ends the job"
    # A thief asks for the settings, after the answer was removed.
    run.delete_file(remote.settings_file(token))
    run.write_json(remote.request_file(token), {"key": "", "proof": "guessed"})
    event = event_of(stored(deferred.value.trigger))
    with pytest.raises(AirflowException, match="a program that is not the driver asks"):
        resumed(event)
    # The end of the job. The parts of the output that the trigger has logged are not logged again.
    run.write_json(remote.log_file(token, 1), ["the last part"])
    job.state, job.details = "FAILED", "out of memory"
    event = event_of(stored(deferred.value.trigger))
    with pytest.raises(AirflowException, match="out of memory"):
        resumed(event)
    assert capfd.readouterr().out.count("the last part") == 1
    # Another try follows the job meanwhile.
    records.write(run, remote.follower_file(token), remote.Follower("another"))
    event = event_of(stored(deferred.value.trigger))
    with pytest.raises(AirflowException, match="another try of this task follows"):
        resumed(event)


@pytest.mark.slow
def test_a_job_ends_with_its_run_and_at_the_limit_of_its_connection(
    tries: Tries, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tries.made
    made.connect(monkeypatch, limit_minutes=7)
    _, job = tries.submit()
    request = made.jobs[0].request
    assert request["executionTimeoutMinutes"] == 7
    driver = request["jobDriver"]["sparkSubmit"]
    assert "spark.ssl.internode.enabled=true" in driver["sparkSubmitParameters"]
    arguments = driver["entryPointArguments"]
    seconds = int(arguments[arguments.index("--deadline") + 1]) - made.jobs[0].created
    assert 300 < seconds < 421
    # What Airflow does if the worker was killed, and no try is left.
    made.step().give_up(made.run, open_hook("shop").settings())
    assert tries.states == ["CANCELLED"]
    assert tries.is_revoked(job)


@pytest.mark.slow
def test_only_a_refusal_that_lasts_fails_the_checks_for_good(made: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    made.service.refusals = 1000
    with pytest.raises(SparkFailed, match="Rate exceeded"):
        check_spark(open_launcher("spark", {}))
    made.service.refusals = 0
    made.connect(monkeypatch, application_id="another")
    with pytest.raises(ConfigurationError, match="the application cannot be read"):
        check_spark(open_launcher("spark", {}))


@pytest.mark.parametrize("is_read", [True, False])
def test_a_driver_ends_if_nobody_follows_it(tmp_path: Path, is_read: bool) -> None:
    program = f"""
import os, time
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime import remote
remote.POLL_SECONDS, remote.FOLLOWED_SECONDS = 0.01, 0.1
run = Storage({tmp_path.as_uri()!r})
run.write_json(remote.follower_file("t"), {{"token": "x", "renewals": 0}})
if not {is_read}:
    # The reader of the output has ended.
    reader, writer = os.pipe()
    os.close(reader)
    os.dup2(writer, 1)
remote.watch(run, "t", int(time.time()) + 1000, remote.Output("t"))
time.sleep(1000)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert (ended.returncode, ended.stdout) == (
        remote.REVOKED,
        "this driver ends, because no task of Airflow has followed it for 0 s\n" if is_read else "",
    )


SETTINGS = {"password": "corr3ct-horse"}


@dataclass
class Handover:
    """A driver that asks, in a thread."""

    run: Storage
    nonce: str = "nonce"
    answers: list[Any] = field(default_factory=list)

    def __enter__(self) -> Handover:
        self._driver = threading.Thread(target=self._ask, daemon=True)
        self._driver.start()
        soon(lambda: self.run.exists(remote.request_file("t")), "nobody asks")
        return self

    def __exit__(self, *error: object) -> None:
        if error == (None, None, None):
            self._driver.join()

    def _ask(self) -> None:
        try:
            self.answers.append(remote.request_settings(self.run, "t", self.nonce))
        except ConfigurationError as error:
            self.answers.append(str(error))


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


def test_only_the_driver_that_asked_first_gets_the_settings(folder: Storage, tmp_path: Path) -> None:
    with Handover(folder) as driver:
        answered = remote.answer_request(folder, "t", "nonce", SETTINGS)
    assert driver.answers == [SETTINGS]
    assert "corr3ct" not in (tmp_path / remote.settings_file("t")).read_text()
    with pytest.raises(ConfigurationError, match="a second program asks"), Handover(folder):
        remote.answer_request(folder, "t", "nonce", SETTINGS)
    # The thief removes the answer first.
    folder.delete_file(remote.settings_file("t"))
    with pytest.raises(ConfigurationError, match="a second program asks"), Handover(folder):
        remote.answer_request(folder, "t", "nonce", SETTINGS, answered)
    assert not folder.exists(remote.settings_file("t"))


def test_two_tries_answer_one_driver(folder: Storage) -> None:
    with Handover(folder) as driver:
        asked = folder.read_json(remote.request_file("t"))
        assert remote.answer_request(folder, "t", "nonce", SETTINGS)
        folder.write_json(remote.request_file("t"), asked)
        assert remote.answer_request(folder, "t", "nonce", SETTINGS)
    assert driver.answers == [SETTINGS]


@pytest.mark.parametrize("proof", [{}, {"proof": "é"}])
def test_a_program_without_the_nonce_gets_nothing(proof: dict[str, str], folder: Storage) -> None:
    asked = Handover(folder, nonce="another").__enter__()
    folder.write_json(remote.request_file("t"), {**folder.read_json(remote.request_file("t")), **proof})
    with pytest.raises(ConfigurationError, match="a program that is not the driver asks"):
        remote.answer_request(folder, "t", "nonce", SETTINGS)
    assert not asked.answers
    assert not folder.exists(remote.settings_file("t"))


def test_a_driver_takes_no_answer_that_was_recorded_or_made_without_the_nonce(folder: Storage) -> None:
    with Handover(folder):
        remote.answer_request(folder, "t", "nonce", SETTINGS)
    recorded = folder.read_json(remote.settings_file("t"))
    folder.delete_file(remote.settings_file("t"))
    with Handover(folder) as replayed:
        folder.write_json(remote.settings_file("t"), recorded)
    # This driver's request was not answered. The next driver must write its own before the forged answer is made.
    for name in remote.settings_file("t"), remote.request_file("t"):
        folder.delete_file(name)
    with Handover(folder) as forged:
        ask = folder.read_json(remote.request_file("t"))
        folder.write_json(remote.request_file("t"), {**ask, "proof": remote._proof("guessed", "t", ask["key"])})
        remote.answer_request(folder, "t", "guessed", {"host": "attacker"})
    for driver in (replayed, forged):
        assert "the settings of the connections are not from the Airflow task" in driver.answers[0]


def test_a_revoked_driver_gets_nothing(folder: Storage) -> None:
    Handover(folder).__enter__()
    folder.write_json(remote.revoked_file("t"), {})
    assert not remote.answer_request(folder, "t", "nonce", SETTINGS)
    assert not folder.exists(remote.settings_file("t"))
