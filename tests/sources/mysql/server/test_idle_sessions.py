"""A session keeps a snapshot or a lock on the server only while the process that needs it is alive."""

from __future__ import annotations

import dataclasses
import time

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.session import IDLE_SECONDS, PINNED
from airflow_provider_cdc.sources.mysql.steps import chunk_reader
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

IDLE = 3


@pytest.fixture
def source(mysql: MysqlServer, monkeypatch: pytest.MonkeyPatch) -> MysqlSource:
    """For how many seconds its sessions may be idle."""
    pin = PINNED["wait_timeout"]
    assert pin.value == IDLE_SECONDS
    monkeypatch.setitem(PINNED, "wait_timeout", dataclasses.replace(pin, value=str(IDLE)))
    return MysqlSource(settings_of(mysql))


@pytest.fixture
def table(source: MysqlSource, mysql: MysqlServer, schema: str) -> Table:
    mysql.query(f"CREATE TABLE {schema}.t (id INT)")
    mysql.query(f"INSERT INTO {schema}.t VALUES (1), (2)")
    return source.record_initial([TablePlan(TableName(schema, "t"), "lock", "")], LockPolicy()).tables[0]


def snapshots(mysql: MysqlServer) -> int:
    return len(
        mysql.query(
            "SELECT 1 FROM information_schema.INNODB_TRX JOIN performance_schema.threads "
            "ON PROCESSLIST_ID = trx_mysql_thread_id "
            "JOIN performance_schema.session_connect_attrs USING (PROCESSLIST_ID) "
            "WHERE ATTR_NAME = 'program_name' AND ATTR_VALUE = 'airflow-provider-cdc'"
        )
    )


@pytest.mark.slow
def test_a_driver_that_fell_silent_does_not_keep_its_snapshot(
    source: MysqlSource, mysql: MysqlServer, table: Table
) -> None:
    with source.reader(table, "lock", LockPolicy()) as reader:
        assert snapshots(mysql) == 1
        # The server's own clock may be late.
        deadline = time.monotonic() + 20 * IDLE
        while snapshots(mysql):
            assert time.monotonic() < deadline, "it keeps its snapshot"
            time.sleep(0.2)
        with pytest.raises(SourceUnavailable):
            list(reader.read(Chunk(0)))


def test_the_session_of_a_lock_that_is_kept_through_a_long_read_is_not_idle(
    mysql: MysqlServer, source: MysqlSource, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts the seconds of silence from the last statement."""
    # Here it is the lock that matters, and not how fast this machine is.
    monkeypatch.undo()
    monkeypatch.setattr(chunk_reader, "_SIGN_SECONDS", 0)
    with source.reader(table, "lock", LockPolicy(through_read=True)) as reader:
        statements = []
        for _ in range(3):
            assert sum(batch.num_rows for batch in reader.read(Chunk(0))) == 2
            ((count,),) = mysql.query(
                "SELECT VARIABLE_VALUE FROM performance_schema.status_by_thread JOIN performance_schema.metadata_locks "
                "ON THREAD_ID = OWNER_THREAD_ID WHERE VARIABLE_NAME = 'Questions' "
                "AND OBJECT_SCHEMA = %s AND LOCK_TYPE = 'SHARED_READ_ONLY'",
                (table.name.schema,),
            )
            statements.append(int(count))
        assert statements[0] < statements[1] < statements[2]


def test_nothing_waits_for_group_replication_under_the_lock(
    mysql: MysqlServer, source: MysqlSource, table: Table
) -> None:
    """It would wait for transactions that the lock blocks."""
    mysql.query("SET GLOBAL group_replication_consistency = 'BEFORE'")
    mysql.query("CREATE USER grouped")
    try:
        mysql.query("GRANT SELECT, LOCK TABLES, REPLICATION CLIENT, REPLICATION SLAVE ON *.* TO grouped")
        plain = MysqlSource(settings_of(mysql, "grouped"))
        with plain.reader(table, "lock", LockPolicy(through_read=True)):
            levels = mysql.query(
                "SELECT VARIABLE_VALUE FROM performance_schema.variables_by_thread JOIN performance_schema.threads "
                "USING (THREAD_ID) WHERE VARIABLE_NAME = 'group_replication_consistency' "
                "AND PROCESSLIST_USER = 'grouped'"
            )
        assert [level for (level,) in levels] == ["EVENTUAL", "EVENTUAL"]
    finally:
        mysql.query("DROP USER grouped")
        mysql.query("SET GLOBAL group_replication_consistency = DEFAULT")
