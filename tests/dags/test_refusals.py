"""Bad input gets one clear error before any work: nothing but the preflight task ever runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.dag_runner import DagRunner, DagRunResult
from harness.mysql_server import MysqlServer
from harness.server_process import free_port

PASSWORD = "corr3ct-horse"

DAG_ID = "mysql_snapshot"


@pytest.fixture(scope="module")
def copier(mysql: MysqlServer) -> Mapping[str, Any]:
    """Fields of a connection that may copy the database ``refused``."""
    for statement in (
        "CREATE DATABASE refused",
        "CREATE TABLE refused.orders (id INT PRIMARY KEY, total DECIMAL(10,2))",
        "INSERT INTO refused.orders VALUES (1, 10), (2, 20)",
        f"CREATE USER refused_copier@localhost IDENTIFIED BY '{PASSWORD}'",
        "GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO refused_copier@localhost",
        "GRANT SELECT ON refused.* TO refused_copier@localhost",
    ):
        mysql.query(statement)
    return {
        "conn_type": "cdc_mysql",
        "host": mysql.host,
        "port": mysql.port,
        "login": "refused_copier",
        "password": PASSWORD,
    }


class Attempt:
    """Triggers the DAG with one thing wrong."""

    def __init__(self, runner: DagRunner, copier: Mapping[str, Any], target: str) -> None:
        self.runner = runner
        self.copier = copier
        self.target = target

    def __call__(
        self,
        source: Mapping[str, Any] | None = None,
        spark: Mapping[str, Any] | str | None = "unchanged",
        **params: Any,
    ) -> DagRunResult:
        connections: dict[str, Any] = {"cdc_mysql": {**self.copier, **(source or {})}}
        if not isinstance(spark, str):
            connections["spark_default"] = spark
        conf = {"tables": ["refused.orders"], "target": self.target, **params}
        result = self.runner.run(DAG_ID, conf, connections=connections)
        assert result.states["preflight"] == "failed"
        assert set(result.states.values()) == {"failed", "upstream_failed"}
        assert not any(result.xcoms.values())
        assert PASSWORD not in result.log
        assert PASSWORD not in json.dumps(result.rendered)
        return result


@pytest.fixture
def attempt(dag_runner: DagRunner, copier: Mapping[str, Any], tmp_path: Path) -> Attempt:
    return Attempt(dag_runner, copier, tmp_path.as_uri())


def test_unknown_table(attempt: Attempt) -> None:
    result = attempt(tables=["refused.order", "nowhere.*"])
    assert "refused.order:" in result.log
    assert "nowhere.*" in result.log
    assert result.tries["preflight"] == 1


def test_wrong_password(attempt: Attempt) -> None:
    result = attempt(source={"password": "wr0ng-horse"})
    assert "the server refuses this user or password" in result.log
    assert "wr0ng-horse" not in result.log
    assert result.tries["preflight"] == 1


def test_missing_source_connection(attempt: Attempt) -> None:
    result = attempt(source_conn_id="elsewhere")
    assert "there is no such connection" in result.log
    assert result.tries["preflight"] == 1


@pytest.mark.parametrize("target", ["lake/raw", "nothing://lake", "s3:/bucket"])
def test_bad_uri(attempt: Attempt, target: str) -> None:
    result = attempt(target=target)
    assert f"{target!r} is no place to write to" in result.log
    assert result.tries["preflight"] == 1


@pytest.mark.parametrize("target", ["s3://key:s3cr3t@lake/raw", "s3://lake/raw?secret_key=s3cr3t#x"])
def test_secret_in_a_target_is_nowhere(attempt: Attempt, target: str) -> None:
    result = attempt(target=target)
    assert "is no place to write to" in result.log
    assert "s3cr3t" not in result.log
    assert "s3cr3t" not in json.dumps([result.rendered, result.xcoms])
    assert result.tries["preflight"] == 1


def test_target_that_cannot_be_written_to(attempt: Attempt, tmp_path: Path) -> None:
    # Root may write anywhere, but nobody makes a folder below a file.
    (tmp_path / "file").write_text("")
    result = attempt(target=(tmp_path / "file" / "lake").as_uri())
    assert "the target cannot be written to" in result.log
    assert result.tries["preflight"] == 1


def test_missing_spark_connection_does_not_mean_yarn(attempt: Attempt) -> None:
    result = attempt(spark=None)
    assert "there is no such connection" in result.log
    assert "spark_default" in result.log
    assert result.tries["preflight"] == 1


def test_cluster_mode_would_need_the_password_in_argv(attempt: Attempt) -> None:
    result = attempt(
        spark={"conn_type": "spark", "host": "spark://m", "port": 7077, "extra": {"deploy-mode": "cluster"}}
    )
    assert "its deploy mode is cluster" in result.log
    assert result.tries["preflight"] == 1


def test_everything_wrong_is_told_at_once(attempt: Attempt) -> None:
    result = attempt(spark=None, target="lake", tables=["refused.nothing"], source={"password": "wr0ng"})
    assert "3 problems found before any work began" in result.log


def test_server_down_is_worth_another_try(dag_runner: DagRunner, copier: Mapping[str, Any], tmp_path: Path) -> None:
    down = {**copier, "port": free_port()}
    result = dag_runner.run(
        "nightly_copy", {"tables": ["refused.*"], "target": tmp_path.as_uri()}, connections={"stock_mysql": down}
    )
    assert result.states["shop.preflight"] == "failed"
    assert result.tries["shop.preflight"] == 3
    assert "the server does not answer" in result.log
    assert "start the server, or correct host and port" in result.log
    told = result.log.split("the task shop.preflight failed")
    assert len(told) == 2, "the author's own callback is called once, for the last try"
    assert "Hint: start the server" in told[1]
    assert "Position: none" in told[1]
