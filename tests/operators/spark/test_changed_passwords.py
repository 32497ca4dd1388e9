"""Tasks whose connection gets another password while their Spark application runs.

`tests/jobs/test_expiring_tokens.py` has the copies.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, TaskDeferred

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.operators.spark.launchers.registry import open_launcher
from harness.mysql_server import MysqlServer
from tests.operators.spark.test_emr_serverless import Remote, event_of, executed, made, stored  # noqa: F401
from tests.operators.spark.test_step import CONTEXT, PASSWORD, operator, run, surroundings  # noqa: F401


@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize(
    ("change", "tried"),
    [
        ({}, [PASSWORD]),
        ({"host": "other"}, [PASSWORD]),
        ({"login": "other", "password": "n3w"}, [PASSWORD]),
        ({"password": "n3w"}, [PASSWORD, "n3w"]),
    ],
)
def test_a_password_is_tried_once_and_another_server_or_user_never(
    change: dict[str, str],
    tried: list[str],
    run: Storage,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = {"type": "LoginRefused", "message": "another password", "terminal": False}
    monkeypatch.setenv("TEST_FAILURE", json.dumps(refused))
    shop = json.loads(os.environ["AIRFLOW_CONN_SHOP"])
    task, submitted = operator(run), []
    starting: Any = open_launcher("spark", {}, {}, task.log)

    def submit(request: Any) -> Any:
        submitted.append(request.settings.password)
        assert submitted == tried[: len(submitted)]
        job = starting.submit(request)
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**shop, **change}))
        return job

    launcher = SimpleNamespace(submit=submit, poll=starting.poll)
    monkeypatch.setattr(task, "open_launcher", lambda _: launcher)
    with pytest.raises(AirflowException, match="another password"):
        task.execute(CONTEXT)
    assert submitted == tried


@pytest.mark.long
def test_a_deferred_task_starts_another_job_after_the_password_was_changed(
    made: Remote,  # noqa: F811
    mysql: MysqlServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(TaskDeferred):
        made.step(deferrable=True).execute(CONTEXT)
    # The driver has its settings, and starts Spark.
    shop = json.loads(os.environ["AIRFLOW_CONN_SHOP"])
    mysql.query(f"ALTER USER {shop['login']} IDENTIFIED BY 'n3w'")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({**shop, "password": "n3w"}))
    with pytest.raises(TaskDeferred) as deferred:
        executed(lambda: made.step(deferrable=True))  # This task continues the job of the first one.
    event = event_of(stored(deferred.value.trigger))
    made.step(deferrable=True).resume(CONTEXT, event=event)
    assert [job.state for job in made.jobs] == ["FAILED", "SUCCESS"]
