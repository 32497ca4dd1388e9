"""The frame of the Spark apps: arguments, session, and one clear message if it fails."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.results import StepResult
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.jobs.runtime.driver import TRY_VARIABLE, done_file, error_file, settings_from_environment
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import may_pass
from airflow_provider_cdc.jobs.runtime.session import open_session
from airflow_provider_cdc.sources.api.connection import ConnectionSettings

TRANSIENT, TERMINAL = 1, 2
"""Exit codes: whether a retry may help."""

_LOOK_SECONDS = 0.5
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by the JVM of ``spark-submit`` for the Python that it starts."""

Job = Callable[[SparkSession, Storage, ConnectionSettings], StepResult]


def main(task_id: str, job: Job, arguments: Sequence[str] | None = None) -> None:
    """Run one step of the run at ``--run-uri``; what it found is recorded there.

    A `CdcError` is printed without its trace, left in a record under the run (`error_file`), and ends the process
    with `TRANSIENT` or `TERMINAL`. So does any other error, with its trace: those of the storage and of Spark may pass,
    but what nobody foresaw is a mistake in a program, and does not go away by itself.

    With ``--then`` the application goes on with later steps until ``--within`` seconds have passed.
    """
    _end_with_parent()
    parser = argparse.ArgumentParser(prog=task_id)
    parser.add_argument("--run-uri", required=True, help="the folder of the run: <target>/_runs/<run_id>")
    parser.add_argument("--then", action="append", default=[], help="a step to go on with; may be given repeatedly")
    parser.add_argument("--within", type=float, default=0.0, help="seconds after which no other step is begun")
    arguments_given = parser.parse_args(arguments)
    run_uri, began = arguments_given.run_uri, time.monotonic()
    try:
        run = Storage(run_uri)
        settings = settings_from_environment()
        spark = open_session(f"cdc {task_id}")
        try:
            result = job(spark, run, settings)
            say(f"{task_id}: done in {duration(result.seconds)}")
            _go_on(arguments_given.then, began + arguments_given.within, spark, run, settings)
        finally:
            spark.stop()
    except CdcError as error:
        _fail(task_id, run_uri, error)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        _fail(task_id, run_uri, _unforeseen(task_id, error))


def _end_with_parent() -> None:
    """Have this process end when its parent does, if that is ``spark-submit``: another driver may already be doing its
    work.

    Nothing else would end it soon: it notices only when it next talks to the JVM, and until then it writes.
    """
    if _GATEWAY in os.environ:
        threading.Thread(target=_watch_parent, args=(os.getppid(),), name="lifeline", daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # No handler, no clean-up: what this process knows is out of date.
    os._exit(1)


def _go_on(steps: Sequence[str], until: float, spark: SparkSession, run: Storage, settings: ConnectionSettings) -> None:
    """Do the steps that follow, as long as there is time to begin one. Each has a task of its own, which does it if it
    is not done here, and whose failure it is."""
    for task_id in steps:
        if time.monotonic() > until:
            return
        job: Job = getattr(import_module(f"airflow_provider_cdc.jobs.{task_id}.step"), task_id)
        try:
            result = job(spark, run, settings)
            run.write_json(done_file(task_id), {"seconds": result.seconds})
        except Exception as error:
            say(f"{task_id}: left to its own task, after {type(error).__name__}: {error}")
            return
        say(f"{task_id}: done in {duration(result.seconds)}, in the same application")


def _unforeseen(task_id: str, error: Exception) -> CdcError:
    """Wrap an error that is not one of ours, naming the step and what was being worked on (`errors.naming`)."""
    where = ", ".join([task_id, *reversed(getattr(error, "__notes__", []))])
    what = f"{type(error).__name__}: {error}"
    if may_pass(error):
        return TransientError(what, where=where, hint="the storage or this machine failed; the task can be retried")
    if type(error).__module__.startswith(("py4j.", "pyspark.")):
        return TransientError(what.split("\n")[0], where=where, hint="Spark failed: look at its logs, and retry")
    return TerminalError(what, where=where, hint="this should not happen: report it, with the trace in this log")


def _fail(task_id: str, run_uri: str, error: CdcError) -> NoReturn:
    terminal = isinstance(error, TerminalError)
    say(f"{task_id} failed: {type(error).__name__}: {error}")
    record = records.Failure(type(error).__name__, str(error), terminal)
    try:
        records.write(Storage(run_uri), error_file(task_id, os.environ.get(TRY_VARIABLE, "")), record)
    except (CdcError, OSError) as also:
        # The caller still has the exit code and the output.
        say(f"{task_id}: the error could not be recorded in {run_uri}: {also}")
    raise SystemExit(TERMINAL if terminal else TRANSIENT) from None
