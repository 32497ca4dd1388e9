"""A replica has reached what it has applied, whatever its source reports and whatever its own clock shows."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.steps.has_reached import has_reached
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
    moment = datetime.now(UTC)
    # An empty log gives no information about any time.
    assert not has_reached(settings(replica), moment).reached
    time.sleep(0.01)
    source.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    for point in (position, moment):
        assert has_reached(settings(source), point).reached
        assert not has_reached(settings(replica), point).reached
    replica.query("START REPLICA")
    for point in (position, moment):
        deadline = time.monotonic() + 60
        while not has_reached(settings(replica), point).reached:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert replica.query("SHOW TABLES FROM d") == [("t",)]
