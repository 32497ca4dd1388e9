"""A run sends no statement to a server that the server's version does not support.

These tests cannot show what an older server answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from tests.sources.mysql.simulated_server import SimulatedServer

VERSIONS = ["8.0.26-log", "8.0.36-28-percona", "8.4.3"]


# dev/soak adds the version between.
@pytest.fixture(params=[VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.long), VERSIONS[2]])
def older(mysql: MysqlServer, request: pytest.FixtureRequest) -> Iterator[SimulatedServer]:
    with SimulatedServer(mysql, request.param) as server:
        yield server


def settings(server: SimulatedServer) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls={"mode": "disabled"})


def test_a_whole_run(
    older: SimulatedServer, mysql: MysqlServer, schema: str, spark: SparkSession, tmp_path: Path
) -> None:
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


def test_cascades_are_not_logged(older: SimulatedServer, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.p (id INT PRIMARY KEY)")
    mysql.query(
        f"CREATE TABLE {schema}.c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)"
    )
    child, parent = MysqlSource(settings(older)).preflight([f"{schema}.*"])
    assert (child.consistency, parent.consistency) == ("lock", "watermark")
    with pytest.raises(PreflightError, match=r"MySQL logs cascades only since 9\.6"):
        MysqlSource(settings(older)).preflight([f"{schema}.*"], TableOptions("watermark"))


AMAZON = {
    "RDS": {"basedir": "/rdsdbbin/mysql-8.0.36.R1/"},
    "Aurora": {"aurora_version": "3.04.0"},
}


@pytest.fixture(params=AMAZON)
def amazon(mysql: MysqlServer, request: pytest.FixtureRequest) -> Iterator[SimulatedServer]:
    with SimulatedServer(mysql, "8.0.36", AMAZON[request.param]) as server:
        yield server


@pytest.mark.parametrize(("hours", "enough"), [("NULL", False), ("0", False), ("24", True)])
def test_how_long_amazon_keeps_the_log(
    hours: str, enough: bool, amazon: SimulatedServer, mysql: MysqlServer, schema: str
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    source = MysqlSource(settings(amazon))
    assert source.preflight([f"{schema}.t"]), "what is not known is no problem"
    mysql.query("CREATE TABLE mysql.rds_configuration (name VARCHAR(99), value VARCHAR(99), description TEXT)")
    try:
        mysql.query(f"INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', {hours}, '')")
        if enough:
            assert source.preflight([f"{schema}.t"])
            return
        with pytest.raises(PreflightError) as refused:
            source.preflight([f"{schema}.t"])
        (problem,) = refused.value.problems
        assert problem.hint == "CALL mysql.rds_set_configuration('binlog retention hours', 24)"
    finally:
        mysql.query("DROP TABLE mysql.rds_configuration")


def test_settings_of_amazon_are_in_parameter_groups(amazon: SimulatedServer, mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    mysql.query("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        with pytest.raises(PreflightError) as refused:
            MysqlSource(settings(amazon)).preflight([f"{schema}.t"])
    finally:
        mysql.query("SET GLOBAL binlog_row_image = FULL")
    (problem,) = refused.value.problems
    assert problem.hint.startswith("set binlog_row_image = FULL in the parameter group")


@pytest.mark.parametrize("durable", [True, False])
def test_preflight_says_what_a_power_failure_costs(
    durable: bool, mysql: MysqlServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    source = MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))
    # The servers of the tests are not durable.
    before = mysql.query("SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit")[0]
    if durable:
        mysql.query("SET GLOBAL sync_binlog = 1, innodb_flush_log_at_trx_commit = 1")
    try:
        source.preflight([f"{schema}.t"])
    finally:
        mysql.query("SET GLOBAL sync_binlog = %s, innodb_flush_log_at_trx_commit = %s", before)
    warned = [record.message.partition(" ")[0] for record in caplog.records if "machine fails" in record.message]
    assert warned == ([] if durable else ["sync_binlog", "innodb_flush_log_at_trx_commit"])
