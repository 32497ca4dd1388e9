"""Iceberg tables from a DAG, with the catalog in a database and the files in S3, whose passwords are seen nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs
from pyiceberg.catalog import load_catalog

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings
from airflow_provider_cdc.lake import read_cut
from airflow_provider_cdc.sinks.iceberg.catalog import io_properties
from harness.dag_runner import DagRunner
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from harness.s3_server import ADMIN

pytestmark = pytest.mark.slow

PASSWORD = "p4ssw0rd-of-the-catalog"


@pytest.mark.timeout(600)
def test_a_cut_of_a_dag_and_no_trace_of_the_password(
    dag_runner: DagRunner,
    mysql: MysqlServer,
    postgres: PostgresServer,
    s3: str,
    schema: str,
    database: str,
    tmp_path: Path,
) -> None:
    """Nothing in the environment leads to the store. The driver, the executors and the tables' files use the
    connection."""
    for name in ("a", "b"):
        mysql.query(f"CREATE TABLE {schema}.{name} (id INT PRIMARY KEY, text VARCHAR(20))")
        mysql.query(f"INSERT INTO {schema}.{name} VALUES (1, 'one'), (2, NULL)")
    postgres.query(f"CREATE ROLE {database} LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
    try:
        address = f"postgresql+psycopg://{postgres.host}:{postgres.port}/{database}"
        lake, events = f"s3://lake/{database}%20raw", tmp_path / "events"
        warehouse = f"s3://lake/{database}_warehouse"
        events.mkdir()
        source = {"conn_type": "cdc_mysql", "host": mysql.host, "port": mysql.port, "login": "root"}
        catalog = {
            "conn_type": "cdc_catalog",
            "login": database,
            "password": PASSWORD,
            "extra": {"kind": "sql", "uri": address, "warehouse": warehouse},
        }
        place = {"endpoint_url": s3, "region_name": "us-east-1"}
        store = {"conn_type": "aws", "login": ADMIN[0], "password": ADMIN[1], "extra": place}
        conf = {"tables": [f"{schema}.*"], "target": lake, "events": events.as_uri()}
        result = dag_runner.run("iceberg_shop", conf, connections={"shop": source, "lake": catalog, "store": store})
        assert result.state == "success", result.log[-5000:]
        uri = f"postgresql+psycopg://{database}:{PASSWORD}@{postgres.host}:{postgres.port}/{database}"
        access = StorageSettings(
            "s3", {"access_key": ADMIN[0], "secret_key": ADMIN[1], "endpoint": s3, "region": "us-east-1"}
        )
        opened = load_catalog("default", type="sql", uri=uri, warehouse=warehouse, **io_properties(access))
        cut = read_cut(opened)
        assert cut is not None
        assert cut.group == "iceberg_shop"
        assert cut.position == result.xcoms["lock_and_record"]["initial_gtid_set"]
        for name in ("a", "b"):
            table = cut[f"{schema}.{name}"]
            assert table.identifier == f"raw.{schema}_{name}"
            assert table.to_arrow().to_pylist() == [{"id": 1, "text": "one"}, {"id": 2, "text": None}]
            assert result.xcoms["consolidate"]["latest"][f"{schema}.{name}"] is True
        assert list(events.iterdir())
        # The records of the run, the metadata of the tables, and Spark's event log, which does not compress.
        files = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
        for folder in (Storage(lake, access), Storage(warehouse, access)):
            infos = folder.filesystem.get_file_info(fs.FileSelector(folder.path(), recursive=True))
            names = [info.path for info in infos if info.is_file]
            assert names
            files += [folder.filesystem.open_input_stream(name).read() for name in names]
        files += [file.read_bytes() for file in dag_runner.home.rglob("*") if file.is_file()]
        shown = result.log + str(result.xcoms) + str(result.rendered)
        for secret in (PASSWORD, ADMIN[1]):
            assert not [file for file in files if secret.encode() in file or secret.encode("utf-16-be") in file]
            assert secret not in shown
    finally:
        postgres.query(f"DROP OWNED BY {database} CASCADE", database=database)
        postgres.query(f"DROP ROLE {database}")
