"""The common main function of the Spark apps: arguments, session, and one clear message on failure."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn, Protocol

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import install
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.jobs.runtime.driver import (
    TRY_VARIABLE,
    done_file,
    error_file,
    from_argument,
    settings_from_environment,
    storage_from_environment,
    take_over,
)
from airflow_provider_cdc.jobs.runtime.java_errors import hint_for, last_cause
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.remote import Output, request_settings, watch
from airflow_provider_cdc.jobs.runtime.retry import is_transient
from airflow_provider_cdc.jobs.runtime.session import close_session, defer_session
from airflow_provider_cdc.sources.api.source import ConnectionSettings

TRANSIENT, TERMINAL = 1, 2
"""Exit codes. A retry may help after `TRANSIENT`, and cannot help after `TERMINAL`."""

_POLL_SECONDS = 0.5
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""The environment variable that the JVM of ``spark-submit`` sets for the Python process that it starts."""


class Finished(Protocol):
    """The result of a job."""

    @property
    def seconds(self) -> float:
        """How long the job took."""


Job = Callable[[SparkSession, Storage, ConnectionSettings], Finished]


def main(task_id: str, job: Job, arguments: Sequence[str] | None = None) -> None:
    """Execute one step of the run at ``--run-uri``. The result is recorded there.

    A `CdcError` is printed without its trace and recorded in the run's folder (`error_file`). The process then exits
    with `TRANSIENT` or `TERMINAL`. Any other error is handled in the same way, but printed with its trace. Errors of
    the storage and of Spark are transient. An unexpected error is a defect of a program, and is terminal.

    With ``--then``, the application continues with later steps until ``--within`` seconds have passed.
    """
    _end_with_parent()
    parser = argparse.ArgumentParser(prog=task_id)
    parser.add_argument("--run-uri", required=True, help="the folder of the run: <target>/_runs/<run_id>")
    parser.add_argument("--then", action="append", default=[], help="a step to execute afterwards; may be repeated")
    parser.add_argument("--within", type=float, default=0.0, help="seconds after which no further step is started")
    parser.add_argument("--token", default=os.environ.get(TRY_VARIABLE, ""), help="identifies the try")
    parser.add_argument("--nonce", default="", help="with this, the driver asks Airflow for its settings")
    parser.add_argument("--deadline", type=int, default=0, help="Unix time at which a driver with a nonce ends")
    given = parser.parse_args(arguments)
    output = Output(given.token)
    try:
        _run(task_id, job, given, output)
    finally:
        output.flush()


def _run(task_id: str, job: Job, given: argparse.Namespace, output: Output) -> None:
    run_uri, began = from_argument(given.run_uri), time.monotonic()
    try:
        if given.nonce:
            # Until the settings of the store are known, the environment has them.
            run = Storage(run_uri)
            output.start(run)
            watch(run, given.token, given.deadline, output)
            take_over(request_settings(run, given.token, given.nonce))
        install(storage_from_environment())
        run = Storage(run_uri)
        settings = settings_from_environment()
        spark = defer_session(f"cdc {task_id}")
        try:
            result = job(spark, run, settings)
            log(f"{task_id}: done in {duration(result.seconds)}")
            _go_on(given.then, began + given.within, spark, run, settings)
        finally:
            close_session(spark)
    except CdcError as error:
        _fail(task_id, run_uri, given.token, error)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        _fail(task_id, run_uri, given.token, _unforeseen(task_id, error))


def _end_with_parent() -> None:
    """Exit this process when its parent ends, if the parent is ``spark-submit``, because another driver may already
    have taken over.

    Without this check, the process would notice the end only at its next call to the JVM, and would continue to write
    until then.
    """
    if _GATEWAY in os.environ:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), name="lifeline", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    # Exit without handlers and clean-up, because another driver may have changed the state.
    os._exit(1)


def _go_on(steps: Sequence[str], until: float, spark: SparkSession, run: Storage, settings: ConnectionSettings) -> None:
    """Execute the later steps, one after the other. Do not start a step after the time ``until``. Each step also has
    its own Airflow task. If a step fails here, or is not started here, the step's own task executes it and reports any
    failure."""
    for task_id in steps:
        if time.monotonic() > until:
            return
        job: Job = getattr(import_module(f"airflow_provider_cdc.jobs.{task_id}.step"), task_id)
        try:
            result = job(spark, run, settings)
            run.write_json(done_file(task_id), {"seconds": result.seconds})
        except Exception as error:
            log(
                f"{task_id}: failed here, so the task {task_id} will execute this step: {type(error).__name__}: {error}"
            )
            return
        log(f"{task_id}: done in {duration(result.seconds)}, in the same application")


def _unforeseen(task_id: str, error: Exception) -> CdcError:
    """Convert an error that is not a `CdcError` to a `CdcError`, which names the step and the object that was being
    processed (`errors.naming`)."""
    where = ", ".join([task_id, *reversed(getattr(error, "__notes__", []))])
    what = f"{type(error).__name__}: {error}"
    if is_transient(error):
        return TransientError(what, where=where, hint="the storage or this machine failed; retry the task")
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        # The first line of an error of Java is only "An error occurred while calling None.…".
        cause = last_cause(what)
        hint = hint_for(what.splitlines(), "Spark failed: check its logs, and retry the task")
        return TransientError(f"Spark failed: {cause}" if cause else what.split("\n")[0], where=where, hint=hint)
    return TerminalError(what, where=where, hint="this is a defect: report it with the trace in this log")


def _fail(task_id: str, run_uri: str, token: str, error: CdcError) -> NoReturn:
    terminal = isinstance(error, TerminalError)
    log(f"{task_id} failed: {type(error).__name__}: {error}")
    record = records.Failure(type(error).__name__, str(error), terminal)
    try:
        records.write(Storage(run_uri), error_file(task_id, token), record)
    except (CdcError, OSError) as also:
        # Even without the record, the caller gets the exit code and the output.
        log(f"{task_id}: could not record the error in {run_uri}: {also}")
    raise SystemExit(TERMINAL if terminal else TRANSIENT) from None
