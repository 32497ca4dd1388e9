"""Members of a group name all transactions after the group, and none of them is reported as a replica."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.server_process import free_port

pytestmark = pytest.mark.long

USER = "USER = 'member', PASSWORD = 'm'"
MEMBERS = "SELECT MEMBER_STATE, MEMBER_ROLE FROM performance_schema.replication_group_members ORDER BY MEMBER_ROLE"
TABLES = ("parent", "child", "alone")


@pytest.fixture(scope="module")
def group() -> Iterator[list[MysqlServer]]:
    """A primary, and a secondary."""
    ports = [free_port(), free_port()]
    name = str(uuid.uuid4())
    with tempfile.TemporaryDirectory(prefix="cdc-mysql-") as directory, ExitStack() as stack:
        servers = []
        for number, port in enumerate(ports, 1):
            options = {
                "plugin_load_add": "group_replication.so",
                "loose_group_replication_group_name": name,
                "loose_group_replication_start_on_boot": "OFF",
                "loose_group_replication_local_address": f"127.0.0.1:{port}",
                "loose_group_replication_group_seeds": ",".join(f"127.0.0.1:{one}" for one in ports),
                "loose_group_replication_ip_allowlist": "127.0.0.1/32",
                "loose_group_replication_recovery_get_public_key": "ON",
                "report_host": "127.0.0.1",
                "server_id": str(number),
            }
            server = stack.enter_context(MysqlServer.start(Path(directory) / str(number), options=options))
            if not server.query("SELECT 1 FROM information_schema.PLUGINS WHERE PLUGIN_NAME = 'group_replication'"):
                pytest.skip("this server has no group replication")
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET sql_log_bin = 0")
                cursor.execute("CREATE USER member@'%' IDENTIFIED BY 'm'")
                cursor.execute("GRANT ALL ON *.* TO member@'%'")
                cursor.execute("RESET BINARY LOGS AND GTIDS")
            servers.append(server)
        servers[0].query("SET GLOBAL group_replication_bootstrap_group = ON")
        for server in servers:
            server.query(f"START GROUP_REPLICATION {USER}")
            servers[0].query("SET GLOBAL group_replication_bootstrap_group = OFF")
        _await(servers[1], (("ONLINE", "PRIMARY"), ("ONLINE", "SECONDARY")))
        yield servers


def _await(server: MysqlServer, members: tuple[tuple[str, str], ...]) -> None:
    deadline = time.monotonic() + 60
    while tuple(server.query(MEMBERS)) != members:
        assert time.monotonic() < deadline, server.query(MEMBERS)
        time.sleep(0.2)


def position(server: MysqlServer) -> str:
    return str(server.query("SELECT @@gtid_executed")[0][0]).replace("\n", "")


def follow(server: MysqlServer, to: str) -> None:
    assert server.query("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 30)", (to,)) == [(0,)]


def rows(server: MysqlServer) -> dict[str, list[Any]]:
    return {f"d.{name}": sorted(server.query(f"SELECT * FROM d.{name}")) for name in TABLES}


def test_each_member_has_a_past_and_copies_that_are_rolled_forward_also_after_a_failover(
    group: list[MysqlServer], spark: SparkSession, tmp_path: Path
) -> None:
    primary, secondary = group
    primary.query("CREATE DATABASE d")
    primary.query("CREATE TABLE d.parent (id INT PRIMARY KEY, v INT)")
    primary.query(
        "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES d.parent (id) ON DELETE CASCADE)"
    )
    primary.query("CREATE TABLE d.alone (id INT PRIMARY KEY, v INT)")
    for name in TABLES:
        primary.query(f"INSERT INTO d.{name} VALUES {', '.join(f'({number}, {number})' for number in range(20))}")

    def copy(server: MysqlServer, night: int, *statements: str, **options: Any) -> dict[str, list[Any]]:
        lake = tmp_path / str(group.index(server))
        run_id = f"202601{night:02}T000000Z-00000000"
        pipeline = Pipeline(spark, settings_of(server), lake.as_uri(), ["d.*"], run_id=run_id, **options)
        pipeline.record()
        if options.get("refresh"):
            assert all(plan.base for plan in pipeline.plans)
        for statement in statements:
            writer.query(statement)
        if statements:
            follow(server, position(writer))
        found = pipeline.finish()["published"]
        return {name: sorted(published(uri)[1]) for name, uri in found.items()}

    writer = primary
    past, before = position(primary), rows(primary)
    for server in group:
        follow(server, past)
        assert copy(server, 1) == before
    primary.query("DELETE FROM d.parent WHERE id = 1")
    primary.query("UPDATE d.alone SET v = 7 WHERE id = 1")
    follow(secondary, position(primary))
    for server in group:
        now = rows(primary)
        assert copy(server, 2, "DELETE FROM d.parent WHERE id = 2", refresh="auto") == now
        assert copy(server, 3, as_of=past) == before
        primary.query("INSERT INTO d.parent VALUES (2, 2)")
        primary.query("INSERT INTO d.child VALUES (2, 2)")
        follow(secondary, position(primary))

    secondary.query("SELECT group_replication_set_as_primary(@@server_uuid)")
    writer = secondary
    secondary.query("DELETE FROM d.parent WHERE id = 3")
    follow(primary, position(secondary))
    for server in group:
        now = rows(secondary)
        assert copy(server, 4, "UPDATE d.parent SET v = v + 1", refresh="auto") == now
        assert copy(server, 5, as_of=past) == before
