"""Copies whose log is read from a replica: exact whatever its log has before and after, or refused with the reason.

The oracle is the source itself, read while nobody writes. The source purges the log that the copies need.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import (
    CdcError,
    ExactnessError,
    LogGone,
    PreflightError,
    SourceReplaced,
    SourceUnavailable,
)
from airflow_provider_cdc.jobs import spool
from airflow_provider_cdc.jobs.runtime import retry
from airflow_provider_cdc.report.facts import DagRunName, report_of
from harness.mysql_server import MysqlServer
from harness.proxy import Proxy
from tests.consistency.mysql.test_replicas import Replicated, replicated
from tests.soon import soon

PARALLEL = {"replica_parallel_workers": "4", "replica_preserve_commit_order": "ON"}


class Logged(Replicated):
    """A source, and a replica whose log is read."""

    def follow(self, server: MysqlServer) -> None:
        super().follow(server)
        self.apply_rows_only(server)

    def purge(self) -> None:
        """Remove all log files of the source but an empty new one."""
        self.primary.query("FLUSH BINARY LOGS")
        last = self.primary.query("SHOW BINARY LOGS")[-1][0]
        self.primary.query(f"PURGE BINARY LOGS TO '{last}'")


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Iterator[Logged]:
    with replicated(spark, tmp_path, Logged) as fleet:
        yield fleet


@pytest.mark.slow
def test_the_log_of_a_lagging_replica_is_waited_for(fleet: Logged) -> None:
    """The replica has nothing of the window when the reads end, and the source has purged it."""
    replica = fleet.replica("b", **PARALLEL)
    run = fleet.run(log=replica)
    run.preflight()
    replica.query("STOP REPLICA SQL_THREAD")
    fleet.replace_writes("before")
    expected = fleet.begin(run)
    fleet.replace_writes("after")
    channel = "performance_schema.replication_connection_status"
    received = f"SELECT CONCAT(RECEIVED_TRANSACTION_SET, ',', @@global.gtid_executed) FROM {channel}"
    ((executed,),) = fleet.primary.query("SELECT @@global.gtid_executed")
    soon(lambda: replica.query(f"SELECT GTID_SUBSET('{executed}', ({received}))"), [(1,)])
    fleet.purge()
    reads = fleet.snapshot(run)
    soon(lambda: reads.done() or fleet.sessions(replica, "%WAIT_FOR_EXECUTED_GTID_SET%") > 0, True)
    assert not reads.done(), reads.result()
    replica.query("START REPLICA SQL_THREAD")
    fleet.end(run, expected, reads)
    uuid = replica.query("SELECT @@server_uuid")[0][0]
    sections = report_of(Run.load(run.run), DagRunName("dag", "run")).sections
    assert [uuid in told for name, told in sections[0].rows if name == "log read from"] == [True]
    fleet.replace_writes("the next night")
    fleet.caught_up(replica)
    fleet.purge()
    fleet.do("UPDATE visits SET note = 'the last change'")
    fleet.caught_up(replica)
    following = fleet.run(log=replica, refresh="auto")
    following.preflight()
    assert all(plan.base for plan in following.plans)
    fleet.end(following, fleet.begin(following))


@pytest.mark.slow
def test_what_the_log_of_a_replica_would_not_have_is_refused_by_preflight(fleet: Logged) -> None:
    """All reasons, one after the other, each undone afterwards."""
    replica = fleet.replica("b")

    def refused(message: str, server: MysqlServer = replica) -> None:
        with pytest.raises(PreflightError, match=message):
            fleet.run(log=server).preflight()

    refused("is the source itself", fleet.primary)
    refused("is not a replica", fleet.start("c"))
    refused("its log leaves out changes", fleet.replica("d", super_read_only="ON", binlog_ignore_db="other"))
    fleet.do("CREATE TABLE ratio (id INT PRIMARY KEY, x INT, g INT AS (x / 3) STORED)")
    fleet.caught_up(replica)
    refused(r"shop.ratio: it has STORED columns, so the log of the replica .* has the values that the replica computed")
    fleet.do("DROP TABLE ratio")
    replica.query("STOP REPLICA")
    replica.query("CHANGE REPLICATION SOURCE TO REQUIRE_ROW_FORMAT = 0")
    replica.query("START REPLICA")
    refused("it executes statements that a session of the source logs instead of the rows")
    fleet.apply_rows_only(replica)
    for name, wrong, right in (
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("replica_preserve_commit_order", "OFF", "ON"),
        ("binlog_order_commits", "OFF", "ON"),
        ("super_read_only", "OFF", "ON"),
    ):
        replica.query("STOP REPLICA")
        replica.query(f"SET GLOBAL {name} = {wrong}")
        replica.query("START REPLICA")
        refused(f"{name} is {wrong}|{name}: is {wrong}")
        replica.query("STOP REPLICA")
        replica.query(f"SET GLOBAL {name} = {right}")
        replica.query("START REPLICA")
    fleet.run(log=replica).preflight()


@pytest.mark.slow
def test_what_is_done_on_the_replica_while_its_log_is_needed(fleet: Logged) -> None:
    replica, other = fleet.replica("b"), fleet.replica("c")

    def refused(*statements: str, because: str, by: type[Exception] = ExactnessError) -> None:
        run = fleet.run(log=replica)
        run.preflight()
        fleet.begin(run)
        fleet.do(*statements, server=replica)
        with pytest.raises(by, match=because):
            run.snapshot()

    idempotent = [f"SET GLOBAL replica_exec_mode = {mode}" for mode in ("IDEMPOTENT", "STRICT")]
    refused(*idempotent, because="replica_exec_mode was set at")
    filters = [
        f"CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ('{names}')" for names in ("shop.s%", "mysql.rds_%")
    ]
    fleet.do("STOP REPLICA", filters[1], "START REPLICA", server=replica)
    refused("STOP REPLICA", *filters, "START REPLICA", because="replication filter was set at")
    refused("SET GLOBAL binlog_row_image = MINIMAL", because="binlog_row_image: is MINIMAL")
    fleet.do("SET GLOBAL binlog_row_image = FULL", server=replica)
    refused("STOP REPLICA", "RESET REPLICA ALL", because="is not a replica")
    fleet.follow(replica)
    run = fleet.run(log=replica)
    run.preflight()
    fleet.begin(run)
    ((executed,),) = replica.query("SELECT @@global.gtid_executed")
    fleet.do(
        "STOP REPLICA",
        "RESET BINARY LOGS AND GTIDS",
        f"SET GLOBAL gtid_purged = '{executed}'",
        "START REPLICA",
        server=replica,
    )
    fleet.do("UPDATE visits SET note = 'in its new log'")
    fleet.caught_up(replica)
    with pytest.raises(SourceReplaced, match="the log was reset"):
        run.snapshot()
    # The connection leads to another replica.
    with Proxy(replica.port) as name:
        run = fleet.run(log=name)
        run.preflight()
        fleet.begin(run)
        name.target = other.port
        with pytest.raises(SourceReplaced, match="another server answers"):
            run.snapshot()
        fleet.caught_up(other)
        # The run begins anew with the log of this server.
        fleet.begin(run)
        # A session skips a transaction of the source, so the log lacks its rows.
        skipped = fleet.following()
        fleet.do(f"SET gtid_next = '{skipped}'", "BEGIN", "COMMIT", server=other)
        fleet.do("UPDATE stock SET note = 'lost on the replica' WHERE id = 20", "UPDATE visits SET note = 'later'")
        run.snapshot()
        with pytest.raises(ExactnessError, match=r"a session on the replica .* committed this transaction") as refusal:
            run.extract_delta()
        assert skipped in str(refusal.value)
    # Of these statements, its log would have the rows that they change on the replica.
    run = fleet.run(log=replica, wait=1)
    run.preflight()
    fleet.begin(run)
    fleet.do("SET binlog_format = STATEMENT", "UPDATE stock SET note = 'on the source' WHERE @@server_id = 1")
    with pytest.raises(CdcError, match=r"it cannot apply a change|Replica_SQL_Running: No"):
        run.snapshot()


@pytest.mark.slow
def test_the_replica_is_restarted_and_both_servers_purge_their_logs_behind_the_spool(
    fleet: Logged, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run notices a second restart of the replica."""
    for name, value in (("POLL_SECONDS", 0.1), ("PIECE_BYTES", 1)):
        monkeypatch.setattr(spool, name, value)
    replica = fleet.replica("b", super_read_only="ON", **PARALLEL)
    run = fleet.run(log=replica, chunk_rows=10, chunk_pause=0.5, spool="auto")
    run.preflight()
    expected = fleet.begin(run)
    reads = fleet.snapshot(run)

    def pieces() -> tuple[Link, ...]:
        return Run.load(run.run).pieces()

    def has_pieces(number: int) -> bool:
        return reads.done() or len(pieces()) >= number

    replica.restart()
    for note in ("one", "two", "three"):
        number = len(pieces()) + 1
        replica.query("FLUSH BINARY LOGS")
        fleet.replace_writes(note)
        fleet.caught_up(replica)
        soon(partial(has_pieces, number), True)
        assert not reads.done(), reads.result()
        fleet.purge()
        # The replica may remove all files before the one in which the last piece ends.
        replica.query(f"PURGE BINARY LOGS TO '{pieces()[-1].end.partition(':')[0]}'")
    assert "binlog.000001" not in {name for name, *_ in replica.query("SHOW BINARY LOGS")}
    fleet.replace_writes("four")
    fleet.end(run, expected, reads)
    assert "of the log were spooled" in capfd.readouterr().out
    replica.restart()
    recorded = Run.load(run.run)
    with pytest.raises(LogGone, match="was started 2 times"):
        run.source.check_identity(recorded.expected_identity(), recorded.manifest.initial)


@pytest.mark.slow
def test_the_replica_stops_and_a_table_is_altered(fleet: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that waits for the replica fails with the reason. Its retry moves the run: the log of the replica has
    the change."""
    replica = fleet.replica("b", **PARALLEL)
    run = fleet.run(log=replica, wait=1)
    run.preflight()
    fleet.begin(run)
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 1.0)
    replica.query("STOP REPLICA SQL_THREAD")
    fleet.replace_writes("after")
    with pytest.raises(SourceUnavailable, match=r"lagged behind .* Replica_SQL_Running: No"):
        run.snapshot()
    replica.query("START REPLICA SQL_THREAD")
    fleet.do("ALTER TABLE stock ADD COLUMN more INT DEFAULT 5", "UPDATE stock SET more = 1 WHERE id % 2")
    fleet.caught_up(replica)
    fleet.end(run, fleet.rows())


@pytest.mark.long
def test_the_nights_go_on_whatever_server_has_the_log(fleet: Logged) -> None:
    """Each night reads the log of another server. A table is altered between two nights, and the last one copies a
    past position."""
    first, second = fleet.replica("b", **PARALLEL), fleet.replica("c")
    fleet.replace_writes("after the settings were set")

    def night(log: MysqlServer | None, **more: Any) -> None:
        run = fleet.run(log=log, refresh="auto", **more)
        run.preflight()
        assert fleet.number == 1 or all(plan.base for plan in run.plans), [plan.reason for plan in run.plans]
        expected = past if "as_of" in more else fleet.begin(run)
        if "as_of" in more:
            run.lock_and_record()
        fleet.replace_writes(f"after {fleet.number}")
        fleet.end(run, expected)

    for log in (first, second, None, first):
        night(log)
        fleet.do(f"ALTER TABLE stock ADD COLUMN more_{fleet.number} INT DEFAULT 5")
        fleet.do(f"UPDATE stock SET more_{fleet.number} = 1 WHERE id % 2")
        fleet.replace_writes(f"before {fleet.number}")
        fleet.caught_up(first)
        fleet.caught_up(second)
    past = fleet.rows()
    ((as_of,),) = fleet.primary.query("SELECT @@global.gtid_executed")
    fleet.replace_writes("later")
    night(second, as_of=as_of)
