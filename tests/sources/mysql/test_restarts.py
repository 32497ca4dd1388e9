"""A copy must not hold what a crash of the server took back, nor miss what happened between two unobserved starts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.chunk import Chunk
from airflow_provider_cdc.core.options import LockPolicy
from airflow_provider_cdc.core.plan import InitialPoint, TablePlan
from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.errors import ExactnessError, LogGone, PreflightError, SourceReplaced
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.session import session
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from tests.seeds import some
from tests.servers import throw_away_mysql

SMALL: Mapping[str, str | None] = {"innodb_redo_log_capacity": "8M", "innodb_buffer_pool_size": "32M"}


@pytest.fixture(scope="module")
def server() -> Iterator[MysqlServer]:
    with throw_away_mysql(SMALL) as started:
        yield started


@pytest.fixture
def table(server: MysqlServer) -> str:
    server.query("DROP DATABASE IF EXISTS d")
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    server.query("INSERT INTO d.t VALUES (1), (2), (3)")
    return "d.t"


@pytest.fixture
def copy() -> Iterator[Path]:
    """Where to keep a copy of a server's data."""
    with tempfile.TemporaryDirectory(prefix="cdc-mysql-copy-") as directory:
        yield Path(directory) / "data"


class Run:
    """A run that has begun, and its source."""

    def __init__(self, server: MysqlServer, table: str) -> None:
        source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root"))
        self.point: InitialPoint = source.record_initial(
            [TablePlan(TableName.parse(table), "watermark", "")], LockPolicy()
        )
        self.source = source.of_run(self.point.identity, self.point.position)

    @property
    def table(self) -> Table:
        return self.point.tables[0]

    def check(self) -> None:
        # As in lock_and_record: any server may answer, and the check has to find out what it lost.
        MysqlSource(self.source.settings).check_identity(self.point.identity, self.point.position)

    def segments(self, end: str) -> int:
        return len(self.source.log_segments(self.point.position, end, self.point.identity))

    def read(self) -> tuple[set[int], str]:
        """The rows, and the incarnation of the server that they were read from."""
        with self.source.reader(self.table, "watermark", LockPolicy()) as reader:
            found = {row["id"] for batch in reader.read(Chunk(0)) for row in batch.to_pylist()}
            return found, reader.settle()


def test_what_power_loss_took_back_in_mid_read_is_not_published(
    server: MysqlServer, table: str, copy: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [table])
    run.record()
    server.copy_data(copy)
    server.query(f"INSERT INTO {table} VALUES (4), (5)")
    bound_reads = MysqlSource.bound_reads

    def crash_first(source: MysqlSource) -> object:
        monkeypatch.setattr(MysqlSource, "bound_reads", bound_reads)
        server.crash(copy)
        server.query(f"INSERT INTO {table} VALUES (6)")
        return bound_reads(source)

    monkeypatch.setattr(MysqlSource, "bound_reads", crash_first)
    with pytest.raises(LogGone, match="crashed") as refused:
        run.finish()
    assert "lock_and_record" in refused.value.hint
    assert not list(tmp_path.glob("d.t"))


def test_a_clean_restart_in_mid_read_has_everything_read_again(
    server: MysqlServer, table: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Pipeline(spark, settings_of(server), tmp_path.as_uri(), [table])
    run.record()
    bound_reads = MysqlSource.bound_reads

    def restart_first(source: MysqlSource) -> object:
        monkeypatch.setattr(MysqlSource, "bound_reads", bound_reads)
        server.restart()
        server.query(f"INSERT INTO {table} VALUES (6)")
        return bound_reads(source)

    monkeypatch.setattr(MysqlSource, "bound_reads", restart_first)
    run.snapshot()
    assert run.found["snapshot"]["rows"] == 4, "the part of the first start was kept"
    run.extract_delta()
    uri = run.consolidate()["published"][table]
    assert sorted(published(uri)[1]) == [(1,), (2,), (3,)]


def test_a_crash_changes_the_incarnation_and_ends_the_run(server: MysqlServer, table: str) -> None:
    run = Run(server, table)
    _, before = run.read()
    assert run.source.bound_reads().incarnation == before == run.point.identity["started"]
    time.sleep(1)
    server.crash()
    assert run.read()[1] != before
    with pytest.raises(LogGone, match="crashed") as refused:
        run.source.bound_reads()
    assert "lock_and_record" in refused.value.hint
    with pytest.raises(LogGone, match="crashed"):
        run.check()


def test_a_crash_is_seen_whatever_the_clock_said(server: MysqlServer, table: str) -> None:
    """As if the clock had been set back, so that both starts have the same second."""
    run = Run(server, table)
    server.crash()
    end = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root")).bound_reads().log_end
    with pytest.raises(LogGone, match="crashed"):
        run.segments(end)


@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
def test_a_clean_restart_is_not_taken_for_a_crash(checksum: str, server: MysqlServer, table: str) -> None:
    server.query(f"SET PERSIST binlog_checksum = {checksum}")
    run = Run(server, table)
    for _ in range(3):
        server.query("FLUSH BINARY LOGS")
    time.sleep(1)
    server.restart()
    server.query("FLUSH BINARY LOGS")
    run.check()
    assert run.source.bound_reads().incarnation != run.point.identity["started"]
    assert run.segments(run.source.bound_reads().log_end) >= 1
    server.query("RESET PERSIST")


@pytest.mark.long
def test_two_restarts_leave_the_options_of_the_first_unknown(server: MysqlServer, table: str) -> None:
    run = Run(server, table)
    server.restart({"innodb_native_foreign_keys": "ON"})
    server.query(f"INSERT INTO {table} VALUES (9)")
    server.restart({"innodb_native_foreign_keys": "OFF"})
    with pytest.raises(LogGone, match="started 2 times"):
        run.check()
    with pytest.raises(LogGone, match="started 2 times"):
        run.segments(run.source.bound_reads().log_end)


@pytest.mark.parametrize(
    ("name", "other", "back"),
    some(("binlog_ignore_db", "elsewhere", None), ("innodb_native_foreign_keys", "ON", "OFF")),
)
def test_start_options_that_changed_at_a_restart(
    name: str, other: str, back: str | None, server: MysqlServer, table: str
) -> None:
    run = Run(server, table)
    server.restart({name: other})
    try:
        with pytest.raises(ExactnessError, match=f"{name} is {other} since the server was started again"):
            run.check()
    finally:
        if back is None:
            del server._options[name]
        server.restart({} if back is None else {name: back})


def test_data_put_back_to_before_the_run(server: MysqlServer, table: str, copy: Path) -> None:
    server.copy_data(copy)
    server.query(f"INSERT INTO {table} VALUES (7)")
    run = Run(server, table)
    server.crash(copy)
    # The same GTID, and another transaction.
    server.query(f"INSERT INTO {table} VALUES (8)")
    assert server.query("SELECT GTID_SUBSET(%s, @@gtid_executed)", (run.point.position,)) in ([(1,)], [[1]])
    with pytest.raises(LogGone):
        run.check()


def test_data_of_a_clean_stop_put_back_after_the_reads(server: MysqlServer, table: str, copy: Path) -> None:
    """The log that was read and the one that was put back both end properly, and each shows one restart."""
    run = Run(server, table)
    server.stop()
    server.copy_data(copy)
    server._launch()
    server.query(f"INSERT INTO {table} VALUES (7)")
    bound = run.source.bound_reads()
    time.sleep(1)
    server.crash(copy)
    server.query(f"INSERT INTO {table} VALUES (8)")
    server.query(f"INSERT INTO {table} VALUES (9)")
    run.check()
    with pytest.raises(SourceReplaced, match="put back"):
        run.segments(bound.log_end)


def test_a_log_that_was_reset_and_reached_the_same_gtids(server: MysqlServer, table: str) -> None:
    server.query("RESET BINARY LOGS AND GTIDS")
    server.query(f"INSERT INTO {table} VALUES (7)")
    run = Run(server, table)
    server.query("RESET BINARY LOGS AND GTIDS")
    for number in range(8, 12):
        server.query(f"INSERT INTO {table} VALUES ({number})")
    with session(run.source.settings):
        pass  # it has the whole initial position
    with pytest.raises(SourceReplaced, match="the log was reset"):
        run.check()
    with pytest.raises(SourceReplaced, match="the log was reset"):
        run.segments(run.source.bound_reads().log_end)


def test_a_restored_dump_that_names_the_same_gtids(server: MysqlServer, table: str) -> None:
    run = Run(server, table)
    server.query("RESET BINARY LOGS AND GTIDS")
    server.query("SET GLOBAL gtid_purged = %s", (run.point.position,))
    with pytest.raises(SourceReplaced, match="the log was reset"):
        run.check()
    server.query("RESET BINARY LOGS AND GTIDS")


def test_an_empty_history_is_refused_as_a_position(server: MysqlServer, table: str) -> None:
    server.query("RESET BINARY LOGS AND GTIDS")
    with pytest.raises(PreflightError, match="gtid_executed: is empty") as refused:
        Run(server, table)
    server.query("CREATE DATABASE IF NOT EXISTS shop")
    assert "CREATE DATABASE" in refused.value.problems[0].hint
    Run(server, table)


def test_the_start_is_told_without_the_performance_schema(
    mysql_factory: Callable[[Mapping[str, str | None]], MysqlServer],
) -> None:
    server = mysql_factory({"performance_schema": "OFF"})
    answered = time.time()
    server.query("CREATE DATABASE d")
    server.query("CREATE TABLE d.t (id INT PRIMARY KEY)")
    run = Run(server, "d.t")
    seen = set()
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        seen.add(run.source.bound_reads().incarnation)
    assert seen == {run.point.identity["started"]}
    born = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - _start_seconds(server.pid))
    assert born - 1 < int(seen.pop()) <= answered


def _start_seconds(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")
