"""A copy of a part of a table, from the form of the DAG `copy_tables` to its readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.lake import open_dataset, read_latest
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer


@pytest.mark.long
def test_a_part_is_copied_announced_and_found_again(
    dag_runner: DagRunner, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, status VARCHAR(9), note TEXT)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1, 'open', 'a'), (2, 'Open', 'b'), (3, NULL, 'c'), (4, 'open', NULL)")
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    lake, name = (tmp_path / "lake").as_uri(), f"{schema}.t"
    conf = {
        "source_conn_id": "shop",
        "tables": [f"{schema}.*"],
        "target": lake,
        "where": {name: "status = 'open' AND id < 4"},
        "columns": {f"{schema}.*": ["note"]},
    }
    result = dag_runner.run("copy_tables", conf, connections={"shop": source})
    assert result.state == "success", result.log[-5000:]
    copy = read_latest(lake, name, where="(status='open') and id<4", columns=["note"])
    assert copy is not None
    assert open_dataset(copy).to_table().to_pylist() == [{"id": 1, "note": "a"}]
    assert (copy.where, copy.columns) == ('"status" = \'open\' AND "id" < 4', ("note",))
    assert result.xcoms["consolidate"]["published"][name] == copy.path
    assert read_latest(lake, name) is None
    assert "the server sends only rows where `id` < 4" in result.log

    refused = dag_runner.run(
        "copy_tables", {**conf, "where": {name: "upper(status) = 'OPEN'"}}, connections={"shop": source}
    )
    assert refused.state == "failed"
    assert "line 1, column 1" in refused.log
    assert set(refused.states.values()) <= {"failed", "upstream_failed"}


@pytest.mark.long
def test_merged_tables_are_published_announced_and_refused(
    dag_runner: DagRunner, mysql: MysqlServer, schema: str, tmp_path: Path
) -> None:
    for shard in (1, 2):
        mysql.query(f"CREATE TABLE {schema}.orders_{shard} (id INT PRIMARY KEY, v INT)")
        mysql.query(f"INSERT INTO {schema}.orders_{shard} VALUES ({shard}, 5)")
    source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
    lake = (tmp_path / "lake").as_uri()
    conf = {
        "source_conn_id": "shop",
        "tables": [f"{schema}.*"],
        "target": lake,
        "merge": {"shop.orders": [f"{schema}.orders_*"]},
        "origin_columns": True,
        "refresh": "auto",
    }
    for night in range(2):
        result = dag_runner.run("copy_tables", conf, connections={"shop": source})
        assert result.state == "success", result.log[-5000:]
        copy = read_latest(lake, "shop.orders")
        assert copy is not None
        rows = open_dataset(copy).to_table()
        assert sorted(rows["id"].to_pylist()) == [1, 2, *([3] if night else [])]
        assert set(rows["_source"].to_pylist()) == {"shop"}
        assert [shard["shard"] for shard in copy.shards] == [f"{schema}.orders_1", f"{schema}.orders_2"]
        assert result.xcoms["consolidate"]["published"] == {"shop.orders": copy.path}
        assert f"└ {schema}.orders_2  {'forward' if night else 'watermark'}" in result.log
        mysql.query(f"REPLACE INTO {schema}.orders_2 VALUES (3, {night})")
    mysql.query(f"INSERT INTO {schema}.orders_1 VALUES (2, 9)")
    refused = dag_runner.run("copy_tables", conf, connections={"shop": source})
    assert refused.state == "failed"
    assert "1 key is in more than one shard" in refused.log
