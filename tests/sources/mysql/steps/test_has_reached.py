"""A replica has reached the positions that it has applied, and the times that its own clock has passed."""

from __future__ import annotations

import time
from datetime import UTC, timedelta

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.steps.check_identity import has_reached
from harness.mysql_server import MysqlServer
from tests.conftest import MysqlFactory


def settings(server: MysqlServer) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root")


@pytest.mark.slow
def test_a_replica_has_reached_what_it_has_applied(mysql_factory: MysqlFactory) -> None:
    source, replica = mysql_factory({}), mysql_factory({})
    replica.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = 'root', "
        "SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1",
        (source.host, source.port),
    )
    source.query("CREATE DATABASE d")
    position = GtidSet.parse(str(source.query("SELECT @@gtid_executed")[0][0]))
    assert has_reached(settings(source), position).reached
    assert not has_reached(settings(replica), position).reached
    # A time counts on the server that is read: a later commit of the replica gets a later commit time there.
    for server in (source, replica):
        (now,) = server.query("SELECT UTC_TIMESTAMP(6)")[0]
        moment = now.replace(tzinfo=UTC)
        assert has_reached(settings(server), moment - timedelta(microseconds=1)).reached
        assert not has_reached(settings(server), moment + timedelta(hours=1)).reached
    replica.query("START REPLICA")
    deadline = time.monotonic() + 60
    while not has_reached(settings(replica), position).reached:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert replica.query("SHOW DATABASES LIKE 'd'") == [("d",)]
