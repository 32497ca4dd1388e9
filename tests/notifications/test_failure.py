"""The failure notification has the reason, the place and the position, and no secrets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import LogGone
from airflow_provider_cdc.notifications.failure import FailureNotifier, failure_text
from airflow_provider_cdc.operators.extract_delta import ExtractDeltaOperator
from tests.runs import manifest_of

POSITION = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"


def context(run_uri: Any, exception: BaseException | None) -> Any:
    task = ExtractDeltaOperator(task_id="extract_delta", source_conn_id="shop", run_uri=run_uri)
    instance = SimpleNamespace(dag_id="nightly", task_id="extract_delta", task=task, log_url="http://here/log")
    return {"ti": instance, "dag_run": SimpleNamespace(run_id="scheduled__1"), "exception": exception}


def test_the_error_its_class_its_hint_and_the_position_are_told(tmp_path: Path) -> None:
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()), initial_position=POSITION))
    told: list[str] = []
    FailureNotifier(told.append)(context(run.folder.uri, LogGone("it was purged", where="binlog.1", hint="keep it")))
    (text,) = told
    assert text == (
        "nightly, run scheduled__1: the task extract_delta failed\n"
        "  LogGone: [CDC-1102] binlog.1: it was purged\n  Hint: keep it\n"
        f"  Position: initial_gtid_set {POSITION}\n"
        f"  Run: {run.folder.uri}\n"
        "  Log: http://here/log"
    )


@pytest.mark.parametrize("uri", ["{}/nowhere", None])
def test_what_is_not_known_keeps_nothing_else_from_being_told(tmp_path: Path, uri: str | None) -> None:
    text = failure_text(context(uri and uri.format(tmp_path.as_uri()), None))
    assert "its process ended without an error" in text
    assert "Hint: look at the task's log" in text
    assert ("Position: it cannot be read" if uri else "Position: none") in text
    assert "Log: http://here/log" in text
