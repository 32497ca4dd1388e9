"""Iceberg tables from a DAG, with the catalog in a database whose password is seen nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from airflow_provider_cdc.lake import read_cut
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer

PASSWORD = "p4ssw0rd-of-the-catalog"


@pytest.mark.timeout(600)
def test_a_cut_of_a_dag_and_no_trace_of_the_password(
    dag_runner: DagRunner, mysql: MysqlServer, postgres: PostgresServer, schema: str, database: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        mysql.query(f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, text VARCHAR(20))")
        mysql.query(f"INSERT INTO {schema}.{name} VALUES (1, 'one'), (2, NULL)")
    postgres.query(f"CREATE ROLE {database} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    try:
        address = f"postgresql+psycopg://{postgres.host}:{postgres.port}/{database}"
        warehouse, events = tmp_path / "warehouse", tmp_path / "events"
        events.mkdir()
        source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
        catalog = {
            "conn_type": "cdc_catalog",
            "login": database,
            "password": PASSWORD,
            "extra": {"kind": "sql", "uri": address, "warehouse": warehouse.as_uri()},
        }
        conf = {"tables": [f"{schema}.*"], "target": (tmp_path / "lake").as_uri(), "events": events.as_uri()}
        result = dag_runner.run("iceberg_shop", conf, connections={"shop": source, "lake": catalog})
        assert result.state == "success", result.log[-5000:]
        uri = f"postgresql+psycopg://{database}:{PASSWORD}@{postgres.host}:{postgres.port}/{database}"
        cut = read_cut(load_catalog("default", type="sql", uri=uri, warehouse=warehouse.as_uri()))
        assert cut is not None
        assert cut.group == "iceberg_shop"
        assert cut.position == result.xcoms["lock_and_record"]["initial_gtid_set"]
        for name in ("a", "b"):
            table = cut[f"{schema}.{name}"]
            assert table.identifier == f"raw.{schema}_{name}"
            assert table.to_arrow().to_pylist() == [{"id": 1, "text": "one"}, {"id": 2, "text": None}]
            assert result.xcoms["consolidate"]["latest"][f"{schema}.{name}"] is True
        assert list(events.iterdir())
        for file in (path for path in tmp_path.rglob("*") if path.is_file()):
            assert PASSWORD.encode() not in file.read_bytes(), file
        assert PASSWORD not in result.log + str(result.xcoms) + str(result.rendered)
    finally:
        postgres.query(f"DROP OWNED BY {database} CASCADE", database=database)
        postgres.query(f"DROP ROLE {database}")
