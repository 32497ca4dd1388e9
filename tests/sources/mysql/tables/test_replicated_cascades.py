"""A server that logs cascades does not log those of changes received from a server that does not log them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import CascadeNotLogged, PreflightError
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.servers import throw_away_mysql

TABLES = (
    "CREATE TABLE parent (id INT PRIMARY KEY, v INT)",
    "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
    "CREATE TABLE alone (id INT PRIMARY KEY, v INT)",
    "INSERT INTO parent VALUES (1, 1), (2, 2), (3, 3)",
    "INSERT INTO child VALUES (1, 1), (2, 2), (3, 3)",
    "INSERT INTO alone VALUES (1, 1)",
)
Hand = Callable[[MysqlServer, MysqlServer, str], None]


@pytest.fixture(scope="module")
def older() -> Iterator[MysqlServer]:
    """A server that does not log what cascades do."""
    options = {"innodb_native_foreign_keys": "ON"}
    with throw_away_mysql(options) as started:
        yield started


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    with throw_away_mysql() as started:
        # What the tests make is not in the log, and without any transaction there is no position.
        started.query("CREATE DATABASE any")
        yield started


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return f"s{abs(hash(request.node.name)) % 10**9}"


def run(server: MysqlServer, schema: str, *statements: str) -> None:
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def make(server: MysqlServer, schema: str) -> None:
    """The tables, which are in no log: both servers have them before one receives the changes of the other."""
    quiet = "SET sql_log_bin = 0"
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in (quiet, f"CREATE DATABASE IF NOT EXISTS {schema}", f"USE {schema}", *TABLES):
            cursor.execute(statement)


def replay(older: MysqlServer, server: MysqlServer, *options: str) -> None:
    """Apply the last log file of one server to another as a point-in-time recovery does."""
    (name, *_), *_ = older.query("SHOW BINARY LOG STATUS")
    reader = [*older.tool("mysqlbinlog"), "--no-defaults", "--read-from-remote-server", *options]
    log = subprocess.run(
        [*reader, f"--host={older.host}", f"--port={older.port}", "--user=root", name], capture_output=True, check=True
    )
    client = [*server.tool("mysql"), "--no-defaults", f"--host={server.host}", f"--port={server.port}", "--user=root"]
    subprocess.run([*client, "--binary-mode"], input=log.stdout, check=True)


def by_mysqlbinlog(older: MysqlServer, server: MysqlServer, schema: str) -> None:
    replay(older, server)


def by_mysqlbinlog_under_own_gtids(older: MysqlServer, server: MysqlServer, schema: str) -> None:
    replay(older, server, "--skip-gtids")


def by_replication_for_a_moment(older: MysqlServer, server: MysqlServer, schema: str) -> None:
    where = f"SOURCE_HOST = '{older.host}', SOURCE_PORT = {older.port}, SOURCE_USER = 'root', SOURCE_PASSWORD = ''"
    (name, *_), *_ = older.query("SHOW BINARY LOG STATUS")
    begin = f"SOURCE_AUTO_POSITION = 0, SOURCE_LOG_FILE = '{name}', SOURCE_LOG_POS = 4"
    server.query(f"CHANGE REPLICATION SOURCE TO {where}, {begin}, GET_SOURCE_PUBLIC_KEY = 1")
    server.query("START REPLICA")
    deadline = time.monotonic() + 30
    while server.query(f"SELECT COUNT(*) FROM {schema}.parent")[0][0] == len("123"):
        assert time.monotonic() < deadline, server.query("SHOW REPLICA STATUS")
        time.sleep(0.05)
    server.query("STOP REPLICA")
    server.query("RESET REPLICA ALL")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hand", "compressed"),
    [(by_mysqlbinlog, False), (by_mysqlbinlog_under_own_gtids, True), (by_replication_for_a_moment, False)],
)
def test_cascades_of_changes_from_a_server_that_does_not_log_them_stop_the_run(
    hand: Hand,
    compressed: bool,
    older: MysqlServer,
    server: MysqlServer,
    spark: SparkSession,
    schema: str,
    tmp_path: Path,
) -> None:
    make(older, schema)
    make(server, schema)
    older.query("FLUSH BINARY LOGS")
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [f"{schema}.child", f"{schema}.alone"])
    pipeline.record()
    assert {plan.consistency for plan in pipeline.plans} == {"watermark"}
    run(older, schema, f"SET binlog_transaction_compression = {compressed}", "DELETE FROM parent WHERE id = 2")
    hand(older, server, schema)
    assert server.query(f"SELECT id FROM {schema}.child ORDER BY id") == [(1,), (3,)]
    pipeline.snapshot()
    with pytest.raises(CascadeNotLogged, match="a server that does not log") as raised:
        pipeline.extract_delta()
    assert f"{schema}.parent at binlog." in raised.value.where


@pytest.mark.slow
def test_a_copy_that_such_cascades_came_after_is_not_rolled_forward(
    older: MysqlServer, server: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    """Also where they have GTIDs of this very server. The other tables are."""
    make(older, schema)
    make(server, schema)
    older.query("FLUSH BINARY LOGS")

    def night(number: int) -> Pipeline:
        run_id = f"2026010{number}T000000Z-00000000"
        return Pipeline(spark, settings_of(server), tmp_path.as_uri(), [f"{schema}.*"], run_id=run_id, refresh="auto")

    first = night(1)
    first.record()
    first.finish()
    run(older, schema, "DELETE FROM parent WHERE id = 2")
    replay(older, server, "--skip-gtids")
    run(server, schema, "UPDATE alone SET v = 2")
    second = night(2)
    second.record()
    assert {plan.table.name: bool(plan.base) for plan in second.plans} == {
        "alone": True,
        "child": False,
        "parent": True,
    }
    tables = second.finish()["published"]
    assert sorted(published(tables[f"{schema}.child"])[1]) == [(1, 1), (3, 3)]
    assert sorted(published(tables[f"{schema}.parent"])[1]) == [(1, 1), (3, 3)]


@pytest.mark.slow
def test_cascades_that_the_server_logs_stop_nothing(
    older: MysqlServer, server: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    """Nor do changes of other servers on which no foreign key acts."""
    make(older, schema)
    make(server, schema)
    older.query("FLUSH BINARY LOGS")
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [f"{schema}.child"])
    pipeline.record()
    run(
        server, schema, "DELETE FROM parent WHERE id = 2", "UPDATE alone SET v = 7", "REPLACE INTO parent VALUES (3, 9)"
    )
    run(
        older,
        schema,
        "INSERT INTO parent VALUES (5, 5)",
        "SET foreign_key_checks = 0",
        "DELETE FROM parent WHERE id = 1",
    )
    replay(older, server, "--skip-gtids")
    tables = pipeline.finish()["published"]
    assert sorted(published(tables[f"{schema}.child"])[1]) == [(1, 1), (2, 2), (3, 3)]


@pytest.mark.long
@pytest.mark.parametrize("logs", [True, False])
def test_a_promoted_server_has_a_past_where_the_one_that_it_followed_logs_cascades(
    logs: bool, older: MysqlServer, server: MysqlServer, spark: SparkSession, schema: str, tmp_path: Path
) -> None:
    """So has a member of a group, whose transactions are not named after the server either."""
    with throw_away_mysql() as newer:
        followed = newer if logs else older
        make(followed, schema)
        make(server, schema)
        followed.query("FLUSH BINARY LOGS")
        before = server.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
        run(followed, schema, "UPDATE alone SET v = 5", "DELETE FROM parent WHERE id = 2")
        by_replication_for_a_moment(followed, server, schema)
    run(server, schema, "DELETE FROM parent WHERE id = 3")
    pipeline = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [f"{schema}.child"], as_of=before)
    if not logs:
        with pytest.raises(PreflightError, match="a server that does not log"):
            pipeline.preflight()
        return
    pipeline.record()
    tables = pipeline.finish()["published"]
    assert sorted(published(tables[f"{schema}.child"])[1]) == [(1, 1), (2, 2), (3, 3)]
