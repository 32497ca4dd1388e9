"""The frame of the Spark apps: arguments, session, and one clear message if it fails."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError, TerminalError
from airflow_provider_cdc.jobs.lifeline import end_with_parent
from airflow_provider_cdc.jobs.progress import duration, say
from airflow_provider_cdc.jobs.session import open_session, settings_from_environment
from airflow_provider_cdc.sources.base import ConnectionSettings

TRANSIENT, TERMINAL = 1, 2
"""Exit codes: whether a retry may help."""

Job = Callable[[SparkSession, Storage, ConnectionSettings], dict[str, Any]]


def main(task_id: str, job: Job, arguments: Sequence[str] | None = None) -> None:
    """Run one step of the run at ``--run-uri``, and print what it found.

    A `CdcError` is printed without its trace, left in ``errors/<task_id>.json`` under the run, and ends the process
    with `TRANSIENT` or `TERMINAL`.
    """
    end_with_parent()
    parser = argparse.ArgumentParser(prog=task_id)
    parser.add_argument("--run-uri", required=True, help="the folder of the run: <target>/_runs/<run_id>")
    run_uri = parser.parse_args(arguments).run_uri
    try:
        run = Storage(run_uri)
        settings = settings_from_environment()
        spark = open_session(f"cdc {task_id}")
        try:
            found = job(spark, run, settings)
        finally:
            spark.stop()
    except CdcError as error:
        _fail(task_id, run_uri, error)
    say(f"{task_id}: done in {duration(found['seconds'])}")
    say(json.dumps(found))


def _fail(task_id: str, run_uri: str, error: CdcError) -> NoReturn:
    terminal = isinstance(error, TerminalError)
    say(f"{task_id} failed: {type(error).__name__}: {error}")
    record = {"type": type(error).__name__, "message": str(error), "terminal": terminal}
    try:
        Storage(run_uri).write_json(f"errors/{task_id}.json", record)
    except (CdcError, OSError) as also:
        # Whoever started the app has its exit code and its output.
        say(f"{task_id}: the error could not be recorded in {run_uri}: {also}")
    raise SystemExit(TERMINAL if terminal else TRANSIENT) from None
