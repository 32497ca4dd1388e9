"""One task group for each of several sources, in a real Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from tests.dags.watching import STEPS, rows_of


def run(dag_runner: DagRunner, mysql: MysqlServer, schema: str, target: Path, **params: Any) -> Any:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1), (2)")
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    conf = {"tables": [f"{schema}.*"], "target": target.as_uri(), **params}
    return dag_runner.run("every_shop", conf, connections={"shop_eu": source, "shop_us": source})


@pytest.mark.long
def test_each_source_has_a_plan_of_its_own_and_all_that_follows_is_skipped(
    dag_runner: DagRunner, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    result = run(dag_runner, mysql, schema, tmp_path, plan_only=True)
    for index in range(2):
        assert result.states[f"preflight[{index}]"] == "success", result.log[-5000:]
        assert result.rendered[f"preflight[{index}]"]["source_conn_id"] == ["shop_eu", "shop_us"][index]
    others = {state for name, state in result.states.items() if not name.startswith(("preflight", "sources"))}
    assert others == {"skipped"}
    assert result.state == "success"
    assert not list(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_each_source_is_a_run_of_its_own(
    dag_runner: DagRunner, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    result = run(dag_runner, mysql, schema, tmp_path)
    assert result.state == "success", result.log[-5000:]
    uris = set()
    for index, source in enumerate(["shop_eu", "shop_us"]):
        xcoms = {step: result.xcoms[f"{step}[{index}]"] for step in STEPS}
        assert xcoms["lock_and_record"]["run_uri"].startswith(f"{tmp_path.as_uri()}/{source}/_runs/")
        assert sorted(rows_of(xcoms, f"{schema}.t")) == [(1,), (2,)]
        uris |= set(xcoms["consolidate"]["published"].values())
    assert len(uris) == 2
    assert set(result.xcoms["refresh"]["return_value"]) == uris
