"""Two servers in one DAG: their shards are published as one table, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_cdc.assets import table_asset
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.lake import open_dataset, read_latest
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer


@pytest.mark.long
def test_two_servers_are_published_as_one_table(
    dag_runner: DagRunner, mysql: MysqlServer, mysql_oracle: MysqlServer, tmp_path: Path
) -> None:
    servers = {"eu": mysql, "us": mysql_oracle}
    for number, server in enumerate(servers.values()):
        server.query("CREATE DATABASE merged_shop")
        server.query("CREATE TABLE merged_shop.orders_1 (id INT PRIMARY KEY, v INT)")
        server.query(f"INSERT INTO merged_shop.orders_1 VALUES ({number}, 5)")
    connections = {
        name: {"conn_type": "cdc_mysql", "host": server.host, "port": server.port, "login": "root"}
        for name, server in servers.items()
    }
    lake = (tmp_path / "lake").as_uri()
    conf = {"target": lake}
    try:
        # Two names of one server.
        refused = dag_runner.run("merged_shops", conf, connections={**connections, "us": connections["eu"]})
        assert refused.states["cdc_merged.check_merged"] == "failed"
        assert "the connections eu and us lead to one server" in refused.log
        for night in range(2):
            at = datetime.now(UTC)
            result = dag_runner.run("merged_shops", conf, at=at, connections=connections)
            assert result.state == "success", result.log[-5000:]
            copy = read_latest(lake, "shop.orders")
            assert copy is not None
            rows = open_dataset(copy).to_table()
            assert sorted(rows["id"].to_pylist()) == [0, 1, *([2] if night else [])]
            assert set(rows["_source"].to_pylist()) == {"eu", "us"}
            told = result.xcoms["cdc_merged.publish_merged"]
            assert told["positions"] == {str(one["source"]): one["position"] for one in copy.positions}
            assert told["published"] == {"shop.orders": copy.path}
            assert told["in_order"] is True
            assert result.events == [table_asset("eu", "shop.orders").uri]
            assert ("is rolled forward" in result.log) == bool(night)
            mysql_oracle.query(f"REPLACE INTO merged_shop.orders_1 VALUES (2, {night})")
        again = dag_runner.rerun("merged_shops", at, ["cdc_merged.publish_merged"], connections=connections)
        assert again.states["cdc_merged.publish_merged"] == "success", again.log[-5000:]
        assert again.events == result.events, "a publication is announced once"
        assert again.xcoms["cdc_merged.publish_merged"]["published"] == told["published"]
        assert copy is not None
        report = Storage(lake).folder("_merged", copy.run_id)
        page = Path(report.path("report.md")).read_text()
        for shard in ("eu:merged\\_shop.orders\\_1", "us:merged\\_shop.orders\\_1"):
            assert f"└ {shard} |" in page
        certificate = Storage(copy.path).parent().read_json(f"_certificates/{copy.run_id}.json")
        assert certificate["positions"] == list(copy.positions)
        mysql.query("INSERT INTO merged_shop.orders_1 VALUES (2, 9)")
        refused = dag_runner.run("merged_shops", conf, connections=connections)
        assert refused.states["cdc_merged.publish_merged"] == "failed"
        assert "1 key is in more than one shard at eu " in refused.log
        assert "(id=2) in eu:merged_shop.orders_1 and us:merged_shop.orders_1" in refused.log
        # Before any row is read.
        mysql.query("ALTER TABLE merged_shop.orders_1 ADD w INT")
        refused = dag_runner.run("merged_shops", conf, connections=connections)
        assert refused.states["cdc_merged.check_merged"] == "failed"
        assert refused.states["cdc_merged.eu.lock_and_record"] == "upstream_failed"
        assert "us: it has no column w (compared with eu)" in refused.log
        assert read_latest(lake, "shop.orders") == copy
        # One source fails.
        alone = {**connections, "us": {**connections["us"], "port": 1}}
        refused = dag_runner.run("merged_shops", conf, connections=alone)
        assert refused.state == "failed"
        assert read_latest(lake, "shop.orders") == copy
    finally:
        for server in servers.values():
            server.query("DROP DATABASE merged_shop")
