"""Copies whose tables are read on replicas: exact whatever the replicas lack or show, or refused with the reason.

The oracle is the source itself, read while nobody writes, or another replica that MySQL stops at the position.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.errors import ExactnessError, PreflightError
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, published, settings_of
from harness.proxy import Proxy
from harness.server_process import ServerProcess
from harness.throw_away import throw_away
from tests.consistency.mysql.test_failover import Fleet
from tests.seeds import seeds
from tests.soon import soon
from tests.sources.mysql.simulated_server import SimulatedServer

LONG = pytest.mark.long
SLOW = pytest.mark.slow

ROWS = 400
Rows = Counter[tuple[Any, ...]]


class Replicated(Fleet):
    """A source with replicas. The source keeps its last transactions in a crash."""

    def __init__(self, spark: SparkSession, folder: Path, directory: Path) -> None:
        super().__init__(spark, folder, directory)
        self.pool = ThreadPoolExecutor(1)
        for name in ("sync_binlog", "innodb_flush_log_at_trx_commit"):
            self.primary.query(f"SET GLOBAL {name} = 1")
        values = ", ".join(f"({number}, 'old')" for number in range(10, ROWS))
        self.do(f"INSERT INTO stock VALUES {values}")

    def replica(self, name: str, **options: str) -> MysqlServer:
        server = super().replica(name, **options)
        server.query("SET GLOBAL super_read_only = ON")
        return server

    def apply_rows_only(self, replica: MysqlServer) -> None:
        """Let the applier of a replica stop at statements."""
        self.do("STOP REPLICA", "CHANGE REPLICATION SOURCE TO REQUIRE_ROW_FORMAT = 1", "START REPLICA", server=replica)

    def write_on(self, replica: MysqlServer, *statements: str) -> None:
        """Write on a replica that is read-only before and afterwards."""
        replica.query("SET GLOBAL read_only = OFF")
        self.do(*statements, server=replica)
        replica.query("SET GLOBAL super_read_only = ON")

    def following(self) -> str:
        """The GTID of the next transaction of the source."""
        ((executed,),) = self.primary.query("SELECT @@global.gtid_executed")
        return f"{self.uuid}:{int(executed.rpartition('-')[2]) + 1}"

    def run(
        self,
        *replicas: MysqlServer | Proxy | SimulatedServer,
        log: MysqlServer | Proxy | None = None,
        wait: int = 120,
        tables: Sequence[str] = ("shop.*",),
        spool: str = "off",
        again: bool = False,
        **more: Any,
    ) -> Pipeline:
        """The next run, or the last one again. ``log`` is the server whose log it reads."""
        self.number += 0 if again else 1
        own = settings_of(self.primary)
        read = [replace(own, host=one.host, port=one.port, tls={"mode": "disabled"}) for one in (*replicas, log) if one]
        log_server = read.pop() if log else None
        settings = replace(own, replicas=tuple(read), log_server=log_server, replica_wait_seconds=wait)
        target, run_id = (self.folder / "lake").as_uri(), f"202602{self.number:02}T000000Z-00000000"
        lock = LockPolicy(replica_wait_seconds=wait)
        return Pipeline(self.spark, settings, target, tables, run_id=run_id, lock=lock, spool=spool, **more)

    def rows(self, server: MysqlServer | None = None) -> dict[str, Rows]:
        server = server or self.primary
        names = [name for (name,) in server.query("SHOW TABLES IN shop")]
        return {f"shop.{name}": Counter(server.query(f"SELECT * FROM shop.{name}")) for name in names}

    def begin(self, run: Pipeline) -> dict[str, Rows]:
        """Fix the position of a run, while nobody writes. Return the rows at this position."""
        run.lock_and_record()
        return self.rows()

    def snapshot(self, run: Pipeline) -> Future[dict[str, Any]]:
        """Begin to read the tables."""
        return self.pool.submit(run.snapshot)

    def end(self, run: Pipeline, expected: dict[str, Rows], reads: Future[dict[str, Any]] | None = None) -> Any:
        """Finish the run, and compare. Return the replicas that were read."""
        read = self.snapshot(run) if reads is None else reads
        result = read.result()
        run.extract_delta()
        tables = run.consolidate()["published"]
        assert {name: Counter(published(uri)[1]) for name, uri in tables.items()} == expected
        return result["replicas"]

    def replace_writes(self, note: str, server: MysqlServer | None = None) -> None:
        self.do(
            f"UPDATE stock SET note = '{note}' WHERE id % 3 = 0",
            "DELETE FROM stock WHERE id % 7 = 1",
            f"INSERT INTO stock (note) VALUES ('{note}'), ('{note}')",
            "UPDATE stock SET id = id + 100000 WHERE id % 11 = 2",
            f"UPDATE visits SET note = '{note}'",
            server=server,
        )

    def sessions(self, server: MysqlServer, state: str = "") -> int:
        """The number of sessions that read rows on a server, or wait."""
        sql = "SELECT COUNT(*) FROM performance_schema.processlist WHERE INFO LIKE %s AND ID <> CONNECTION_ID()"
        return int(server.query(sql, (state or "SELECT%",))[0][0])

    def is_read(self, server: MysqlServer) -> bool:
        """Whether chunks were read on a server."""
        return self.chunks_read(server) > 0

    def chunks_read(self, server: MysqlServer) -> int:
        """The number of chunks that the present sessions read on a server."""
        sql = "SELECT COALESCE(SUM(COUNT_EXECUTE), 0) FROM performance_schema.prepared_statements_instances"
        return int(server.query(f"{sql} WHERE SQL_TEXT LIKE %s", ("SELECT `id`%",))[0][0])


Fleets = TypeVar("Fleets", bound=Replicated)


@contextmanager
def replicated(spark: SparkSession, folder: Path, kind: type[Fleets]) -> Iterator[Fleets]:
    with throw_away("cdc-mysql-") as directory:
        fleet = kind(spark, folder, directory)
        try:
            yield fleet
        finally:
            for server in fleet.servers:
                # A clean shutdown takes longer, and the data is thrown away.
                server.kill()
            fleet.pool.shutdown()


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Iterator[Replicated]:
    with replicated(spark, tmp_path, Replicated) as fleet:
        yield fleet


@pytest.mark.slow
@SLOW
def test_reads_wait_for_a_lagging_replica_and_changes_that_it_shows_are_undone(fleet: Replicated) -> None:
    """The replica stops before the position is fixed. It has later changes, too, when the tables are read."""
    replica = fleet.replica("b")
    run = fleet.run(replica)
    run.preflight()
    reasons = {plan.table.name: plan.reason for plan in run.plans}
    assert "read on a replica" in reasons["stock"]
    assert "read on the source" in reasons["visits"]
    replica.query("STOP REPLICA SQL_THREAD")
    assert run.source.load(["replica_lag_seconds"]) == {"replica_lag_seconds": float("inf")}
    fleet.replace_writes("before")
    expected = fleet.begin(run)
    fleet.replace_writes("after")
    reads = fleet.snapshot(run)
    soon(lambda: fleet.sessions(replica, "%WAIT_FOR_EXECUTED_GTID_SET%") > 0, True)
    replica.query("START REPLICA SQL_THREAD")
    fleet.caught_up(replica)
    (read,) = fleet.end(run, expected, reads).values()
    assert read["waited"] > 0
    assert read["rows"] > ROWS // 2


@LONG
def test_parallel_appliers_without_commit_order(fleet: Replicated) -> None:
    """The replica has applied a later transaction, but not yet an earlier one, when its tables are read."""
    options = {"replica_parallel_workers": "4", "replica_preserve_commit_order": "OFF"}
    replica = fleet.replica("b", **options)
    run = fleet.run(replica)
    run.preflight()
    with replica.connect(autocommit=False) as blocking, blocking.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.stock WHERE id = 20 FOR SHARE")
        fleet.do("UPDATE stock SET note = 'of the position, late' WHERE id = 20")
        fleet.do("UPDATE stock SET note = 'of the position' WHERE id = 30")
        expected = fleet.begin(run)
        soon(lambda: replica.query("SELECT note FROM shop.stock WHERE id = 30"), [("of the position",)])
        reads = fleet.snapshot(run)
        soon(lambda: fleet.sessions(replica, "%WAIT_FOR_EXECUTED_GTID_SET%") > 0, True)
        assert replica.query("SELECT note FROM shop.stock WHERE id = 20")[0] == ("old",)
        blocking.rollback()
    with replica.connect(autocommit=False) as blocking, blocking.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.stock WHERE id = 40 FOR SHARE")
        fleet.do("UPDATE stock SET note = 'after it, late' WHERE id = 40")
        fleet.do("UPDATE stock SET note = 'after it' WHERE id = 50", "DELETE FROM stock WHERE id = 60")
        soon(lambda: replica.query("SELECT COUNT(*) FROM shop.stock WHERE id = 60"), [(0,)])
        # The replica shows what comes later in the log, and not what comes before it.
        reads.result()
        blocking.rollback()
    assert fleet.end(run, expected, reads)


@LONG
def test_a_replica_that_is_switched_off_in_mid_read(fleet: Replicated) -> None:
    """The other replica is read instead."""
    first, second = fleet.replica("b"), fleet.replica("c")
    run = fleet.run(first, second, chunk_rows=20, chunk_pause=0.3)
    run.preflight()
    expected = fleet.begin(run)
    fleet.replace_writes("after")
    fleet.caught_up(first)
    fleet.caught_up(second)
    reads = fleet.snapshot(run)
    soon(lambda: any(map(fleet.is_read, (first, second))), True)
    dead = first if fleet.is_read(first) else second
    dead.kill()
    fleet.replace_writes("later")
    (left,) = {first, second} - {dead}
    read = fleet.end(run, expected, reads)
    assert list(read) == [left.query("SELECT @@server_uuid")[0][0]]


@LONG
@pytest.mark.parametrize("flushes", [1, 2])
def test_a_replica_that_crashes_before_it_is_read(flushes: int, fleet: Replicated) -> None:
    """It could have lost rows of transactions that its log has, if its setting allows this."""
    options = {"innodb_flush_log_at_trx_commit": str(flushes), "super_read_only": "ON"}
    replica = fleet.replica("b", **options, replica_parallel_workers="4", replica_preserve_commit_order="OFF")
    run = fleet.run(replica)
    run.preflight()
    with replica.connect(autocommit=False) as blocking, blocking.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.stock WHERE id = 20 FOR SHARE")
        fleet.do("UPDATE stock SET note = 'late' WHERE id = 20", "DELETE FROM stock WHERE id = 30")
        soon(lambda: replica.query("SELECT COUNT(*) FROM shop.stock WHERE id = 30"), [(0,)])
        # Its executed set has a hole.
        replica.crash()
    expected = fleet.begin(run)
    fleet.replace_writes("after")
    if flushes == 1:
        assert fleet.end(run, expected)
        return
    with pytest.raises(ExactnessError, match="it crashed while it wrote the log file"):
        run.snapshot()


ERRANT = "UPDATE stock SET note = 'errant' WHERE id = 300"


@pytest.mark.slow
@SLOW
def test_what_is_done_on_the_replica_after_preflight(fleet: Replicated) -> None:
    """Each is undone afterwards, as far as that is possible."""
    replica = fleet.replica("b")

    def refused(*statements: str, because: str, server: MysqlServer | None = None) -> None:
        run = fleet.run(replica)
        run.preflight()
        fleet.begin(run)
        if server is None:
            fleet.write_on(replica, *statements)
        else:
            fleet.do(*statements, server=server)
        with pytest.raises(ExactnessError, match=because):
            run.snapshot()

    refused("SET GLOBAL read_only = OFF", because="super_read_only is OFF", server=replica)
    replica.query("SET GLOBAL super_read_only = ON")
    refused("SET GLOBAL replica_exec_mode = IDEMPOTENT", because="replica_exec_mode is IDEMPOTENT")
    fleet.do("SET GLOBAL replica_exec_mode = STRICT", server=replica)
    ignore = "CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE"
    refused("STOP REPLICA SQL_THREAD", f"{ignore} = ('shop.v%')", because=r"REPLICATE_WILD_IGNORE_TABLE \(shop.v%\)")
    # Amazon leaves out its own tables.
    fleet.do(f"{ignore} = ('mysql.rds_%')", "START REPLICA SQL_THREAD", server=replica)
    alter = "ALTER TABLE stock MODIFY note VARCHAR"
    refused("SET sql_log_bin = 0", f"{alter}(200)", because=r"from the table on the source: its columns differ")
    fleet.write_on(replica, "SET sql_log_bin = 0", f"{alter}(100)")
    refused("STOP REPLICA", "RESET REPLICA ALL", because="is not a replica")
    fleet.follow(replica)
    refused("SET GLOBAL sync_binlog = 0", because="sync_binlog is 0", server=fleet.primary)
    fleet.do("SET GLOBAL sync_binlog = 1", server=fleet.primary)
    # A row that only the replica lacks ends the applier.
    failing = fleet.run(replica)
    failing.preflight()
    fleet.begin(failing)
    fleet.write_on(replica, "SET sql_log_bin = 0", "DELETE FROM stock WHERE id = 30")
    fleet.do("DELETE FROM stock WHERE id = 30")
    applier = "SELECT SERVICE_STATE FROM performance_schema.replication_applier_status"
    soon(lambda: replica.query(applier), [("OFF",)])
    with pytest.raises(ExactnessError, match="it cannot apply a change"):
        failing.snapshot()
    fleet.write_on(replica, "SET sql_log_bin = 0", "INSERT INTO stock (id, note) VALUES (30, 'old')")
    replica.query("START REPLICA SQL_THREAD")
    begun = fleet.run(replica)
    begun.preflight()
    other = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa:1"
    refused(f"SET gtid_next = '{other}'", ERRANT, because=f"1 transaction that the source lacks: {other}")
    # The usual repair: the source gets the GTID, but not the change.
    fleet.do(f"SET gtid_next = '{other}'", "BEGIN", "COMMIT")
    with pytest.raises(PreflightError, match=f"{other} is another transaction there"):
        fleet.run(replica).preflight()
    fleet.begin(begun)
    with pytest.raises(ExactnessError, match=f"{other} is another transaction there"):
        begun.snapshot()


@pytest.mark.slow
@pytest.mark.parametrize(
    "gtid", [pytest.param("own", marks=LONG), pytest.param("source", marks=LONG), pytest.param("skipped", marks=SLOW)]
)
def test_an_errant_write_that_is_repaired_after_preflight(gtid: str, fleet: Replicated) -> None:
    """The source gets another transaction with the GTID of the write, before or after the position. Or the replica gets
    an empty one, so that it skips the source's. It is read-only, and later transactions are the same on both."""
    replica = fleet.replica("b")
    run = fleet.run(replica)
    run.preflight()
    if gtid == "own":
        fleet.write_on(replica, ERRANT)
        ((uuid,),) = replica.query("SELECT @@server_uuid")
        fleet.do(f"SET gtid_next = '{uuid}:1'", "BEGIN", "COMMIT")
        because = "someone wrote on it"
    elif gtid == "source":
        following = fleet.following()
        fleet.write_on(replica, f"SET gtid_next = '{following}'", ERRANT)
        fleet.do("UPDATE stock SET note = 'lost on the replica' WHERE id = 20")
        because = f"{following} is another transaction there"
    else:
        following = fleet.following()
        fleet.do(f"SET gtid_next = '{following}'", "BEGIN", "COMMIT", server=replica)
        fleet.do("UPDATE stock SET note = 'lost on the replica' WHERE id = 20", "UPDATE visits SET note = 'later'")
        fleet.caught_up(replica)
        because = rf"committed 1 transaction with GTIDs of other servers \({following}\)"
    fleet.begin(run)
    with pytest.raises(ExactnessError, match=because):
        run.snapshot()


@LONG
def test_a_write_on_the_replica_while_it_is_read(fleet: Replicated) -> None:
    """Nothing shows the write: its GTID is that of the next transaction of the source, and others follow."""
    replica = fleet.replica("b")
    run = fleet.run(replica, chunk_rows=20, chunk_pause=0.3)
    run.preflight()
    fleet.begin(run)
    following = fleet.following()
    reads = fleet.snapshot(run)
    soon(lambda: fleet.is_read(replica), True)
    fleet.write_on(replica, f"SET gtid_next = '{following}'", ERRANT)
    fleet.do("UPDATE stock SET note = 'lost on the replica' WHERE id = 20", "UPDATE visits SET note = 'later'")
    fleet.caught_up(replica)
    with pytest.raises(ExactnessError, match="read_only was set while tables were read"):
        reads.result()


@LONG
def test_a_replica_that_applies_old_changes_again_while_it_is_read(fleet: Replicated) -> None:
    """Its rows go back to before the position, and forth again."""
    replica = fleet.replica("b")
    before, again = fleet.primary.query("SELECT @@global.gtid_executed")[0][0], fleet.following()
    fleet.do(*(f"UPDATE stock SET note = '{note}' WHERE id = {ROWS - 1}" for note in ("old again", "of the position")))
    fleet.caught_up(replica)
    run = fleet.run(replica, chunk_rows=20, chunk_pause=0.3)
    run.preflight()
    fleet.begin(run)
    reads = fleet.snapshot(run)
    soon(lambda: fleet.is_read(replica), True)
    fleet.do(
        "STOP REPLICA",
        "RESET REPLICA",
        "RESET BINARY LOGS AND GTIDS",
        f"SET GLOBAL gtid_purged = '{before}'",
        f"START REPLICA UNTIL SQL_AFTER_GTIDS = '{again}'",
        server=replica,
    )
    soon(lambda: replica.query("SELECT note FROM shop.stock ORDER BY id DESC LIMIT 1"), [("old again",)])
    soon(lambda: reads.done() or fleet.chunks_read(replica) > ROWS // 20, True)
    replica.query("START REPLICA")
    with pytest.raises(ExactnessError, match="RESET was executed while tables were read; gtid_purged was set"):
        reads.result()


class Name(Proxy):
    """A name that leads to several servers in turn."""

    def __init__(self, *servers: ServerProcess) -> None:
        self.turns: Iterator[int] = cycle(server.port for server in servers)
        super().__init__(0)

    @property
    def target(self) -> int:
        return next(self.turns)

    @target.setter
    def target(self, port: int) -> None:
        pass


@LONG
def test_a_name_that_leads_to_several_replicas(fleet: Replicated) -> None:
    """Each session checks the replica that answers it, and the log of the same replica."""
    first, second = fleet.replica("b"), fleet.replica("c")
    with Name(first, second, second) as name:
        run = fleet.run(name, chunk_rows=50)
        run.preflight()
        expected = fleet.begin(run)
        fleet.replace_writes("after")
        assert fleet.end(run, expected)
    with Name(first) as name:
        run = fleet.run(name, chunk_rows=50)
        run.preflight()
        following = fleet.following()
        fleet.do(f"SET gtid_next = '{following}'", "BEGIN", "COMMIT", server=second)
        fleet.do("UPDATE stock SET note = 'lost on one'", "UPDATE visits SET note = 'later'")
        fleet.caught_up(second)
        expected = fleet.begin(run)
        # The log of the other replica does not show what this one lacks.
        name.turns = chain([second.port], repeat(first.port))
        (read,) = fleet.end(run, expected)
        assert read == first.query("SELECT @@server_uuid")[0][0]
    run = fleet.run(first)
    run.preflight()
    ((uuid,),) = second.query("SELECT @@server_uuid")
    fleet.write_on(second, ERRANT)
    fleet.do(f"SET gtid_next = '{uuid}:1'", "BEGIN", "COMMIT")
    with Proxy(first.port) as name:
        run = fleet.run(name)
        run.preflight()
        name.target = second.port
        fleet.begin(run)
        with pytest.raises(ExactnessError, match="someone wrote on it"):
            run.snapshot()


@LONG
def test_stored_columns_that_the_replica_computes_by_its_own_settings(fleet: Replicated) -> None:
    """The table is read on the source, whatever columns are copied."""
    replica = fleet.replica("b")
    fleet.do(
        "CREATE TABLE ratio (id INT PRIMARY KEY, x INT, y INT, g DECIMAL(30,15) AS (x / y) STORED INVISIBLE, "
        "h DECIMAL(30, 15) AS (g) VIRTUAL)",
        "SET SESSION div_precision_increment = 8",
        "INSERT INTO ratio (id, x, y) VALUES (1, 1, 3), (2, 2, 3)",
    )
    fleet.caught_up(replica)
    here, there = (server.query("SELECT id, h FROM shop.ratio") for server in (fleet.primary, replica))
    assert here != there
    run = fleet.run(replica)
    run.preflight()
    reasons = {plan.table.name: plan.reason for plan in run.plans}
    assert "read on the source" in reasons["ratio"]
    expected = fleet.begin(run)
    expected["shop.ratio"] = Counter(fleet.primary.query("SELECT id, x, y, g, h FROM shop.ratio"))
    assert fleet.end(run, expected)


@pytest.mark.slow
@SLOW
def test_preflight_refuses_servers_whose_rows_may_differ(fleet: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """All reasons, one after the other, each undone afterwards."""
    replica, other = fleet.replica("b"), fleet.start("c")

    def refused(message: str, server: MysqlServer | SimulatedServer = replica) -> None:
        with pytest.raises(PreflightError, match=message):
            fleet.run(server).preflight()

    fleet.run(replica).preflight()
    refused("is the source itself", fleet.primary)
    refused("is not a replica", other)
    with SimulatedServer(replica, "8.4.3") as older:
        refused("its version is 8.4.3, and 9", older)
    for change, back, message in (
        ("STOP REPLICA SQL_THREAD", "START REPLICA SQL_THREAD", "its SQL thread is stopped"),
        ("SET GLOBAL replica_exec_mode = IDEMPOTENT", "SET GLOBAL replica_exec_mode = STRICT", "replica_exec_mode"),
    ):
        replica.query(change)
        refused(message)
        replica.query(back)
    for change, back, message in (
        ("MODIFY note VARCHAR(99)", "MODIFY note VARCHAR(100)", r"its columns differ \(note\)"),
        ("ENGINE = MyISAM", "ENGINE = InnoDB", "its engine differ"),
        ("ALTER note SET DEFAULT 'x'", "ALTER note DROP DEFAULT", "its default values"),
        ("DROP PRIMARY KEY, ADD UNIQUE k (id)", "DROP KEY k, ADD PRIMARY KEY (id)", "its key is the index k"),
        ("ADD note2 INT AS (CHAR_LENGTH(note)) INVISIBLE", "DROP note2", r"its columns differ \(note2\)"),
        (
            "ADD CONSTRAINT f FOREIGN KEY (note) REFERENCES parent (note) ON DELETE CASCADE",
            "DROP FOREIGN KEY f",
            "foreign key",
        ),
    ):
        fleet.write_on(
            replica,
            "SET sql_log_bin = 0",
            "CREATE TABLE IF NOT EXISTS parent (note VARCHAR(100) PRIMARY KEY)",
            "SET foreign_key_checks = 0",
            f"ALTER TABLE stock {change}",
        )
        refused(message)
        fleet.write_on(replica, "SET sql_log_bin = 0", f"ALTER TABLE stock {back}")
    fleet.write_on(replica, "SET sql_log_bin = 0", "DROP TABLE parent")
    fleet.primary.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
    refused("innodb_flush_log_at_trx_commit is 2")
    fleet.primary.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    fleet.write_on(replica, ERRANT)
    refused("someone wrote on it")
    refused("performance_schema is OFF", fleet.replica("silent", performance_schema="OFF"))
    monkeypatch.setattr(MysqlServer, "time_zone", "JST-9")
    refused("time zone of its system", fleet.replica("d"))


@LONG
@pytest.mark.parametrize("seed", seeds())
def test_random_writes_on_the_source_while_replicas_are_read(seed: int, fleet: Replicated) -> None:
    """A replica that MySQL itself stops at the position has the same rows. The replicas lag, and apply in parallel.
    The log is read from a replica, too. The next night rolls the copies forward, from the log of the same replica, or
    of the source."""
    draw = random.Random(seed)
    options = {"replica_parallel_workers": "4", "replica_preserve_commit_order": draw.choice(("ON", "OFF"))}
    first, second, oracle = fleet.replica("b", **options), fleet.replica("c"), fleet.start("oracle")
    log = draw.choice((second, fleet.replica("log", replica_parallel_workers="4")))
    more = ("stock_2", "stock_3", "stock_4")
    for name in more:
        fleet.do(f"CREATE TABLE {name} LIKE stock", f"INSERT INTO {name} SELECT * FROM stock")
    fleet.apply_rows_only(log)
    fleet.caught_up(first)
    fleet.caught_up(log)
    run = fleet.run(first, second, log=log, chunk_rows=30, chunk_pause=0.02)
    run.preflight()
    done = threading.Event()

    def write(number: int) -> None:
        mine = random.Random(seed * 100 + number)
        while not done.is_set():
            key, other = mine.randrange(2 * ROWS), mine.randrange(2 * ROWS)
            stock = mine.choice(("stock", *more))
            fleet.do(
                mine.choice(
                    (
                        f"UPDATE {stock} SET note = 'w{number} {other}' WHERE id BETWEEN {key} AND {key + 5}",
                        f"REPLACE INTO {stock} VALUES ({key}, 'r{number} {other}')",
                        f"DELETE FROM {stock} WHERE id IN ({key}, {other})",
                        f"UPDATE IGNORE {stock} SET id = {other} WHERE id = {key}",
                        f"INSERT INTO visits VALUES ({key}, 'v{number}')",
                        f"DELETE FROM visits WHERE id = {key} LIMIT 1",
                    )
                )
            )

    def lag() -> None:
        mine = random.Random(seed)
        while not done.wait(mine.random()):
            server = mine.choice((first, second, log))
            server.query("STOP REPLICA SQL_THREAD")
            done.wait(mine.random())
            server.query("START REPLICA SQL_THREAD")

    with ThreadPoolExecutor(4) as pool:
        acting = [pool.submit(write, number) for number in range(3)]
        try:
            position = run.lock_and_record()
            acting.append(pool.submit(lag))
            result = run.snapshot()
        finally:
            done.set()
        for one in acting:
            one.result()
    run.extract_delta()
    tables = run.consolidate()["published"]
    assert result["replicas"]
    oracle.query("RESET BINARY LOGS AND GTIDS")
    where = f"SOURCE_HOST = '{fleet.primary.host}', SOURCE_PORT = {fleet.primary.port}, SOURCE_USER = 'root'"
    oracle.query(f"CHANGE REPLICATION SOURCE TO {where}, SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1")
    oracle.query(f"START REPLICA UNTIL SQL_AFTER_GTIDS = '{position}'")
    soon(lambda: oracle.query("SELECT @@global.gtid_executed"), [(position,)])
    assert {name: Counter(published(uri)[1]) for name, uri in tables.items()} == fleet.rows(oracle)
    fleet.replace_writes("the next night")
    following = fleet.run(first, second, log=draw.choice((log, None)), refresh="auto")
    following.preflight()
    assert all(plan.base for plan in following.plans)
    fleet.end(following, fleet.begin(following))
