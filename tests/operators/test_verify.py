"""The task and the command that verify copies: what they accept, their result, and when they fail."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc import verify
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime import session
from airflow_provider_cdc.jobs.verify.request import REQUEST, request_of
from airflow_provider_cdc.operators.verify import VerifyOperator
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from tests.jobs.verify.planting import SPARK, without_spark

POSITION = "SELECT REPLACE(@@global.gtid_executed, '\n', '')"


@pytest.fixture
def shop(mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A MySQL with a table `accounts`, behind the connection `shop`; the name of its schema."""
    mysql.query(f"CREATE TABLE {schema}.accounts (id int PRIMARY KEY, owner text)")
    mysql.query(f"INSERT INTO {schema}.accounts VALUES (1, 'ann'), (2, 'bob')")
    connection = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    return schema


def export(folder: Path, owners: list[str]) -> str:
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "owner": owners}), folder / "accounts.parquet")
    return folder.as_uri()


@pytest.mark.slow
def test_the_task_fails_and_names_the_differing_row(mysql: MysqlServer, shop: str, tmp_path: Path) -> None:
    """With Spark, as Airflow calls it."""
    pushed: dict[str, Any] = {}
    instance = SimpleNamespace(
        dag_id="d", task_id="t", map_index=-1, try_number=1, xcom_push=lambda key, value: pushed.update({key: value})
    )
    run = SimpleNamespace(dag_id="d", run_id="r", run_after=datetime(2026, 1, 1, tzinfo=UTC))
    context: Any = {"ti": instance, "dag_run": run}
    task: Any = VerifyOperator(
        task_id="verify",
        source_conn_id="shop",
        target=(tmp_path / "lake").as_uri(),
        copies={f"{shop}.accounts": export(tmp_path / "other", ["ann", "eve"])},
        at=str(mysql.query(POSITION)[0][0]),
        spark_conn_id="spark",
    )
    mysql.query(f"UPDATE {shop}.accounts SET owner = 'later'")
    with pytest.raises(AirflowFailException, match=r"(?s)result\.md: .*accounts: different: the rows of 1 key differ"):
        task.execute(context)
    assert pushed["outcomes"] == {f"{shop}.accounts": "different"}
    folder = Path(pushed["result_uri"].removeprefix("file://"))
    # The folder of the throw-away run is gone.
    assert sorted(path.name for path in folder.iterdir()) == ["request.json", "result.json", "result.md"]
    assert "| changed | id = 2 | owner = bob | owner = eve |" in (folder / "result.md").read_text()


@pytest.mark.slow
def test_the_exit_status_of_the_command(
    mysql: MysqlServer, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_spark(monkeypatch)
    monkeypatch.setattr(session, "open_session", lambda name: SimpleNamespace(**vars(SPARK), stop=lambda: None))
    table, at = f"{shop}.accounts", str(mysql.query(POSITION)[0][0])
    right, wrong = export(tmp_path / "right", ["ann", "bob"]), export(tmp_path / "wrong", ["ann", "eve"])

    def run(*arguments: str) -> int:
        return verify.main(["source", "--source-conn-id", "shop", "--json", str(tmp_path / "result.json"), *arguments])

    assert run("--copy", f"{table}={right}", "--at", at) == 0
    assert run("--copy", f"{table}={wrong}", "--at", at) == 3
    found = json.loads((tmp_path / "result.json").read_text())["tables"][0]["differences"]
    assert [(one["key"], one["columns"]) for one in found] == [({"id": "2"}, ["owner"])]
    mysql.query(f"ALTER TABLE {table} ADD COLUMN more INT")
    assert run("--copy", f"{table}={right}", "--at", at) == 4
    assert run("--all", table, "--target", str(tmp_path)) == 2
    assert "the table has no copy" in capsys.readouterr().err
    assert run("--copy", f"{table}={right}") == 2
    assert "the position of this copy is unknown" in capsys.readouterr().err


def test_a_task_that_was_killed_leaves_no_rows(mysql: MysqlServer, tmp_path: Path) -> None:
    """The process that would remove the folder of the throw-away run is gone."""
    copies = {"a.b": "/b.parquet", "a.c": "/c.parquet"}
    request, folder = request_of("v", copies=copies), Storage(tmp_path.as_uri())
    records.write(folder, REQUEST, request)
    for run_id in request.run_ids:
        folder.folder(run_id).write_text("staged/rows", "rows")
    task = VerifyOperator(task_id="verify", source_conn_id="shop", target=tmp_path.as_uri(), copies=copies)
    task.release(folder, settings_of(mysql))
    assert [path.name for path in tmp_path.iterdir()] == [REQUEST]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "no table is named"),
        ({"tables": ["a.b"]}, "parameter target"),
        ({"tables": ["a.b", "a.b"], "target": "/lake"}, "named twice"),
        ({"tables": ["a.b"], "target": "/lake", "what": "rows"}, "'rows' is not accepted"),
        ({"tables": ["a.b"], "target": "/lake", "at": "yesterday"}, "neither a time with its zone nor a position"),
        ({"tables": ["a.b"], "target": "/lake", "at": "2026-01-01T00:00Z", "lag_seconds": 3}, "contradicts at"),
        ({"tables": ["a.b"], "target": "/lake", "ranges": -1}, "not a whole number"),
        ({"tables": ["a.b"], "target": "/lake", "what": "copies"}, "not in both copies and others"),
        ({"copies": {"a.b": {"url": "/x"}}}, "url is not known"),
        ({"copies": {"a.b": 7}}, "does not name a copy"),
        ({"copies": {"a.b": "/x"}, "what": "files"}, "only copies of this package"),
    ],
)
def test_what_is_not_accepted(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        request_of("v", **arguments)
