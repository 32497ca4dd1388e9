"""Nights on a pair of servers: another server takes over, and the copies go on, or are read anew with the reason.

After each takeover, the new primary writes changes of its own. Each copy is compared with a full copy.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError, SchemaChanged, SourceReplaced
from harness.mysql_server import MysqlServer
from harness.pipeline import Pipeline, settings_of
from harness.throw_away import throw_away
from tests.consistency.comparing import assert_same_copies
from tests.consistency.failovers import OPTIONS, History
from tests.seeds import chain_length, seeds
from tests.soon import soon

LONG = pytest.mark.long
SLOW = pytest.mark.slow

TABLES = ("stock", "visits")
SHARED = {f"shop.{name}" for name in TABLES}


class Fleet:
    """A primary with nights, and servers that replicate from it."""

    def __init__(self, spark: SparkSession, folder: Path, directory: Path) -> None:
        self.spark, self.folder, self.directory = spark, folder, directory
        self.number = 0
        self.servers: list[MysqlServer] = []
        self.primary = self.start("a")
        self.primary.query("RESET BINARY LOGS AND GTIDS")
        ((self.uuid,),) = self.primary.query("SELECT @@server_uuid")
        self.do(
            "CREATE TABLE stock (id INT PRIMARY KEY AUTO_INCREMENT, note VARCHAR(100))",
            "CREATE TABLE visits (id INT, note VARCHAR(100))",
            *(f"INSERT INTO {name} VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')" for name in TABLES),
            before=("CREATE DATABASE shop",),
        )

    def start(self, name: str, **options: str) -> MysqlServer:
        server = MysqlServer.start(self.directory / name, options={"server_id": str(len(self.servers) + 1), **options})
        self.servers.append(server)
        return server

    def replica(self, name: str, **options: str) -> MysqlServer:
        """Start an empty server that replicates everything from the primary."""
        server = self.start(name, **options)
        server.query("RESET BINARY LOGS AND GTIDS")
        self.follow(server)
        return server

    def follow(self, server: MysqlServer) -> None:
        where = f"SOURCE_HOST = '{self.primary.host}', SOURCE_PORT = {self.primary.port}, SOURCE_USER = 'root'"
        server.query(f"CHANGE REPLICATION SOURCE TO {where}, SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1")
        server.query("START REPLICA")
        self.caught_up(server)

    def caught_up(self, server: MysqlServer) -> None:
        (executed,) = self.primary.query("SELECT @@global.gtid_executed")[0]
        soon(lambda: server.query("SELECT GTID_SUBSET(%s, @@global.gtid_executed)", (executed,)), [(1,)])

    def load(self, server: MysqlServer) -> None:
        """Restore a dump of the primary, with its position."""
        login = ["--no-defaults", "--host=127.0.0.1", "--user=root"]
        dump = [*self.primary.tool("mysqldump"), *login, f"--port={self.primary.port}", "--databases", "shop"]
        sql = subprocess.run(
            [*dump, "--set-gtid-purged=ON", "--single-transaction"], capture_output=True, check=True
        ).stdout
        client = [*server.tool("mysql"), *login, f"--port={server.port}"]
        subprocess.run(client, input=sql, check=True)

    def take_over(self, server: MysqlServer) -> None:
        """Promote a server. The primary is stopped for good."""
        self.primary.stop()
        server.query("STOP REPLICA")
        server.query("RESET REPLICA ALL")
        self.primary = server

    def do(self, *statements: str, before: tuple[str, ...] = (), server: MysqlServer | None = None) -> None:
        with (server or self.primary).connect() as connection, connection.cursor() as cursor:
            for statement in (*before, "USE shop", *statements):
                cursor.execute(statement)

    def write(self, note: str) -> None:
        self.do(
            f"UPDATE stock SET note = '{note}' WHERE id % 2",
            f"UPDATE visits SET note = '{note}' WHERE id % 2 = 0",
            f"INSERT INTO stock (note) VALUES ('{note}'), ('{note}')",
            f"INSERT INTO visits (id, note) VALUES (1, '{note}'), (1, '{note}')",
            "DELETE FROM stock WHERE id % 5 = 0",
        )

    def night(self, refresh: str, lake: str = "lake", *, again: bool = False, **more: Any) -> Pipeline:
        """The next run, or the last one again, on the present primary."""
        self.number += 0 if again else 1
        run_id = f"202601{self.number:02}T000000Z-00000000"
        target = (self.folder / lake).as_uri()
        return Pipeline(
            self.spark, settings_of(self.primary), target, ["shop.*"], run_id=run_id, refresh=refresh, **more
        )

    def next_night(self, *, forward: bool, because: str = "") -> Pipeline:
        """Make a night, and compare with a full copy. Return its run."""
        run = self.night("auto")
        run_id = run.run.uri.rstrip("/").rpartition("/")[2]
        run.record()
        based = {str(plan.table) for plan in run.plans if plan.base}
        reasons = [plan.reason for plan in run.plans]
        assert based == (SHARED if forward else set()), reasons
        assert all(because in reason for reason in reasons), reasons
        self.check(run)
        heads = [run.sink.latest(plan.copy_name) for plan in run.plans]
        assert {head.run_id if head else "" for head in heads} == {run_id}
        return run

    def check(self, run: Pipeline) -> None:
        """Finish a run, and compare with a full copy."""
        tables = run.finish()["published"]
        anew = self.night("full", f"anew-{self.number}")
        anew.record()
        assert_same_copies(tables, anew.finish()["published"], f"night {self.number}")


@contextmanager
def _fleet(spark: SparkSession, folder: Path) -> Iterator[Fleet]:
    with throw_away("cdc-mysql-") as directory:
        fleet = Fleet(spark, folder, directory)
        try:
            yield fleet
        finally:
            for server in fleet.servers:
                server.stop()


@pytest.fixture
def fleet(spark: SparkSession, tmp_path: Path) -> Iterator[Fleet]:
    with _fleet(spark, tmp_path) as fleet:
        yield fleet


@pytest.mark.slow
@SLOW
def test_a_planned_switch_keeps_the_nights_going(fleet: Fleet) -> None:
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    fleet.write("before the switch")
    fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.write("after the switch")
    fleet.next_night(forward=True)
    fleet.write("later")
    fleet.next_night(forward=True)


@pytest.mark.slow
def test_a_schema_change_and_a_switch_after_preflight(fleet: Fleet) -> None:
    """The statement has another place in the log of the new server. Only `lock_and_record` runs there."""
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    fleet.write("before the change")
    fleet.do("ALTER TABLE stock ADD COLUMN more INT", "UPDATE stock SET more = 1")
    fleet.write("after the change")
    plans = fleet.night("auto", on_schema_change="fail").preflight()
    assert [bool(plan.evolution and plan.evolution.eras) for plan in plans] == [True, False]
    fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.write("after the switch")
    run = fleet.night("auto", again=True, on_schema_change="fail")
    run.plans = plans
    run.lock_and_record()
    fleet.check(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", [pytest.param("before the copy", marks=SLOW), pytest.param("after the copy", marks=LONG)]
)
def test_a_crash_with_a_lost_tail(lost: str, fleet: Fleet) -> None:
    """The copy rests on transactions that only the old server had; or it does not."""
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    fleet.write("the last night")
    fleet.caught_up(replica)
    if lost == "before the copy":
        replica.query("STOP REPLICA")
        fleet.write("lost")
        fleet.next_night(forward=True)
    else:
        fleet.next_night(forward=True)
        replica.query("STOP REPLICA")
        fleet.write("lost")
    fleet.take_over(replica)
    fleet.write("on the new server")
    if lost == "before the copy":
        fleet.next_night(forward=False, because="transactions of the position")
    else:
        fleet.next_night(forward=True)
    fleet.write("later")
    fleet.next_night(forward=True)


@LONG
def test_a_blue_green_upgrade(fleet: Fleet) -> None:
    """The new server begins with a dump of the old one, whose transactions its log never had, and then replicates."""
    fleet.write("before the dump")
    green = fleet.start("green")
    green.query("RESET BINARY LOGS AND GTIDS")
    fleet.load(green)
    fleet.follow(green)
    fleet.next_night(forward=False)
    # All transactions of the copy came with the dump: the new server cannot show that they are the same.
    fleet.caught_up(green)
    fleet.take_over(green)
    fleet.write("on green")
    fleet.next_night(forward=False, because="no longer has the log since the last transactions of the position")
    second = fleet.start("second")
    second.query("RESET BINARY LOGS AND GTIDS")
    fleet.load(second)
    fleet.follow(second)
    fleet.write("replicated")
    fleet.next_night(forward=True)
    fleet.caught_up(second)
    fleet.take_over(second)
    fleet.write("on the second")
    fleet.next_night(forward=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [
        pytest.param("before the copy", marks=SLOW),
        pytest.param("after the copy", marks=LONG),
        pytest.param("before the copy, and purged", marks=LONG),
        pytest.param("before the copy, and skipped on the primary", marks=LONG),
    ],
)
def test_errant_transactions(when: str, fleet: Fleet) -> None:
    """Someone wrote on the replica. A write before the copy is in rows that the copy has of the primary only."""
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    errant = "UPDATE stock SET note = 'errant' WHERE id IN (1, 2)"
    if when.startswith("before"):
        fleet.do(errant, server=replica)
        if when.endswith("primary"):
            # The usual repair: the primary gets the GTID, but not the change. Other transactions follow in the log.
            ((uuid,),) = replica.query("SELECT @@server_uuid")
            fleet.do(f"SET gtid_next = '{uuid}:1'", "BEGIN", "COMMIT")
            fleet.primary.query("FLUSH BINARY LOGS")
        fleet.write("before the copy")
        fleet.caught_up(replica)
    if when.endswith("purged"):
        replica.query("FLUSH BINARY LOGS")
        replica.purge_log()
        fleet.write("after the purge")
    fleet.next_night(forward=True)
    fleet.caught_up(replica)
    if when == "after the copy":
        fleet.do(errant, server=replica)
        fleet.write("later")
        fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.write("on the new server")
    if when == "after the copy":
        fleet.next_night(forward=True)
    else:
        because = {
            "before the copy": "transactions of its own",
            "before the copy, and purged": "no longer has the log",
            "before the copy, and skipped on the primary": "is another transaction there",
        }[when]
        fleet.next_night(forward=False, because=because)


@pytest.mark.slow
@SLOW
def test_a_restored_backup_whose_server_gave_the_same_gtids_again(fleet: Fleet) -> None:
    """The replica of a restored backup has all GTIDs of the copy, but they are other transactions."""
    fleet.primary.stop()
    (fleet.directory / "backup").mkdir()
    shutil.copytree(fleet.primary.data, fleet.directory / "backup" / "data")
    fleet.primary.restart()
    fleet.next_night(forward=False)
    fleet.write("the other history")
    fleet.next_night(forward=True)
    fleet.primary.stop()
    restored = fleet.start("backup")
    assert restored.query("SELECT @@server_uuid")[0] == (fleet.uuid,)
    fleet.primary = restored
    replica = fleet.replica("b")
    fleet.write("this history")
    fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.write("on the new server")
    fleet.next_night(forward=False, because="is another transaction there")


@LONG
@pytest.mark.parametrize(
    "what", ["a setting", "a restart", "a filter", "an unlogged replacement", "one before the next commit"]
)
def test_what_the_log_of_the_new_server_does_not_show(what: str, fleet: Fleet) -> None:
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    fleet.write("replicated")
    fleet.caught_up(replica)
    fleet.next_night(forward=True)
    unlogged = ("SET sql_log_bin = 0", *(f"ALTER TABLE {name} ENGINE = InnoDB" for name in TABLES))
    if what == "one before the next commit":
        # The server shows when tables were created in whole seconds.
        replica.query("DO SLEEP(1.1)")
        fleet.do(*unlogged, server=replica)
    fleet.write("since")
    fleet.caught_up(replica)
    fleet.take_over(replica)
    because = {
        "a setting": "was set at",
        "a restart": "server was started",
        "a filter": "replication filter",
        "an unlogged replacement": "not in the log",
        "one before the next commit": "not in the log",
    }[what]
    if what == "a setting":
        replica.query("SET GLOBAL binlog_order_commits = ON")
    elif what == "a restart":
        replica.restart()
    elif what == "a filter":
        replica.query("CHANGE REPLICATION FILTER REPLICATE_IGNORE_TABLE = (shop.other)")
    elif what == "an unlogged replacement":
        fleet.do(*unlogged)
    fleet.next_night(forward=False, because=because)


@LONG
def test_a_foreign_key_that_only_the_new_server_has(fleet: Fleet) -> None:
    """The log of the new server lacks what the foreign key changes."""
    key = "FOREIGN KEY (id) REFERENCES stock (id) ON DELETE CASCADE"
    replica = fleet.replica("b", innodb_native_foreign_keys="ON")
    fleet.do("SET sql_log_bin = 0", f"ALTER TABLE visits ADD {key}", server=replica)
    # The server shows when tables were altered in whole seconds.
    replica.query("DO SLEEP(1.1)")
    fleet.do("INSERT INTO stock (note) VALUES ('later')")
    fleet.next_night(forward=False)
    fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.do("DELETE FROM stock WHERE id = 1")
    run = fleet.night("auto")
    run.record()
    reasons = {plan.table.name: plan.reason for plan in run.plans}
    assert "foreign keys change its rows" in reasons["visits"]
    assert "is rolled forward" in reasons["stock"]
    fleet.check(run)


@LONG
def test_the_changes_of_a_night_are_refused_if_another_server_does_not_continue_the_copy(fleet: Fleet) -> None:
    replica = fleet.replica("b")
    replica.query("STOP REPLICA")
    fleet.write("lost")
    fleet.next_night(forward=False)
    plans = fleet.night("auto").preflight()
    fleet.take_over(replica)
    why = r"was replaced by .* it lacks 5 transactions of the position"
    late = fleet.night("auto", again=True)
    late.plans = plans
    with pytest.raises(SourceReplaced, match=why):
        late.lock_and_record()
    run = fleet.night("changes")
    with pytest.raises(PreflightError, match=why):
        run.record()


@pytest.mark.slow
@SLOW
def test_a_run_on_the_old_server_does_not_replace_copies_of_the_new_one(fleet: Fleet) -> None:
    """Both servers accept writes, so neither copy follows the other."""
    replica, old = fleet.replica("b"), fleet.primary
    fleet.next_night(forward=False)
    replica.query("STOP REPLICA")
    fleet.write("on the old server")
    run = fleet.night("full")
    run.record()
    fleet.primary = replica
    fleet.write("on the new server")
    fleet.next_night(forward=True)
    fleet.primary = old
    with pytest.raises(ConfigurationError, match="another source"):
        run.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("refresh", "lost"),
    [
        pytest.param("auto", False, marks=SLOW),
        pytest.param("auto", True, marks=LONG),
        pytest.param("full", False, marks=LONG),
        pytest.param("full", True, marks=LONG),
    ],
)
def test_a_switch_in_mid_run(refresh: str, lost: bool, fleet: Fleet) -> None:
    """The run refuses to read two servers. When it is cleared, it begins again on the new one."""
    replica = fleet.replica("b")
    fleet.next_night(forward=False)
    fleet.write("before the run")
    run = fleet.night(refresh)
    run.record()
    fleet.caught_up(replica)
    if lost:
        replica.query("STOP REPLICA")
    fleet.write("in the run")
    run.snapshot()
    if not lost:
        fleet.caught_up(replica)
    fleet.take_over(replica)
    fleet.write("on the new server")
    run = fleet.night(refresh, again=True)
    with pytest.raises(SourceReplaced, match=r"another server answers: .*, which has all transactions"):
        run.extract_delta()
    run.record()
    assert {bool(plan.base) for plan in run.plans} == {refresh == "auto"}
    fleet.check(run)


@LONG
def test_a_run_whose_position_was_lost_does_not_begin_again(fleet: Fleet) -> None:
    replica = fleet.replica("b")
    replica.query("STOP REPLICA")
    fleet.write("lost")
    run = fleet.night("full")
    run.record()
    run.snapshot()
    fleet.take_over(replica)
    run = fleet.night("full", again=True)
    with pytest.raises(SourceReplaced, match=r"another server answers: .*, which lacks transactions"):
        run.extract_delta()
    with pytest.raises(SourceReplaced, match="it lacks 5 transactions of the position"):
        run.record()
    # A new run reads the tables.
    fleet.next_night(forward=False)


class Switched:
    """A fleet of which one replica may take over."""

    schema = "shop"
    # The servers keep all of their logs, so no refusal says that log is gone.
    refusals: tuple[type[CdcError], ...] = (SourceReplaced, SchemaChanged)
    goes_on = True

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.replica: MysqlServer | None = fleet.replica("standby")

    def do(self, *statements: str) -> None:
        self.fleet.do(*statements)

    def write(self, note: str) -> None:
        self.fleet.write(note)

    def select(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        return list(self.fleet.primary.query(f"SELECT {', '.join(columns)} FROM shop.{table}"))

    def begin(self, *, again: bool) -> Pipeline:
        return self.fleet.night("auto", again=again, **OPTIONS)

    def has_standby(self) -> bool:
        return self.replica is not None

    def cut_off(self) -> None:
        assert self.replica is not None
        self.replica.query("STOP REPLICA")

    def promote(self, *, lost: bool, again: bool) -> None:
        assert self.replica is not None
        if not lost:
            self.fleet.caught_up(self.replica)
        ((executed,),) = self.fleet.primary.query("SELECT @@global.gtid_executed")
        self.fleet.take_over(self.replica)
        if again:
            ((missing,),) = self.replica.query("SELECT GTID_SUBTRACT(%s, @@global.gtid_executed)", (executed,))
            for one in missing.split(",") if missing else ():
                uuid, *intervals = one.strip().split(":")
                for first, _, last in (interval.partition("-") for interval in intervals):
                    for number in range(int(first), int(last or first) + 1):
                        self.fleet.do(
                            f"SET gtid_next = '{uuid}:{number}'",
                            "BEGIN",
                            f"UPDATE stock SET note = 'again {number}' WHERE id % 3 = 1",
                            "COMMIT",
                            "SET gtid_next = 'AUTOMATIC'",
                        )
        self.replica = None


@LONG
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", seeds())
def test_random_nights_with_a_failover(seed: int, fleet: Fleet) -> None:
    servers = Switched(fleet)
    history = History(servers, seed)
    history.night()
    for number in range(chain_length(2)):
        if servers.replica is None:
            servers.replica = fleet.replica(f"standby-{number}")
        history.night()
