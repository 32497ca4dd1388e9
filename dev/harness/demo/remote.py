"""``dev/demo remote``: a service starts the Spark driver, and Airflow's worker is killed meanwhile.

The service speaks the API of EMR Serverless. It runs each job with ``spark-submit``, in an empty environment, with code
and lake on an S3 server. A stand-in shows what this package does; it does not show what an account of a cloud allows.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from airflow_provider_cdc.core.run.results import ConsolidateResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from harness.airflow_home import ROOT, AirflowHome
from harness.dag_runner import DagRunner
from harness.demo.mysql_stage import PASSWORD, MysqlStage
from harness.demo.stage import KEYS, SCHEMA, Row
from harness.errors import HarnessError
from harness.jobs_service import APPLICATION, JobsService, jobs_service
from harness.s3_server import BUCKET, s3_environment, s3_server

Step = Callable[[str], AbstractContextManager[None]]
_DAG = "mysql_snapshot"
_START_SECONDS = 600
_LAKE = f"s3://{BUCKET}/lake"


def show(folder: Path, step: Step, rows: int, writes: float) -> bool:
    """Run the demo. Return whether any row differs, the password was found, or the job did not go on."""
    print("demo: a service starts the Spark driver, and the worker of Airflow is killed")
    places = {name: folder / f"remote-{name}" for name in ("s3", "jobs")}
    for place in places.values():
        place.mkdir()
    log = folder / "remote.log"
    with (
        MysqlStage.start(folder / "remote-server") as stage,
        s3_server(places["s3"]) as endpoint,
        jobs_service(places["jobs"], endpoint, sys.executable) as (service, url),
        _environment(s3_environment(endpoint)),
    ):
        with step(f"create a shop of about {rows:,} rows"):
            stage.fill(rows)
        with step("copy the shop for the proof, before the writers start"):
            stage.copy_base()
        airflow = AirflowHome(folder / "remote-airflow", {"cdc_mysql": stage.connection(), **_connections(url)})
        with step("prepare a private Airflow"):
            airflow.prepare()
        conf = {
            "source_conn_id": "cdc_mysql",
            "tables": [f"{SCHEMA}.{table}" for table in KEYS],
            "spark_conn_id": "spark",
            "chunk_rows": 50_000,
            "target": _LAKE,
        }
        # Both tries belong to one DAG run.
        at, runner = datetime.now(UTC), DagRunner(airflow, [ROOT / "dags" / f"{_DAG}.py"])
        with stage.writers(writes), _Search(service) as search:
            with step(f"run the DAG {_DAG}, and kill its worker when the service has started the job"):
                _kill_with_job(runner, service, conf, at)
            with step("run the tasks again"), runner:
                result = runner.run(_DAG, conf, at=at)
        log.write_text(result.log)
        if result.state != "success":
            raise HarnessError(f"the DAG run failed (see {log})")
        (name,) = Storage(_LAKE).folders("_runs")
        run = Run.load(Storage(_LAKE).folder(name))
        with step("rebuild the shop at the initial position, without this package"):
            stage.rebuild(run.position_text)
        with step("compare every row"):
            differences = {table: _differences(run, table, stage) for table in KEYS}
        found = [*search.found, *_holding(places["jobs"])]
    states = ", ".join(job.state for job in service.jobs.values())
    print(f"\nEvery row compared with the proof, at {run.manifest.position_key} = {run.position}\n")
    for table, count in differences.items():
        print(
            f"  {SCHEMA + '.' + table:<16}{run.result_of(ConsolidateResult).rows[f'{SCHEMA}.{table}']:>10,} rows",
            end="",
        )
        print(f"{count:>6,} differences")
    print(f"\njobs that the service started: {len(service.jobs)} ({states}); the tasks that ran again went on with it")
    print(f"the password of the source in arguments, variables, files or objects of the job: {len(found)} times")
    print(f"\nThe Airflow log: {log}", end="\n\n")
    return any(differences.values()) or bool(found) or len(service.jobs) != 1


def _connections(url: str) -> dict[str, dict[str, object]]:
    role = "arn:aws:iam::000000000000:role/job"
    return {
        "emr": {
            "conn_type": "aws",
            "login": "AKIAEMR",
            "password": "s3cret-emr",
            "extra": {"endpoint_url": url, "region_name": "us-east-1"},
        },
        "spark": {
            "conn_type": "cdc_spark",
            "extra": {"application_id": APPLICATION, "execution_role_arn": role, "conn_id": "emr"},
        },
    }


def _kill_with_job(runner: DagRunner, service: JobsService, conf: dict[str, Any], at: datetime) -> None:
    """Run the DAG, and kill the process of its tasks when a job runs. The job is not a child of this process.

    :raises HarnessError: the process ended before, or no job ran in time.
    """
    with runner, ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, _DAG, conf, at=at)
        deadline = time.monotonic() + _START_SECONDS
        try:
            while not any(job.state == "RUNNING" for job in list(service.jobs.values())):
                if running.done() or time.monotonic() > deadline:
                    raise HarnessError("no job was started")
                time.sleep(0.1)
        finally:
            os.kill(runner.pid, signal.SIGKILL)
        with suppress(RuntimeError):
            running.result()


class _Search:
    """Searches the arguments and variables of the jobs' processes for the password, until the block ends."""

    def __init__(self, service: JobsService) -> None:
        self.found: list[str] = []
        self._service = service
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._search)

    def __enter__(self) -> _Search:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _search(self) -> None:
        while not self._stop.wait(0.5):
            sessions = {job.process.pid for job in list(self._service.jobs.values()) if job.process is not None}
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    if os.getsid(int(process.name)) not in sessions:
                        continue
                    texts = {name: (process / name).read_bytes() for name in ("cmdline", "environ")}
                except OSError:
                    # It has ended.
                    continue
                self.found += [str(process / name) for name, text in texts.items() if PASSWORD.encode() in text]


def _holding(jobs: Path) -> Iterator[str]:
    """Yield the objects of the lake, and the files of the jobs, that contain the password."""
    store = Storage(_LAKE)
    for filesystem, place in ((store.filesystem, store.path()), (fs.LocalFileSystem(), str(jobs))):
        for info in filesystem.get_file_info(fs.FileSelector(place, recursive=True)):
            if info.is_file:
                with filesystem.open_input_stream(info.path) as stream:
                    if PASSWORD.encode() in stream.read():
                        yield info.path


def _differences(run: Run, table: str, stage: MysqlStage) -> int:
    """Return the number of rows of the copy that are missing, extra or different."""
    columns, copied = stage.columns[table], Counter[Row]()
    folder = Storage(run.result_of(ConsolidateResult).published[f"{SCHEMA}.{table}"])
    for name in folder.files():
        if name.endswith(".parquet"):
            rows = pq.read_table(folder.path(name), filesystem=folder.filesystem, columns=columns)
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            copied.update(stage.comparable_row(row, columns) for row in values)
    truth = stage.truth(table)
    return ((copied - truth) + (truth - copied)).total()


@contextmanager
def _environment(variables: dict[str, Any]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
