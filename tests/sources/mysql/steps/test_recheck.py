"""The results of preflight may be outdated once the position is fixed, so the checks for exactness are repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.errors import PreflightError, SchemaChanged
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from tests.servers import throw_away_mysql

CASCADE = "ALTER TABLE d.child ADD FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE"


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    """A server that does not log what cascades do."""
    options = {"innodb_native_foreign_keys": "ON"}
    with throw_away_mysql(options) as started:
        yield started


@pytest.fixture
def planned(server: MysqlServer) -> tuple[MysqlSource, list[TablePlan]]:
    """A source, and what preflight decided."""
    for statement in (
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d",
        "CREATE TABLE d.parent (id INT PRIMARY KEY)",
        "CREATE TABLE d.child (id INT PRIMARY KEY, p INT)",
        "INSERT INTO d.parent VALUES (1)",
        "INSERT INTO d.child VALUES (1, 1)",
    ):
        server.query(statement)
    source = MysqlSource(settings_of(server))
    return source, source.preflight(["d.*"])


Planned = tuple[MysqlSource, Sequence[TablePlan]]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (CASCADE, "through foreign keys"),
        ("ALTER TABLE d.child ENGINE = MyISAM", "the engine MyISAM"),
        ("ALTER TABLE d.child ADD COLUMN n DECIMAL(60, 0)", "d.child.n"),
    ],
)
def test_what_was_changed_since_preflight(change: str, problem: str, planned: Planned, server: MysqlServer) -> None:
    source, plans = planned
    server.query(change)
    with pytest.raises(PreflightError, match=problem):
        source.record_initial(plans, LockPolicy())


def test_a_key_that_was_dropped_since_preflight(planned: Planned, server: MysqlServer) -> None:
    source, plans = planned
    server.query("ALTER TABLE d.child DROP PRIMARY KEY")
    with pytest.raises(SchemaChanged, match="lost its key"):
        source.record_initial(plans, LockPolicy())


def test_a_column_that_was_hidden_since_preflight(planned: Planned, server: MysqlServer) -> None:
    _, plans = planned
    server.query("CREATE USER copier")
    try:
        server.query("GRANT REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO copier")
        server.query("GRANT SELECT ON d.parent TO copier")
        server.query("GRANT SELECT (id) ON d.child TO copier")
        source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "copier"))
        with pytest.raises(PreflightError, match="lacks SELECT on the table or on some of its columns"):
            source.record_initial(plans, LockPolicy())
    finally:
        server.query("DROP USER copier")


@pytest.mark.slow
def test_a_schema_that_is_no_longer_logged(planned: Planned, server: MysqlServer) -> None:
    source, plans = planned
    server.restart({"binlog_ignore_db": "d"})
    try:
        with pytest.raises(PreflightError, match="the server does not log changes"):
            source.record_initial(plans, LockPolicy())
    finally:
        del server._options["binlog_ignore_db"]
        server.restart()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        (CASCADE,),
        ("SET foreign_key_checks = 0", CASCADE, "DROP TABLE d.parent", "CREATE TABLE d.parent (id INT PRIMARY KEY)"),
        (
            "CREATE TABLE d.c2 LIKE d.child",
            CASCADE.replace("child", "c2"),
            "RENAME TABLE d.child TO d.c3, d.c2 TO d.child",
        ),
    ],
    ids=["added", "with a parent that comes and goes", "swapped in"],
)
def test_a_cascade_that_comes_in_the_window(
    change: Sequence[str], planned: Planned, server: MysqlServer, spark: SparkSession, tmp_path: Path
) -> None:
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), ["d.child"], on_schema_change="fail")
    run.record()
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (*change, "DELETE FROM d.parent"):
            cursor.execute(statement)
    run.snapshot()
    with pytest.raises(SchemaChanged, match="child"):
        run.extract_delta()


def test_a_cascade_to_a_parent_that_does_not_exist_yet(planned: Planned, server: MysqlServer) -> None:
    """Creating the parent does nothing to the child, and the log would show only the parent."""
    source, _ = planned
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET foreign_key_checks = 0")
        cursor.execute("DROP TABLE d.parent")
        cursor.execute(CASCADE)
    with pytest.raises(PreflightError, match=r"d\.parent: a change of d\.parent can change rows of d\.child"):
        source.preflight(["d.child"])
