"""A copy must not have what a crash of the server lost, and must not lack changes between two unobserved starts."""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.positions.as_of import parse
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.run.results import SNAPSHOT, SnapshotResult
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ExactnessError, LogGone, PreflightError, SourceReplaced
from airflow_provider_cdc.jobs.begin.initial_position import begin
from airflow_provider_cdc.jobs.consolidate import step as consolidate
from airflow_provider_cdc.jobs.consolidate.publish import publish
from airflow_provider_cdc.sinks.registry import open_sink
from airflow_provider_cdc.sources.api.source import AT_START, ConnectionSettings, Start
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.server.session import session
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

    def segments(self, end: LogEnd) -> int:
        return len(self.source.segments(Start(self.point.position, self.point.identity), AT_START, end))

    def read(self) -> tuple[set[int], str]:
        """The rows, and the incarnation of the server that they were read from."""
        with self.source.reader(self.table, "watermark", LockPolicy()) as reader:
            found = {row["id"] for batch in reader.read(Chunk(0)) for row in batch.to_pylist()}
            return found, reader.wait_until_durable()


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_crash_changes_the_incarnation_and_ends_the_run(server: MysqlServer, table: str) -> None:
    run = Run(server, table)
    _, before = run.read()
    assert run.source.bound_reads().incarnation == before == run.point.identity.fields()["started"]
    time.sleep(1)
    server.crash()
    assert run.read()[1] != before
    with pytest.raises(LogGone, match="crashed") as refused:
        run.source.bound_reads()
    assert "lock_and_record" in refused.value.hint
    with pytest.raises(LogGone, match="crashed"):
        run.check()


@pytest.mark.slow
def test_a_crash_is_seen_whatever_the_clock_said(server: MysqlServer, table: str) -> None:
    """As if the clock had been set back, so that both starts have the same second."""
    run = Run(server, table)
    server.crash()
    end = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root")).bound_reads().log_end
    with pytest.raises(LogGone, match="crashed"):
        run.segments(end)


@pytest.mark.slow
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
    run.source.check_tables([run.table])
    assert run.source.bound_reads().incarnation != run.point.identity.fields()["started"]
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


@pytest.mark.slow
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
        with pytest.raises(ExactnessError, match=f"{name} has been {other} since"):
            run.check()
    finally:
        if back is None:
            del server._options[name]
        server.restart({} if back is None else {name: back})


@pytest.mark.slow
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


@pytest.mark.slow
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
    with pytest.raises(SourceReplaced, match="a backup was restored"):
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


class Nights:
    """Runs that publish copies without rows of one table, so that its head tells which of them is the latest."""

    def __init__(self, server: MysqlServer, table: str, lake: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.source = MysqlSource(ConnectionSettings("mysql", server.host, server.port, "root"))
        self.table = table
        self.server = server
        self._lake, self._caplog = Storage(lake.as_uri()), caplog
        self._number = itertools.count(1)

    @property
    def head(self) -> dict[str, Any]:
        found: dict[str, Any] = self._lake.read_json(f"{self.table}/_latest.json")
        return found

    def begin(self, as_of: str = "") -> Any:
        plans = [TablePlan(TableName.parse(self.table), "watermark", "")]
        options = StepOptions(as_of=as_of)
        point = parse(as_of)

        def record() -> InitialPoint:
            if point is None:
                return self.source.record_initial(plans, LockPolicy())
            return self.source.record_past(point, plans, options)

        run_id = f"202601{next(self._number):02}T000000Z-00000000"
        sink = open_sink("parquet", self._lake)
        return begin(self.source, plans, options, record, run_id=run_id, lake=self._lake.uri, heads=sink)

    def publish(self, run: Any) -> tuple[bool, dict[str, str]]:
        """Return whether the copy became the latest one, and which histories the run ended."""
        decision = Decision({self.table: ()}, {self.table: 0}, {}, 0, 0, "2026-01-01T00:00:00+00:00")
        run.finish_step(SNAPSHOT, SnapshotResult(run.manifest.initial_position, LogEnd(""), 0, {}, {}, 0.0, ""))
        publish(run, decision)
        assert run.folder.read_json("latest.json")[self.table] == (self.head["run_id"] == run.run_id)
        return self.head["run_id"] == run.run_id, consolidate._superseded(run, decision)

    def next(self, as_of: str = "") -> tuple[bool, dict[str, str], str]:
        """The same of a new run, and its warnings."""
        self._caplog.clear()
        with self._caplog.at_level(logging.WARNING):
            run = self.begin(as_of)
        return *self.publish(run), self._caplog.text

    def insert(self, *numbers: int) -> None:
        for number in numbers:
            self.server.query(f"INSERT INTO {self.table} VALUES ({number})")


@pytest.fixture
def nights(server: MysqlServer, table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Nights:
    return Nights(server, table, tmp_path, caplog)


@pytest.mark.slow
def test_a_server_that_goes_on_has_one_history(nights: Nights) -> None:
    """Also if its log is rotated, purged before the last copy, or the server is restarted."""
    assert nights.next() == (True, {}, "")
    first = nights.head
    nights.server.query("FLUSH BINARY LOGS")
    nights.insert(10)
    assert nights.next() == (True, {}, "")
    nights.server.purge_log()
    nights.server.restart()
    nights.insert(11)
    assert nights.next() == (True, {}, "")
    assert nights.head["history"]["id"] == first["history"]["id"]
    nights.insert(12)
    # A copy of the past, which is published last, is as old as its position.
    past = nights.head["position"]
    assert nights.next() == (True, {}, "")
    assert nights.next(as_of=past) == (False, {}, "")


@pytest.mark.slow
def test_a_reset_log_begins_a_new_history_whose_copies_are_the_latest_at_once(nights: Nights) -> None:
    nights.insert(*range(10, 16))
    lost, begun_before = nights.begin(), nights.begin()
    nights.publish(lost)
    nights.server.query("RESET BINARY LOGS AND GTIDS")
    nights.insert(20)
    latest, ended, warned = nights.next()
    assert latest
    assert lost.run_id in ended[nights.table]
    assert "no longer has the transactions" in ended[nights.table]
    assert "begins a new history" in warned
    (record,) = nights.head["history"]["superseded"]
    assert (record["run_id"], record["position"]) == (lost.run_id, lost.manifest.initial_position)
    # A run of the history that ended, which is published only now, does not take the head back.
    nights.publish(begun_before)
    assert nights.head["history"]["number"] == 2
    # It is reported once, and stays in the record.
    assert nights.next() == (True, {}, "")
    assert nights.head["history"]["superseded"] == [record]
    # The same GTIDs come again, and more of them.
    nights.server.query("RESET BINARY LOGS AND GTIDS")
    nights.insert(*range(30, 34))
    latest, ended, _ = nights.next()
    assert (latest, nights.head["history"]["number"]) == (True, 3)
    assert "was replaced after the copy was made" in ended[nights.table]


@pytest.mark.slow
def test_data_that_was_put_back_begins_a_new_history_although_its_log_goes_on(nights: Nights, copy: Path) -> None:
    """The log file of the copy is the same, but cut short; and the GTIDs come again, behind it."""
    nights.next()
    nights.server.copy_data(copy)
    nights.insert(*range(10, 13))
    nights.next()
    nights.server.crash(copy)
    nights.insert(*range(20, 26))
    latest, ended, _ = nights.next()
    assert latest
    assert "no longer reaches position" in ended[nights.table]
    assert nights.head["history"]["number"] == 2


def test_a_log_that_was_purged_does_not_tell_whether_it_is_the_same_history(nights: Nights) -> None:
    nights.next()
    before = nights.head["history"]
    nights.server.query("FLUSH BINARY LOGS")
    nights.insert(10)
    nights.server.purge_log()
    latest, ended, warned = nights.next()
    assert (latest, ended) == (True, {})
    assert "cannot tell whether" in warned
    assert "was purged" in warned
    now = nights.head["history"]
    assert now["id"] != before["id"]
    assert "was purged" in now["unproven"]
    assert now["number"] == before["number"]


@pytest.mark.slow
def test_the_head_of_an_earlier_version_gives_way_if_the_server_lacks_what_it_has(nights: Nights) -> None:
    nights.insert(10, 11)
    nights.next()
    path = f"{nights.table}/_latest.json"
    nights._lake.write_json(path, {name: value for name, value in nights.head.items() if name != "history"})
    nights.insert(12)
    assert nights.next() == (True, {}, "")
    assert nights.head["history"]["number"] == 1
    nights._lake.write_json(path, {name: value for name, value in nights.head.items() if name != "history"})
    nights.server.query("RESET BINARY LOGS AND GTIDS")
    nights.insert(13)
    latest, ended, _ = nights.next()
    assert (latest, [*ended]) == (True, [nights.table])
    # A mark that a later version, or a user by hand, wrote is ignored.
    odd = {**nights.head, "history": {**nights.head["history"], "mark": "binlog.x:4@y - -"}}
    nights._lake.write_json(path, odd)
    assert nights.next()[:2] == (True, {})
    # The earliest versions did not record the server either.
    nights.insert(14)
    copied = nights.server.query("SELECT @@gtid_executed")[0][0]
    nights._lake.write_json(path, {"run_id": nights.head["run_id"], "initial_gtid_set": copied})
    nights.server.query("RESET BINARY LOGS AND GTIDS")
    nights.insert(15)
    latest, ended, _ = nights.next()
    assert (latest, [*ended]) == (True, [nights.table])


@pytest.mark.slow
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
    assert seen == {run.point.identity.fields()["started"]}
    born = time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - _start_seconds(server.pid))
    assert born - 1 < int(seen.pop()) <= answered


def _start_seconds(pid: int) -> float:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return int(ticks) / os.sysconf("SC_CLK_TCK")
