"""Runs on simulated older servers and managed services: a run sends nothing that the table of versions lacks, and reads
a log of the older version.

These tests cannot show what an older server answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.errors import PreflightError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published
from tests.servers import throw_away_mysql
from tests.sources.mysql.simulated_server import SimulatedServer

VERSIONS = ["8.0.26-log", "8.0.36-28-percona", "8.4.3"]


# dev/soak adds the version between.
@pytest.fixture(params=[VERSIONS[0], pytest.param(VERSIONS[1], marks=pytest.mark.long), VERSIONS[2]])
def older(mysql: MysqlServer, request: pytest.FixtureRequest) -> Iterator[SimulatedServer]:
    with SimulatedServer(mysql, request.param) as server:
        yield server


def settings(server: SimulatedServer) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls={"mode": "disabled"})


@pytest.mark.slow
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


@pytest.mark.long
@pytest.mark.parametrize("version", VERSIONS)
def test_nights_and_the_past(version: str, spark: SparkSession, tmp_path: Path) -> None:
    """The server behind the simulated one does not log cascades, as no server did before 9.6."""
    with (
        throw_away_mysql({"innodb_native_foreign_keys": "ON"}) as server,
        SimulatedServer(server, version) as older,
    ):
        for statement in SHOP:
            server.query(statement)
        before = rows(server)

        def copy(night: int, *statements: str, **options: Any) -> dict[str, list[Any]]:
            run_id = f"202601{night:02}T000000Z-00000000"
            run = Pipeline(spark, settings(older), tmp_path.as_uri(), ["d.*"], run_id=run_id, **options)
            run.record()
            if options.get("refresh"):
                assert {str(plan.table) for plan in run.plans if plan.base} == {"d.alone", "d.keyless", "d.parent"}
            for one in statements:
                server.query(one)
            return {name: sorted(published(uri)[1]) for name, uri in run.finish()["published"].items()}

        past = str(server.query("SELECT @@gtid_executed")[0][0])
        assert copy(1, "DELETE FROM d.alone WHERE id = 1", "INSERT INTO d.keyless VALUES (2)") == before
        server.query("ALTER TABLE d.alone ADD COLUMN note VARCHAR(9) DEFAULT 'x', ALGORITHM=INSTANT")
        server.query("UPDATE d.alone SET j = JSON_SET(j, '$.a', 2) WHERE id = 3")
        server.query("DELETE FROM d.parent WHERE id = 1")
        now = rows(server)
        assert copy(2, "DELETE FROM d.alone WHERE id = 2", refresh="auto") == now
        names = ["d.keyless", "d.parent"]
        run = Pipeline(spark, settings(older), (tmp_path / "past").as_uri(), names, as_of=past)
        run.record()
        found = run.finish()["published"]
        assert {name: sorted(published(found[name])[1]) for name in names} == {name: before[name] for name in names}
        assert older.refused == []


SHOP = (
    "CREATE DATABASE d",
    "CREATE TABLE d.parent (id INT PRIMARY KEY)",
    "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE)",
    "CREATE TABLE d.alone (id INT PRIMARY KEY, j JSON)",
    "CREATE TABLE d.keyless (id INT)",
    "INSERT INTO d.parent VALUES (1), (2)",
    "INSERT INTO d.child VALUES (1, 1), (2, 2)",
    """INSERT INTO d.alone VALUES (1, '{"a": 1}'), (2, NULL), (3, '{"a": 1}')""",
    "INSERT INTO d.keyless VALUES (1), (1)",
)


def rows(server: MysqlServer) -> dict[str, list[Any]]:
    names = ("parent", "child", "alone", "keyless")
    return {f"d.{name}": sorted(server.query(f"SELECT * FROM d.{name}")) for name in names}


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


def test_settings_of_cloud_sql_are_flags(mysql: MysqlServer, schema: str) -> None:
    mysql.query(f"CREATE TABLE {schema}.t (id INT PRIMARY KEY)")
    wrong = {"binlog_row_image": "MINIMAL", "log_bin": "OFF", "binlog_expire_logs_seconds": "60"}
    with SimulatedServer(mysql, "8.0.31-google", wrong) as google, pytest.raises(PreflightError) as refused:
        MysqlSource(settings(google)).preflight([f"{schema}.t"])
    assert {problem.where: problem.hint for problem in refused.value.problems} == {
        "log_bin": "enable point-in-time recovery of the instance: it switches the log on",
        "binlog_row_image": "set binlog_row_image = FULL as a database flag of the instance; this may restart it",
        "binlog_expire_logs_seconds": "set binlog_expire_logs_seconds = 86400 as a database flag of the instance; "
        "this may restart it",
    }


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
