"""A table is altered after the source has removed the log behind the spool: only this table is read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.ledger import Link
from airflow_provider_cdc.core.run.manifest import InitialPoint, Manifest
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.jobs.restart import later_position
from airflow_provider_cdc.sources.planning.point import record_point
from harness.mysql_server import MysqlServer
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory
from tests.jobs.spool.spooled_run import ROWS, Server, SpooledRun, make_tables, purge, rotate
from tests.jobs.spool.test_prepared import prepare

pytestmark = pytest.mark.slow


class Killed(BaseException):
    """Ends an attempt, as the end of its process does."""


class RestartedRun(SpooledRun):
    """A `SpooledRun` with a third table, ``shop.visits``, which has a key. ``expected`` has the rows at the position to
    which the run moves. The tables in ``names`` are compared, and those in ``changed`` are changed. ``acts`` has, by
    the number of the manifest, what happens after the read of each part. Afterwards, each part is followed by changes.
    ``reads`` counts the reads of each part, by the name of its table and its number.
    """

    def __init__(self, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        server.query("CREATE TABLE shop.visits (id BIGINT PRIMARY KEY, note VARCHAR(900))")
        if not isinstance(server, MysqlServer):
            server.query("ALTER TABLE shop.visits REPLICA IDENTITY FULL")
        rows = ", ".join(f"({number}, '{'v' * 800}')" for number in range(ROWS))
        server.query(f"INSERT INTO shop.visits VALUES {rows}")
        self.names: Sequence[str] = ("orders", "events", "visits")
        self.changed: Sequence[str] = self.names
        super().__init__(server, folder, monkeypatch, **options)
        self.acts: dict[int, list[Callable[[], None]]] = {}
        self.between = self._act
        self.points: list[InitialPoint] = []
        self.reads: Counter[tuple[str, int]] = Counter()
        monkeypatch.setattr(later_position, "record_point", self.record_point)

    def _run_tasks(
        self,
        spark: Any,
        title: str,
        orders: Sequence[Any],
        work: Any,
        done: Any = lambda result: None,
        **arguments: Any,
    ) -> list[Any]:
        tables = {part.number: part.table for part in orders} if title == "read chunks" else {}

        def count_and_record(result: Any) -> None:
            if tables:
                name = self.manifest.tables[tables[result.part]].table.name.name
                self.reads[name, result.part] += 1
            done(result)

        return super()._run_tasks(spark, title, orders, work, count_and_record, **arguments)

    def parts_read(self, names: Collection[str]) -> Counter[tuple[str, int]]:
        return Counter({read: times for read, times in self.reads.items() if read[0] in names})

    def _act(self) -> None:
        acts = self.acts.get(Run.load(self.pipeline.run).generation)
        (acts.pop(0) if acts else self.change)()

    def record_point(self, *arguments: Any) -> InitialPoint:
        point = record_point(*arguments)
        self.expected = self.rows()
        self.points.append(point)
        self.change()
        return point

    def rows(self) -> dict[str, Counter[Any]]:
        return {name: Counter(self.server.query(f"SELECT * FROM shop.{name}")) for name in self.names}

    def change(self, count: int = 6, *, keyed: bool = False) -> None:
        if "orders" in self.changed:
            super().change(count, keyed="events" not in self.changed)
        draw = self.random.randrange
        for _ in range(count if "visits" in self.changed else 0):
            self.server.query(
                (
                    f"UPDATE shop.visits SET note = 'n{draw(99)}' WHERE id = {draw(ROWS)}",
                    f"DELETE FROM shop.visits WHERE id = {draw(ROWS)}",
                    f"INSERT INTO shop.visits VALUES ({ROWS + draw(9**9)}, 'new')",
                )[draw(3)]
            )

    def spool(self) -> None:
        """Take a piece under the present manifest, and let the server remove all earlier log."""
        self.change()
        rotate(self.server)
        self.change()
        spooler = self.spooler()
        for line in spooler.lines:
            assert spooler.take(line)
        self.change()
        purge(self.server)

    def alter(self) -> None:
        self.server.query(f"ALTER TABLE shop.orders ADD COLUMN c{len(self.points)} INT")
        self.change()

    @property
    def present(self) -> Manifest:
        return Run.load(self.pipeline.run).manifest

    @property
    def kept(self) -> dict[str, str]:
        """The starts from which tables were read that are not read again."""
        return {entry.table.name.name: entry.start for entry in self.present.tables if entry.basis}


@pytest.fixture
def run(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestartedRun:
    return RestartedRun(server, tmp_path, monkeypatch)


def kept_on(server: Server) -> set[str]:
    """The tables that stay read: PostgreSQL reads a table without a key in a snapshot of its own."""
    return {"visits", "events"} if isinstance(server, MysqlServer) else {"visits"}


def test_only_the_altered_table_is_read_again_although_the_log_was_let_go(run: RestartedRun) -> None:
    """It is altered twice, and the source removes the log before each move and after it. When it is altered first, the
    other tables are half read: their parts from before the alteration count, and each part is read once."""
    kept, half_read = kept_on(run.server), Counter[tuple[str, int]]()

    def alter_in_the_middle_of_reads() -> None:
        half_read.update(run.parts_read(kept))
        run.alter()

    run.acts = {1: [run.spool] * 3 + [alter_in_the_middle_of_reads], 2: [run.spool] * 2 + [run.alter], 3: [run.spool]}
    run.pipeline.snapshot()
    assert [list(restart.tables) for restart in run.present.restarts] == [["shop.orders"]] * 2
    assert run.kept == dict.fromkeys(kept, "1")
    read = run.parts_read(kept)
    assert half_read, "no part was read before the alteration"
    assert half_read < read, "no part was read after the alteration"
    assert {*read.values()} == {1}, "a part was read twice"
    assert run.log_of_position_is_gone()
    if isinstance(run.server, PostgresServer):
        # The slots keep no log from before the present position. The slot of the second manifest is not needed.
        slots = run.server.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE NOT temporary")
        assert len(slots) == 2
        assert min(Lsn.parse(position) for (position,) in slots) >= run.points[-1].position
    run.finish()


def test_parts_from_before_a_table_was_altered_do_not_count(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is truncated in the middle of its reads, so its parts from before have the same columns. On PostgreSQL,
    another table gets a partition, whose rows are not in the log. When both are read again, one is altered again: on
    PostgreSQL, a label gets another name, which only the catalog shows."""
    partitioned = isinstance(server, PostgresServer)
    if partitioned:
        server.query("CREATE TYPE shop.mood AS ENUM ('calm', 'glad')")
        server.query("CREATE TABLE shop.parted (id BIGINT PRIMARY KEY, mood shop.mood) PARTITION BY RANGE (id)")
        for name, begin, end in (("low", 0, 100), ("high", 100, 200)):
            server.query(f"CREATE TABLE {name} PARTITION OF shop.parted FOR VALUES FROM ({begin}) TO ({end})")
            server.query(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        server.query("ALTER TABLE shop.parted REPLICA IDENTITY FULL")
        server.query("INSERT INTO shop.parted SELECT i, 'calm' FROM generate_series(90, 109) i")
        server.query("ALTER TABLE shop.parted DETACH PARTITION high")
    run, half_read = RestartedRun(server, tmp_path, monkeypatch), Counter[tuple[str, int]]()
    run.names = (*run.names, "parted") if partitioned else run.names

    def truncate() -> None:
        server.query("TRUNCATE TABLE shop.visits")
        server.query("INSERT INTO shop.visits VALUES (1, 'later'), (2, 'later')")

    def alter() -> None:
        half_read.update(run.parts_read({"visits"}))
        truncate()
        if partitioned:
            server.query("ALTER TABLE shop.parted ATTACH PARTITION high FOR VALUES FROM (100) TO (200)")

    def alter_again() -> None:
        if partitioned:
            server.query("ALTER TYPE shop.mood RENAME VALUE 'calm' TO 'bored'")
        else:
            truncate()

    run.acts = {1: [run.change] * 7 + [alter], 2: [alter_again]}
    run.finish()
    assert half_read, "no part was read before"
    assert "orders" in run.kept
    assert len(run.present.restarts) == 2


def test_reads_do_not_count_if_the_log_after_the_last_piece_is_gone(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def alter() -> None:
        rotate(server)
        run.alter()
        rotate(server)
        purge(server)

    run.acts = {1: [run.spool, alter]}
    run.pipeline.snapshot()
    assert not run.kept
    assert len(run.present.restarts) == 1
    run.finish()


def test_reads_without_pieces_do_not_count_if_the_log_is_removed_after_the_move(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run moves before its first piece. Then the server removes the log behind the pieces of the new manifest."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)
    run.acts = {1: [run.alter], 2: [run.spool] * 2}
    run.pipeline.snapshot()
    assert set(run.kept) == {"events", "visits"}
    run.finish()
    assert run.kept == {"orders": "2"}


def test_an_attempt_under_the_old_manifest_goes_on_with_the_present_one(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt moves the run, and drops the slot, because no read of the old manifest counts any more."""
    server = postgres_factory()
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def overtake() -> None:
        run.acts, run.changed = {}, ()
        for name in run.names:
            server.query(f"ALTER TABLE shop.{name} ADD COLUMN more INT")
        run.pipeline.snapshot()

    run.acts = {1: [run.spool] * 2 + [overtake]}
    run.pipeline.snapshot()
    assert (len(run.points), len(run.present.restarts)) == (1, 1)
    run.finish()


def test_a_transaction_that_was_prepared_in_a_piece_counts_by_the_place_of_its_commit(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction is committed before the new position, after the last piece, and one stays prepared."""
    server = mysql_factory({})
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)

    def prepare() -> None:
        for key in (-1, -2):
            with server.connect(database="shop") as connection, connection.cursor() as cursor:
                cursor.execute(f"XA START '{key}'")
                cursor.execute(f"INSERT INTO visits VALUES ({key}, 'prepared')")
                cursor.execute(f"XA END '{key}'")
                cursor.execute(f"XA PREPARE '{key}'")

    def commit_and_alter() -> None:
        server.query("XA COMMIT '-1'")
        run.alter()

    run.acts = {1: [prepare, run.spool, run.spool, commit_and_alter]}
    run.pipeline.snapshot()
    assert "visits" in run.kept
    run.finish()
    assert (-1, "prepared") in run.expected["visits"]
    server.query("XA COMMIT '-2'")
    assert (-2, "prepared") in run.rows()["visits"]


def test_pieces_serve_the_other_tables_if_one_is_left_out(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first table of the run can no longer be copied, and another one is altered. The attempt is killed when it has
    moved the run, and before it knows that."""
    where = {"shop.events": "b <> 'z'"}
    run = RestartedRun(server, tmp_path, monkeypatch, on_table_error="skip", where=where)

    def alter() -> None:
        run.names = run.changed = ("orders", "visits")
        server.query("ALTER TABLE shop.events RENAME COLUMN b TO c")
        server.query("ALTER TABLE shop.orders ADD COLUMN more INT")

    def die(moved: Run, manifest: Manifest, pieces: Mapping[str, Link]) -> bool:
        assert moves(moved, manifest, pieces)
        raise Killed

    run.acts = {1: [run.spool] * 3 + [run.change] * 6 + [alter], 2: [run.spool] * 2}
    moves = Run.move
    with monkeypatch.context() as patch:
        patch.setattr(Run, "move", die)
        with pytest.raises(Killed):
            run.pipeline.snapshot()
    positions = len(run.points)
    run.pipeline.snapshot()
    assert len(run.points) == positions, "another position was fixed"
    assert run.kept == {"visits": "1"}
    assert [entry.table.name.name for entry in run.present.tables if entry.left_out] == ["events"]
    assert run.log_of_position_is_gone()
    run.finish()


def test_a_run_does_not_move_to_a_position_that_lacks_a_piece_of_another_attempt(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt records a piece when the later position is fixed, so this position is not the right one. After
    the move, no piece of the earlier manifest counts. (On MySQL, the log has the statement that makes the run move, and
    each attempt stops there.)"""
    server = postgres_factory()
    make_tables(server)
    run = RestartedRun(server, tmp_path, monkeypatch)
    zombie = run.spooler()

    def alter() -> None:
        # Nobody writes to the altered table, so the log does not show that it was altered.
        run.changed = ("visits",)
        run.alter()

    def spool_late(*arguments: Any) -> InitialPoint:
        point = run.record_point(*arguments)
        if len(run.points) == 1:
            assert zombie.take()
            assert run.links()[-1].upper > str(point.position)
        return point

    monkeypatch.setattr(later_position, "record_point", spool_late)
    run.acts = {1: [run.spool] * 2 + [run.change] * 8 + [alter]}
    run.pipeline.snapshot()
    assert (len(run.points), Run.load(run.pipeline.run).generation) == (2, 2)
    assert run.kept == {"visits": "1"}
    assert not zombie.take()
    run.finish()


def test_a_transaction_that_was_prepared_before_the_run_and_not_looked_up_is_found_in_earlier_log(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user may not run XA RECOVER. The transaction is committed in the second piece, after all reads."""
    server = mysql_factory({})
    make_tables(server)
    prepare(server, "early", "INSERT INTO shop.orders VALUES (-1, 'prepared')")
    rotate(server)
    for name in server.query("SELECT QUOTE(user), QUOTE(host) FROM mysql.user WHERE user = 'root'"):
        server.query("REVOKE XA_RECOVER_ADMIN ON *.* FROM {}@{}".format(*name))
    run = RestartedRun(server, tmp_path, monkeypatch)
    reads = count(1)

    def between() -> None:
        number = 0 if run.points else next(reads)
        if number in (1, len(run.read_parts)):
            assert run.spooler().take()
        if number == len(run.read_parts) - 1:
            server.query("XA COMMIT 'early'")
        if number == len(run.read_parts):
            run.changed = ("orders", "events")
            server.query("ALTER TABLE shop.visits ADD COLUMN more INT")

    run.between = between
    run.pipeline.snapshot()
    assert "orders" in run.kept
    assert (-1, "prepared") in run.expected["orders"]
    run.finish()
