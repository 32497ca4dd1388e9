"""Steps whose driver a jobs service starts. The service speaks the API of EMR Serverless, and the hook is that of the
Amazon provider; a job is a real ``spark-submit``, which shares only the S3 server with the tests."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException
from pyarrow import fs

from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.hooks import open_hook
from airflow_provider_cdc.hooks.spark import CdcSparkHook
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.operators.consolidate import ConsolidateOperator
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from airflow_provider_cdc.operators.snapshot import SnapshotOperator
from harness.jobs_service import APPLICATION, JobsService, RemoteJob, jobs_service
from harness.mysql_server import MysqlServer
from harness.own_environment import run
from harness.pipeline import Pipeline, published_counts, settings_of
from harness.s3_server import BUCKET, s3_environment
from tests.operators.spark.test_step import CONTEXT

ROOT = Path(__file__).parents[3]
SECONDS = 300.0

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


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


@pytest.fixture
def made(mysql: MysqlServer, schema: str, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Remote]:
    password, user = f"corr3ct-{uuid.uuid4().hex}", f"copier_{uuid.uuid4().hex[:8]}"
    mysql.query(f"CREATE USER {user} IDENTIFIED BY '{password}'")
    mysql.query(f"GRANT ALL ON *.* TO {user}")
    mysql.query(f"CREATE TABLE {schema}.orders (id INT PRIMARY KEY, note VARCHAR(20))")
    mysql.query(f"INSERT INTO {schema}.orders VALUES {','.join(f'({n}, {n % 7})' for n in range(300))}")
    for name, value in s3_environment(s3).items():
        monkeypatch.setenv(name, value)
    with jobs_service(tmp_path, s3, sys.executable) as (service, url):
        shop = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": user, "password": password}
        aws = {"endpoint_url": url, "region_name": "us-east-1"}
        for conn_id, connection in {
            "shop": shop,
            "emr": {"conn_type": "aws", "login": "AKIAEMR", "password": "s3cret-emr", "extra": aws},
        }.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
        lake = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        pipeline = Pipeline(None, settings_of(mysql, user, password), lake, [f"{schema}.*"], chunk_rows=60)
        pipeline.record()
        expected = Counter(mysql.query(f"SELECT * FROM {schema}.orders"))
        mysql.query(f"UPDATE {schema}.orders SET note = 'later' WHERE id < 100")
        mysql.query(f"DELETE FROM {schema}.orders WHERE id > 250")
        remote_run = Remote(service, pipeline.run, password, expected)
        remote_run.connect(monkeypatch)
        yield remote_run
    mysql.query(f"DROP USER {user}")


def secrets_in_processes(secret: str, stop: threading.Event, found: list[str]) -> None:
    """Search the arguments and the environment of all processes, again and again."""
    while not stop.is_set():
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                try:
                    content = (process / name).read_bytes()
                except OSError:
                    continue
                if secret.encode() in content:
                    found.append(f"{process / name}: {content[:200]!r}")
        stop.wait(0.5)


def test_a_copy_whose_driver_a_service_started_is_exact_and_its_password_is_nowhere(
    made: Remote, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare")
    made.service.python = str(tmp_path / "bare/bin/python")
    said = run(sys.executable, "-m", "airflow_provider_cdc.bundle", "--to", f"s3://{BUCKET}/python")
    archive = ast.literal_eval(said.partition("conf = ")[2])["spark.archives"].removesuffix("#environment")
    made.connect(monkeypatch, archive=archive)
    assert CdcSparkHook("spark").test_connection() == (True, "the application can be used")
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
    assert made.password not in json.dumps([job.request for job in made.jobs])
    # The output of the driver is in the log of the task.
    assert "snapshot: done in" in capfd.readouterr().out
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
    assert not [file for file in made.run.files("remote") if file.endswith((".ask.json", ".give.json"))]


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


def test_the_next_try_continues_the_job_of_a_killed_worker(made: Remote) -> None:
    job = start_and_kill_a_worker(made)
    made.step().execute(CONTEXT)
    assert made.jobs == [job]
    assert job.state == "SUCCESS", job.output[-2000:]


def test_a_job_that_nobody_follows_ends_when_its_run_is_released(made: Remote) -> None:
    job = start_and_kill_a_worker(made)
    made.step().release(made.run, open_hook("shop").settings())
    soon(lambda: job.state == "FAILED", "the driver goes on")
    assert "this driver ends, because Airflow has revoked it" in job.output


def test_a_driver_ends_at_its_deadline_even_if_nobody_ends_its_job(
    made: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.connect(monkeypatch, limit_minutes=1)
    # Nobody gives the driver its settings.
    job = start_and_kill_a_worker(made)
    soon(lambda: job.state == "FAILED", "the driver goes on")
    assert "this driver ends, because its deadline has passed" in job.output


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


def test_settings_are_only_for_the_driver_and_only_from_airflow(tmp_path: Path) -> None:
    run = Storage(tmp_path.as_uri())
    remote_answers: list[Any] = []

    def asking(nonce: str) -> None:
        try:
            remote_answers.append(remote.ask(run, "t", nonce))
        except ConfigurationError as error:
            remote_answers.append(str(error))

    def answered(asked_with: str, given_with: str) -> Any:
        remote_answers.clear()
        driver = threading.Thread(target=asking, args=(asked_with,), daemon=True)
        driver.start()
        soon(lambda: run.exists(remote.ask_file("t")), "nobody asks")
        assert remote.answer(run, "t", given_with, {"password": "corr3ct-horse"})
        assert "corr3ct" not in (tmp_path / remote.give_file("t")).read_text()
        driver.join()
        return remote_answers[0]

    assert answered("nonce", "nonce") == {"password": "corr3ct-horse"}
    with pytest.raises(ConfigurationError, match="a program that is not the driver asks"):
        answered("other", "nonce")
    assert not run.exists(remote.give_file("t"))
