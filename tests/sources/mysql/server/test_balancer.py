"""Several servers may share an address: every session of a run uses the server on which the run began, or fails."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ExactnessError, PreflightError, SourceReplaced
from airflow_provider_cdc.sources.api.source import AT_START, ConnectionSettings, Start
from airflow_provider_cdc.sources.api.window import LogSegment, UpperBound
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.session import query, session
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline
from harness.proxy import Proxy, own_greeting
from tests.servers import throw_away_mysql

NAME = TableName("d", "t")
SMALL: Mapping[str, str | None] = {"innodb_redo_log_capacity": "8M", "innodb_buffer_pool_size": "32M"}
MysqlFactory = Callable[[Mapping[str, str | None]], MysqlServer]


@pytest.fixture(scope="module")
def first() -> Iterator[MysqlServer]:
    with throw_away_mysql(SMALL) as started:
        started.query("CREATE DATABASE d")
        started.query(f"CREATE TABLE {NAME} (id INT PRIMARY KEY)")
        started.query(f"INSERT INTO {NAME} VALUES (1), (2), (3)")
        yield started


@pytest.fixture(scope="module")
def lagging(first: MysqlServer) -> Iterator[MysqlServer]:
    """A replica of ``first`` that lacks its last transaction."""
    with throw_away_mysql(SMALL) as replica:
        replica.query(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{first.host}', SOURCE_PORT={first.port}, SOURCE_USER='root', "
            "SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1"
        )
        replica.query("START REPLICA")
        has_come = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 120)"
        assert replica.query(has_come, first.query("SELECT @@gtid_executed")[0]) == [(0,)]
        replica.query("STOP REPLICA")
        first.query(f"UPDATE {NAME} SET id = id + 10 ORDER BY id DESC")
        yield replica


def settings(server: MysqlServer | Proxy) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls={"mode": "disabled"})


def begin(source: MysqlSource) -> InitialPoint:
    return source.record_initial([TablePlan(NAME, "watermark", "")], LockPolicy())


def read(source: MysqlSource, point: InitialPoint, consistency: str = "watermark") -> list[int]:
    with source.reader(point.tables[0], consistency, LockPolicy()) as reader:
        return [row["id"] for batch in reader.read(Chunk(0)) for row in batch.to_pylist()]


def read_log(source: MysqlSource, point: InitialPoint) -> None:
    with source.read_segment(LogSegment(0, "binlog.000001", 4, None), point.position, []) as reader:
        list(reader)


END = LogEnd("binlog.000001:4")
USES: Mapping[str, Callable[[MysqlSource, InitialPoint], Any]] = {
    "check_identity": lambda source, point: source.check_identity(point.identity, point.position),
    "plan_chunks": lambda source, point: source.plan_chunks(point.tables[0], 1),
    "reader": read,
    "reader with a lock": lambda source, point: read(source, point, "lock"),
    "bound_reads": lambda source, point: source.bound_reads(),
    "segments": lambda source, point: source.segments(Start(point.position, point.identity), AT_START, END),
    "segments_before": lambda source, point: source.segments_before(LogSegment(0, "binlog.000001", 4, None), 1),
    "read_segment": read_log,
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("other", ["lagging", "mysql"])
def test_every_session_of_a_run_refuses_another_server(
    use: str, other: str, first: MysqlServer, request: pytest.FixtureRequest
) -> None:
    second: MysqlServer = request.getfixturevalue(other)
    with Proxy(first.port) as balancer:
        source = MysqlSource(settings(balancer))
        point = begin(source)
        # As it is sent to executors.
        bound: MysqlSource = pickle.loads(pickle.dumps(source.of_run(point.identity, point.position)))
        balancer.target = second.port
        with pytest.raises(SourceReplaced, match="another server answers") as refused:
            USES[use](bound, point)
        assert second.query("SELECT @@server_uuid")[0][0] in str(refused.value)
        assert "balancer" in refused.value.hint


def test_a_server_that_lags_behind_its_own_past_is_refused(first: MysqlServer) -> None:
    """Such as a server that was restored, or its clone: it has the same name, but not all of the position."""
    source = MysqlSource(settings(first))
    point = begin(source)
    uuid = point.identity.server
    ahead = source.of_run(point.identity, GtidSet.parse(f"{point.position},{uuid}:999999"))
    with pytest.raises(SourceReplaced, match="lacks transactions"):
        ahead.bound_reads()


@pytest.mark.parametrize("other", ["lagging", pytest.param("mysql", marks=pytest.mark.slow)])
def test_a_run_through_a_balancer_publishes_nothing_of_another_server(
    other: str,
    first: MysqlServer,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    second: MysqlServer = request.getfixturevalue(other)
    if other == "mysql":
        second.query("CREATE DATABASE IF NOT EXISTS d")
        second.query(f"CREATE TABLE IF NOT EXISTS {NAME} (id INT PRIMARY KEY)")
    with Proxy(first.port) as balancer:
        run = Pipeline(spark, settings(balancer), tmp_path.as_uri(), [str(NAME)])
        run.record()
        # What the driver asks reaches the first, what the tasks read is on the second.
        plan_chunks, bound_reads = MysqlSource.plan_chunks, MysqlSource.bound_reads

        def then_second(*arguments: Any) -> list[Chunk]:
            chunks = plan_chunks(*arguments)
            balancer.target = second.port
            return chunks

        def first_again(source: MysqlSource) -> UpperBound:
            balancer.target = first.port
            return bound_reads(source)

        monkeypatch.setattr(MysqlSource, "plan_chunks", then_second)
        monkeypatch.setattr(MysqlSource, "bound_reads", first_again)
        with pytest.raises(CdcError) as refused:
            run.finish()
    assert isinstance(refused.value, SourceReplaced)
    assert not list(tmp_path.glob("d.t"))


@pytest.mark.slow
def test_a_clone_with_the_same_uuid_is_not_taken_for_the_server(first: MysqlServer) -> None:
    with tempfile.TemporaryDirectory(prefix="cdc-mysql-") as directory:
        source = MysqlSource(settings(first))
        point = begin(source)
        first.copy_data(Path(directory) / "data")
        time.sleep(1)
        with MysqlServer.start(Path(directory), options=SMALL) as clone, Proxy(clone.port) as balancer:
            assert clone.query("SELECT @@server_uuid") == first.query("SELECT @@server_uuid")
            clone.query(f"DELETE FROM {NAME} LIMIT 1")
            bound = MysqlSource(settings(balancer)).of_run(point.identity, point.position)
            with bound.reader(point.tables[0], "watermark", LockPolicy()) as reader:
                assert reader.wait_until_durable() != source.bound_reads().incarnation, "the part would count"
            for use in (USES["check_identity"], USES["bound_reads"]):
                with pytest.raises(ExactnessError, match="was not closed cleanly"):
                    use(bound, point)


def test_a_proxy_that_may_share_sessions_is_refused(first: MysqlServer) -> None:
    point = begin(MysqlSource(settings(first)))
    with Proxy(first.port, own_greeting) as proxy:
        source = MysqlSource(settings(proxy))
        with pytest.raises(PreflightError, match="a proxy answers"):
            source.preflight([str(NAME)])
        for use in (begin, lambda source: source.of_run(point.identity, point.position).bound_reads()):
            with pytest.raises(SourceReplaced, match="a proxy answers"):
                use(source)


def test_a_clone_on_another_machine_is_refused_at_once(first: MysqlServer) -> None:
    source = MysqlSource(settings(first))
    point = begin(source)
    elsewhere = Facts({**point.identity.fields(), "hostname": "db2"})
    with pytest.raises(SourceReplaced, match=r"another server answers"):
        source.of_run(elsewhere, point.position).bound_reads()
    with pytest.raises(SourceReplaced, match=r"\(db2\)"):
        source.check_identity(elsewhere, point.position)


def test_checking_the_server_costs_a_session_one_more_statement(first: MysqlServer) -> None:
    source = MysqlSource(settings(first))
    point = begin(source)
    plain, bound = (_statements(each) for each in (settings(first), source.of_run(point.identity, GtidSet()).settings))
    assert bound == plain + 1


def _statements(of: ConnectionSettings) -> int:
    with session(of, reading=True) as connection:
        return int(dict(query(connection, "SHOW SESSION STATUS LIKE 'Questions'"))["Questions"])
