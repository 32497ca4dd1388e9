"""Runs that only plan: the DAG run succeeds, only preflight runs, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from tests.dags.watching import STEPS

pytestmark = pytest.mark.slow


def test_a_plan_skips_all_other_tasks_and_leaves_nothing(
    dag_runner: DagRunner, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    conf = {
        "source_conn_id": "shop",
        "tables": [f"{schema}.*"],
        "target": (tmp_path / "lake").as_uri(),
        "plan_only": True,
    }
    result = dag_runner.run("copy_tables", conf, connections={"shop": source})
    assert result.state == "success", result.log[-5000:]
    assert result.states == {"preflight": "success", **dict.fromkeys(STEPS[1:], "skipped")}
    assert [plan["table"] for plan in result.xcoms["preflight"]["plan"]] == [f"{schema}.t"]
    assert "in total: 1 table," in result.xcoms["preflight"]["summary"]
    assert "Plan (nothing is copied" in result.log
    assert not list(tmp_path.iterdir())
