"""A run says nothing to a server that its version does not know.

What this cannot show is what an older server answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.base import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from tests.sources.mysql.older_server import OlderServer

VERSIONS = ["8.0.26", "8.0.28-log", "8.0.36-28-percona", "8.0.43", "8.4.3"]


@pytest.fixture(params=VERSIONS)
def older(mysql: MysqlServer, request: pytest.FixtureRequest) -> Iterator[OlderServer]:
    with OlderServer(mysql, request.param) as server:
        yield server


def settings(server: OlderServer) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls={"mode": "disabled"})


def test_a_whole_run(older: OlderServer, mysql: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY, name VARCHAR(9))")
    mysql.query(f"CREATE TABLE {schema}.keyless (id INT)")
    mysql.query(f"INSERT INTO {schema}.t VALUES " + ", ".join(f"({number}, 'x')" for number in range(1000)))
    mysql.query(f"INSERT INTO {schema}.keyless VALUES (1), (1)")
    run = Pipeline(spark, settings(older), tmp_path.as_uri(), [f"{schema}.*"], chunk_rows=100)
    run.record()
    mysql.query(f"DELETE FROM {schema}.t WHERE id = 7")
    mysql.query(f"INSERT INTO {schema}.keyless VALUES (2)")
    uris = run.finish()["published"]
    assert len(published(uris[f"{schema}.t"])[1]) == 1000
    assert sorted(published(uris[f"{schema}.keyless"])[1]) == [(1,), (1,)]
    assert older.refused == []


def test_cascades_are_refused_where_they_are_not_logged(older: OlderServer, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.p (id INT PRIMARY KEY)")
    mysql.query(
        f"CREATE TABLE {schema}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)"
    )
    with pytest.raises(PreflightError, match=r"MySQL logs them only since 9\.6"):
        MysqlSource(settings(older)).preflight([f"{schema}.*"], "auto")
