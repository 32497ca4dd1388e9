"""A run that is killed in the middle of a keyless table keeps the ranges that it has read. The oracle is the server
itself, before the first change."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.reads import read_table_files
from airflow_provider_cdc.jobs.snapshot.parts import bundle
from airflow_provider_cdc.jobs.snapshot.read_part import ReadPart
from airflow_provider_cdc.sources.api.registry import open_source
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of
from harness.postgres_server import PostgresServer
from tests.conftest import MysqlFactory, PostgresFactory
from tests.consistency.postgres.servers import VERSIONS
from tests.interrupting import Interrupted
from tests.jobs.spool.spooled_run import Server, SpooledRun

ROWS = 400
ENDS = {
    "bigint": (-(2**63), 2**63 - 1),
    "date": ("0001-01-01", "9999-12-31"),
    "timestamptz": ("0001-01-01 00:00+00", "9999-12-31 23:59:59.999999+00"),
    "datetime(2)": ("1000-01-01", "9999-12-31 23:59:59.99"),
}
PART = {"columns": {"shop.events": ["a", "b"]}, "where": {"shop.events": "at > -40 OR at IS NULL"}}


def at(column: str, number: str) -> str:
    """SQL for the value of the column ``at`` that a number stands for."""
    if "int" in column:
        return f"(2 * ({number}) - 90)"
    if column == "date":
        return f"(date '2024-02-20' + ({number})::int)"
    if column.startswith("datetime"):
        return f"(timestamp '2024-03-30 22:00:00.25' + INTERVAL ({number}) * 10007 SECOND)"
    return f"({column} '2024-03-30 22:00' + ({number}) * interval '10007 seconds')"


def make_postgres(server: PostgresServer, column: str) -> None:
    """Fill a table whose rows repeat, and whose values in ``at`` have gaps and nulls. It has two partitions."""
    server.query("CREATE SCHEMA shop")
    server.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, note VARCHAR(900))")
    server.query(f"CREATE TABLE shop.events (a INT, b VARCHAR(20), at {column}) PARTITION BY LIST (a)")
    server.query("CREATE TABLE shop.few PARTITION OF shop.events FOR VALUES IN (0)")
    server.query("CREATE TABLE shop.rest PARTITION OF shop.events DEFAULT")
    server.query("CREATE INDEX ON shop.events (at)")
    for name in ("orders", "events", "few", "rest"):
        server.query(f"ALTER TABLE shop.{name} REPLICA IDENTITY FULL")
    server.query("INSERT INTO shop.orders SELECT n, 'o' FROM generate_series(1, 50) n")
    server.query(f"INSERT INTO shop.events SELECT n % 3, 'e', {at(column, 'n / 3')} FROM generate_series(1, {ROWS}) n")
    server.query("INSERT INTO shop.events SELECT n % 3, 'null', NULL FROM generate_series(1, 9) n")
    server.query("INSERT INTO shop.events VALUES (0, 'e', %s), (1, 'e', %s)", ENDS[column])
    server.query("ANALYZE shop.few, shop.rest, shop.orders")


def make_mysql(server: MysqlServer, column: str) -> None:
    """Fill a table whose rows repeat, and whose values in ``at`` have gaps."""
    server.query("CREATE SCHEMA shop")
    server.query("CREATE TABLE shop.orders (id BIGINT PRIMARY KEY, note VARCHAR(900))")
    default = "DEFAULT CURRENT_TIMESTAMP(2)" if column.startswith("datetime") else "AUTO_INCREMENT"
    server.query(f"CREATE TABLE shop.events (a INT, b VARCHAR(20), at {column} NOT NULL {default}, KEY (at))")
    rows = ", ".join(f"({number % 3}, 'e', {at(column, str(number // 3))})" for number in range(ROWS))
    server.query(f"INSERT INTO shop.events VALUES {rows}")
    server.query("INSERT INTO shop.events VALUES (0, 'e', %s), (1, 'e', %s)", ENDS[column])
    server.query("INSERT INTO shop.orders VALUES " + ", ".join(f"({number}, 'o')" for number in range(50)))
    server.query("ANALYZE TABLE shop.orders, shop.events")


class KilledRun(SpooledRun):
    """A run whose snapshot step is killed after some parts, each time, and whose rows change all the time."""

    def __init__(
        self, server: Server, folder: Path, patch: pytest.MonkeyPatch, column: str, spools: bool, **options: Any
    ) -> None:
        super().__init__(server, folder, patch, chunk_rows=40, **options)
        self.random = random.Random(5)
        self.column, self.spools = column, spools
        self.between = self.change_all
        self.left = 0
        self.edges_changed = False
        if options:
            selected = server.query("SELECT a, b FROM shop.events WHERE at > -40 OR at IS NULL")
            self.expected["events"] = Counter(selected)

    def change_all(self) -> None:
        if not self.edges_changed:
            self.change_edges()
        for _ in range(4):
            self.change_events()
        if self.spools:
            self.spooler().take()
        self.left -= 1
        if not self.left:
            raise Interrupted

    def change_edges(self) -> None:
        """Change the rows between two ranges, before most ranges are read."""
        for edge in {part.within.beyond for part in self.read_parts if part.within is not None} - {None}:
            self.server.query(f"UPDATE shop.events SET b = 'edge' WHERE at = '{edge}'")
        self.edges_changed = True

    def change_events(self) -> None:
        """Commit one change: rows move between ranges, partitions and blocks, and equal rows come and go."""
        draw = self.random.randrange
        number, other = (at(self.column, str(draw(ROWS // 3))) for _ in range(2))
        null = "NULL" if isinstance(self.server, PostgresServer) else at(self.column, "500")
        a = draw(4)
        self.server.query(
            self.random.choice(
                [
                    f"UPDATE shop.events SET at = {other} WHERE at = {number}",
                    f"UPDATE shop.events SET at = {null} WHERE at = {number} AND a = {a}",
                    f"UPDATE shop.events SET at = {other} WHERE COALESCE(at, {null}) IS NULL AND a = {a}",
                    f"UPDATE shop.events SET a = {a} WHERE at IN ({number}, {other})",
                    f"UPDATE shop.events SET b = 'y{draw(3)}' WHERE at = {number}",
                    f"DELETE FROM shop.events WHERE at = {number} AND a = {a}",
                    f"INSERT INTO shop.events VALUES ({a}, 'e', {number}), ({a}, 'e', {number}), ({a}, 'n', {other})",
                    f"UPDATE shop.orders SET note = 'n{draw(9)}' WHERE id = {draw(50)}",
                ]
            )
        )

    def kill_after(self, parts: int) -> None:
        self.left = parts
        with pytest.raises(Interrupted):
            self.pipeline.snapshot()

    def records(self) -> dict[str, str]:
        """The position at which each finished part was read."""
        folder = Run.load(self.pipeline.run).folder
        return {name: folder.read_json(name)["upper"] for name in folder.files("chunks/done")}

    def finish_after_kills(self) -> None:
        """Kill the step three times, complete the run, and compare the copies."""
        read_before: dict[str, str] = {}
        for _ in range(3):
            self.kill_after(4)
            records = self.records()
            assert read_before.items() <= records.items()
            read_before = records
        self.pipeline.snapshot()
        assert read_before.items() <= self.records().items(), "a range that was read is read again"
        files = read_table_files(Run.load(self.pipeline.run))["shop.events"]
        assert len({unit.upper for unit in files.units}) >= 3
        self.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "spools", "options"),
    [("timestamptz", True, {}), ("bigint", False, PART), ("date", False, {})],
    ids=["timestamptz, spooled", "bigint, a part of the table", "date"],
)
def test_ranges_that_a_killed_run_has_read_count_at_their_own_positions(
    postgres_factory: PostgresFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    spools: bool,
    options: dict[str, Any],
) -> None:
    server = postgres_factory({})
    make_postgres(server, column)
    KilledRun(server, tmp_path, monkeypatch, column, spools, **options).finish_after_kills()


@pytest.mark.parametrize(
    ("column", "spools", "options"),
    [
        pytest.param("bigint", True, PART, id="bigint, a part of the table, spooled"),
        pytest.param("datetime(2)", False, {}, id="datetime", marks=pytest.mark.slow),
    ],
)
def test_ranges_that_a_killed_run_has_read_count_at_their_own_positions_on_mysql(
    mysql_factory: MysqlFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    spools: bool,
    options: dict[str, Any],
) -> None:
    server = mysql_factory({})
    make_mysql(server, column)
    KilledRun(server, tmp_path, monkeypatch, column, spools, **options).finish_after_kills()


@pytest.mark.slow
def test_ranges_of_one_task_are_read_in_one_transaction(
    mysql_factory: MysqlFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_factory({})
    make_mysql(server, "bigint")
    run = KilledRun(server, tmp_path, monkeypatch, "bigint", False)
    run.kill_after(1)
    parts = [part for part in run.read_parts if part.within is not None]
    assert len(parts) > 3
    assert len(bundle(parts, run.manifest.tables, 8)) == 1
    begun = Run.load(run.pipeline.run)
    source = run.pipeline.source.of_run(begun.expected_identity(), run.manifest.initial)
    plan = begun.folder.read_json("chunks/plan.json")["id"]
    work = ReadPart(Staging(begun.folder), plan, source, run.manifest.tables, run.manifest.options.lock, 0.0)
    with work.session() as task:
        uppers = set()
        for number, part in enumerate(parts):
            uppers.add(task(part).upper)
            run.change_events()
            # Each range is durable at once: a task that is killed now loses only the next one.
            assert len(run.records().keys() & {f"chunks/done/{one.name}.json" for one in parts}) > number
    assert len(uppers) == 1


@pytest.mark.slow
def test_a_crash_undoes_the_ranges_that_were_read_before_it(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_factory({})
    make_postgres(server, "bigint")
    run = KilledRun(server, tmp_path, monkeypatch, "bigint", False)
    run.kill_after(5)
    read_before = run.records()
    server.crash()
    run.pipeline.snapshot()
    assert not read_before.items() & {name: upper for name, upper in run.records().items() if upper}.items()
    run.finish()


@pytest.mark.slow
def test_a_value_without_a_range_stops_the_run(
    postgres_factory: PostgresFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = postgres_factory({})
    make_postgres(server, "date")
    run = KilledRun(server, tmp_path, monkeypatch, "date", False)
    server.query("INSERT INTO shop.events VALUES (1, 'odd', 'infinity')")
    # The parts are read in a random order, so remove the row as soon as one range was read.
    monkeypatch.setattr(run, "between", lambda: _kill_after_a_range(run))
    with pytest.raises(Interrupted):
        run.pipeline.snapshot()
    server.query("DELETE FROM shop.events WHERE at = 'infinity'")
    monkeypatch.setattr(run, "between", lambda: None)
    run.pipeline.snapshot()
    with pytest.raises(ValueNotRepresentable, match="infinity"):
        run.pipeline.extract_delta()


def _kill_after_a_range(run: KilledRun) -> None:
    folder = Run.load(run.pipeline.run).folder
    if any(folder.read_json(name)["upper"] for name in folder.files("chunks/done")):
        raise Interrupted


def test_blocks_read_at_two_positions_do_not_tell_the_rows(postgres_factory: PostgresFactory) -> None:
    """Two histories with other rows at the beginning, but the same reads and the same log: why blocks of a keyless
    table are never combined."""
    server = postgres_factory({})
    told, truths = [], []
    for name, rows in (("moves", 2), ("stays", 1)):
        # Two rows fill a block, so the second table has room for another version of its row in block 0.
        server.query(f"CREATE TABLE {name} (v text, filler text) WITH (autovacuum_enabled = off)")
        server.query(f"ALTER TABLE {name} ALTER filler SET STORAGE PLAIN, REPLICA IDENTITY FULL")
        server.query(f"INSERT INTO {name} SELECT 'x', repeat('f', 3900) FROM generate_series(1, {rows})")
        truths.append(server.query(f"SELECT v FROM {name}"))
        second = server.query(f"SELECT v FROM {name} WHERE ctid >= '(1,0)'")
        server.query(f"UPDATE {name} SET v = v WHERE ctid = '(0,1)'")
        first = server.query(f"SELECT v FROM {name} WHERE ctid < '(1,0)'")
        told.append((second, first, ["x becomes x"]))
    assert told[0] == told[1]
    assert truths[0] != truths[1]


@pytest.mark.slow
@pytest.mark.parametrize(("unrepresentable", "divided"), [("error", True), ("string", False)])
def test_dates_that_are_published_as_text_divide_no_table(
    mysql_factory: MysqlFactory, unrepresentable: str, divided: bool
) -> None:
    server = mysql_factory({})
    make_mysql(server, "datetime(2)")
    source = open_source(settings_of(server))
    (plan,) = source.preflight(["shop.events"], TableOptions("auto", unrepresentable))
    point = source.record_initial([plan], LockPolicy())
    chunks = source.plan_chunks(point.tables[0], 40)
    assert (len(chunks) > 1) == divided


GENERATED = (
    "ALTER TABLE shop.events RENAME at TO was",
    "ALTER TABLE shop.events ADD at date GENERATED ALWAYS AS (was) STORED",
    "DROP INDEX shop.events_at_idx",
    "CREATE INDEX ON shop.events (at)",
    "ANALYZE shop.few, shop.rest",
)


@pytest.mark.parametrize(
    ("selected", "statements", "divided"),
    [
        ({}, (), True),
        ({"columns": {"shop.events": ["a", "b"]}}, (), False),
        # The value of a row that the condition excludes may have no Arrow type, and so no known range.
        ({"where": {"shop.events": "a >= 0"}}, (), False),
        ({}, GENERATED, False),
    ],
    ids=["read", "not read", "with a condition", "generated"],
)
def test_a_column_whose_values_are_not_read_divides_no_table(
    postgres_factory: PostgresFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    selected: dict[str, Any],
    statements: tuple[str, ...],
    divided: bool,
) -> None:
    # Earlier servers do not log such a column, so they read the table in another way.
    server = postgres_factory({}, VERSIONS[-1] if statements else None)
    make_postgres(server, "date")
    for statement in statements:
        server.query(statement)
    run = SpooledRun(server, tmp_path, monkeypatch, chunk_rows=40, **selected)
    (events,) = (entry.table for entry in run.manifest.tables if entry.table.name.name == "events")
    chunks = run.pipeline.source.plan_chunks(events, 40)
    assert any(chunk.within for chunk in chunks) == divided
