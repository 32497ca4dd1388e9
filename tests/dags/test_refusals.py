"""Invalid input causes one clear error before any work: only the preflight task runs.

``tests/operators/test_preflight.py`` tests the messages themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from harness.server_process import free_port

SECRETS = ("wr0ng-horse", "s3cr3t")


@pytest.mark.slow
def test_everything_wrong_is_told_at_once_and_nothing_else_runs(dag_runner: DagRunner, mysql: MysqlServer) -> None:
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "nobody"}
    result = dag_runner.run(
        "mysql_snapshot",
        {"tables": ["shop.nothing"], "target": "s3://lake/raw?secret_key=s3cr3t#x"},
        connections={"cdc_mysql": {**source, "password": "wr0ng-horse"}, "spark_default": None},
    )
    assert "3 problems found before any work began" in result.log
    for told in (
        "the server refuses this user or password",
        "cannot be used as a folder",
        "spark_default",
        "the connection does not exist",
    ):
        assert told in result.log
    assert result.states.pop("preflight") == "failed"
    assert set(result.states.values()) == {"upstream_failed"}
    assert result.tries["preflight"] == 1
    assert not any(result.xcoms.values())
    for secret in SECRETS:
        assert secret not in result.log
        assert secret not in json.dumps(result.rendered)


@pytest.mark.slow
def test_server_down_is_worth_another_try(dag_runner: DagRunner, tmp_path: Path) -> None:
    down = {"conn_type": "cdc_mysql", "host": "127.0.0.1", "port": free_port(), "login": "root"}
    result = dag_runner.run(
        "nightly_copy", {"tables": ["shop.*"], "target": tmp_path.as_uri()}, connections={"stock_mysql": down}
    )
    assert result.states["shop.preflight"] == "failed"
    assert result.tries["shop.preflight"] == 3
    assert "the server does not answer" in result.log
    assert "start the server, or correct host and port" in result.log
    told = result.log.split("the task shop.preflight failed")
    assert len(told) == 2, "the author's own callback is called once, for the last try"
    assert "Hint: start the server" in told[1]
    assert "Position: none" in told[1]
