"""Faults while rows are read again: the copy is exact in the end, or the run stops."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.copies.head import decode_copy
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.errors import CdcError, CopyMismatch, ExactnessError, LogGone, SchemaChanged
from airflow_provider_cdc.jobs.snapshot import read as snapshot
from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.api import unrepresentable
from airflow_provider_cdc.sources.postgres import PostgresSource
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.seeds import some
from tests.servers import throw_away_postgres
from tests.soon import soon

Act = Callable[[], Any]
ROWS = 2000


@dataclass(frozen=True)
class World:
    """A private server, and a schema with tables without REPLICA IDENTITY FULL."""

    server: PostgresServer
    schema: str

    def run(self, *statements: str) -> None:
        with self.server.connect() as connection:
            connection.execute(f"SET search_path TO {self.schema}")
            for statement in statements:
                connection.execute(statement.encode())

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(row) for row in self.server.query(f"SELECT * FROM {self.schema}.{table}"))

    @property
    def all_rows(self) -> dict[str, Counter[tuple[Any, ...]]]:
        return {table: self.rows(table) for table in ("orders", "parts", "visits")}


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with throw_away_postgres() as server:
        yield server


@pytest.fixture
def world(own_server: PostgresServer) -> Iterator[World]:
    made = World(own_server, f"t_{uuid.uuid4().hex[:12]}")
    own_server.query(f"CREATE SCHEMA {made.schema}")
    made.run(
        "CREATE TABLE orders (id int PRIMARY KEY, n int, note text)",
        f"INSERT INTO orders SELECT i, 0, repeat('x', 50) FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (50)",
        "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (50) TO (100)",
        "INSERT INTO parts SELECT i, 0 FROM generate_series(1, 99) i",
        "CREATE TABLE visits (a int)",
        "INSERT INTO visits SELECT i % 7 FROM generate_series(1, 100) i",
    )
    yield made
    own_server.query(f"DROP SCHEMA {made.schema} CASCADE")
    soon(lambda: own_server.query("SELECT slot_name FROM pg_replication_slots WHERE temporary"), [])
    left = own_server.query("SELECT slot_name FROM pg_replication_slots UNION ALL SELECT pubname FROM pg_publication")
    for (name,) in own_server.query("SELECT slot_name FROM pg_replication_slots WHERE NOT active"):
        own_server.query("SELECT pg_drop_replication_slot(%s)", (name,))
    assert left == []


@pytest.fixture
def run(world: World, spark: SparkSession, tmp_path: Path) -> Iterator[Pipeline]:
    options: dict[str, Any] = {"chunk_rows": 300, "on_schema_change": "fail"}
    pipeline = Pipeline(spark, settings_of(world.server), tmp_path.as_uri(), [f"{world.schema}.*"], **options)
    yield pipeline
    pipeline.release()


def at(monkeypatch: pytest.MonkeyPatch, moment: str, act: Act) -> list[None]:
    """Call ``act`` once: before the log is searched for touched keys (``log``), before it is searched again after the
    view's position is fixed (``view``), or right before rows are searched in the view (``search``) or in a pass
    (``pass``). Return a list that has an item once ``act`` was called."""
    happened: list[None] = []
    touched, look_up = reread_passes._touched, reread_passes._look_up

    def once(now: str) -> None:
        if now == moment and not happened:
            happened.append(None)
            act()

    def noted(step: Any, tail: Any, log_end: LogEnd | None = None) -> Any:
        once("view" if log_end is not None else "log")
        return touched(step, tail, log_end)

    def searched(step: Any, source: Any, waiting: Any, view: Any, *rest: Any) -> Any:
        once("search" if view else "pass")
        return look_up(step, source, waiting, view, *rest)

    monkeypatch.setattr(reread_passes, "_touched", noted)
    monkeypatch.setattr(reread_passes, "_look_up", searched)
    return happened


def check(run: Pipeline, world: World, expected: dict[str, Counter[tuple[Any, ...]]]) -> None:
    """Finish the run, and compare."""
    run.extract_delta()
    found = run.consolidate()["published"]
    for table, rows in expected.items():
        assert Counter(published(found[f"{world.schema}.{table}"])[1]) == rows, table


CHANGES = (
    "UPDATE orders SET n = 1 WHERE id % 10 = 0",
    "DELETE FROM orders WHERE id % 10 = 1",
    "UPDATE orders SET id = id + 10000 WHERE id % 10 = 2",
    "DELETE FROM parts WHERE id = 2",
    "UPDATE parts SET id = 2 WHERE id = 99",
    "INSERT INTO visits VALUES (8)",
    # A partition without rows at the position does not stop the run, whatever rows it had in between.
    "CREATE TABLE parts_late PARTITION OF parts FOR VALUES FROM (200) TO (300)",
    "UPDATE parts SET id = 250 WHERE id = 7",
    "UPDATE parts SET id = 99 WHERE id = 250",
    "INSERT INTO parts VALUES (260)",
    "DELETE FROM parts WHERE id = 260",
)


@pytest.mark.long
def test_what_is_written_after_the_view_s_position_is_not_in_the_copy(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    initial = run.record()
    world.run(*CHANGES[:3])
    expected: dict[str, Counter[tuple[Any, ...]]] = {}

    def write() -> None:
        expected.update(world.all_rows)
        world.run("UPDATE orders SET n = 2", "DELETE FROM parts", "DELETE FROM visits", "INSERT INTO orders VALUES (0)")

    happened = at(monkeypatch, "view", write)
    found = run.snapshot()
    assert happened
    check(run, world, expected)
    assert found["keys_again"] >= ROWS // 10 * 4
    told = run.target.read_json(f"{world.schema}.orders/_latest.json")
    head = decode_copy(told, "")
    # A reader that uses one field in place of the other gets the same position.
    assert head.position == head.initial_lsn == found["snapshot_upper"] == run.found["consolidate"]["position"]
    assert Lsn.parse(head.position) > Lsn.parse(initial)


HAZARDS: dict[str, tuple[tuple[str, ...], type[CdcError]]] = {
    "a partition is made, and filled": (
        (
            "CREATE TABLE parts_more PARTITION OF parts FOR VALUES FROM (100) TO (200)",
            "INSERT INTO parts VALUES (150)",
        ),
        SchemaChanged,
    ),
    "a partition is left out": (("ALTER TABLE parts DETACH PARTITION parts_low",), SchemaChanged),
    "a table is emptied": (("TRUNCATE orders",), SchemaChanged),
    "the table that has no key is emptied": (("TRUNCATE visits",), SchemaChanged),
    "the key goes": (("ALTER TABLE orders DROP CONSTRAINT orders_pkey",), SchemaChanged),
    "the key is made anew": (
        ("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)", "UPDATE orders SET n = 5"),
        SchemaChanged,
    ),
    "the log no longer tells the key": (("ALTER TABLE orders REPLICA IDENTITY NOTHING",), SchemaChanged),
    "rows change their places": (("VACUUM FULL orders",), SchemaChanged),
    "the slot is dropped": (("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots",), LogGone),
    "the publication is dropped": (
        ("DO $$BEGIN EXECUTE 'DROP PUBLICATION ' || pubname FROM pg_publication; END$$",),
        ExactnessError,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("hazard", HAZARDS)
def test_what_breaks_the_proof_before_the_view_stops_the_run(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, hazard: str
) -> None:
    statements, error = HAZARDS[hazard]
    run.record()
    world.run(*CHANGES)
    at(monkeypatch, "log", lambda: world.run(*statements))

    def steps() -> None:
        run.snapshot()
        run.extract_delta()

    with pytest.raises(error):
        steps()
    assert not run.target.exists(f"{world.schema}.orders")


@pytest.mark.slow
@pytest.mark.parametrize("seen_by", ["the view", "a pass before it"])
def test_an_index_that_lost_a_row_stops_the_run(
    seen_by: str, world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update of the operating system that sorts text otherwise. A pass that misses a row has to leave its
    key to the view, which is the one to judge."""
    if seen_by != "the view":
        monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    run.record()
    index = f"UPDATE pg_index SET indisready = {{}} WHERE indexrelid = '{world.schema}.orders_pkey'::regclass"
    world.run(index.format("false"), "INSERT INTO orders VALUES (100000, 0, 'lost')", index.format("true"))
    assert (
        world.server.query(f"SET enable_seqscan = off; SELECT * FROM {world.schema}.orders WHERE id = 100000") == []
    ), "the index has the row: the test provokes nothing"
    with pytest.raises(CopyMismatch, match="the search by keys"):
        run.snapshot()


@pytest.mark.slow
def test_a_pass_waits_for_commits_that_are_in_the_log_and_that_nobody_sees(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that waits for a standby is in the log, where the pass finds its key, and a read would still show the
    row as it was. Nothing touches that row again, so no later search would correct it."""
    server = world.server
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    run.record()

    with ThreadPoolExecutor(2) as pool:
        server.set_standbys("nobody")
        try:
            commit = pool.submit(world.run, "UPDATE orders SET n = 7 WHERE id = 5")
            while not server.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"):
                time.sleep(0.01)
            seen: list[Any] = []
            original = PostgresSource.wait_until_visible

            def settle(source: PostgresSource, lock: LockPolicy) -> None:
                seen.append(server.query(f"SELECT n FROM {world.schema}.orders WHERE id = 5"))
                pool.submit(release)
                original(source, lock)

            def release() -> None:
                time.sleep(1)
                server.set_standbys("")

            monkeypatch.setattr(PostgresSource, "wait_until_visible", settle)
            look_up = reread_passes._look_up

            def searched(step: Any, source: Any, waiting: Any, view: Any, *rest: Any) -> Any:
                found = look_up(step, source, waiting, view, *rest)
                # If the run did not wait before, the pass has searched by now.
                server.set_standbys("")
                return found

            monkeypatch.setattr(reread_passes, "_look_up", searched)
            run.snapshot()
            commit.result(60)
        finally:
            server.set_standbys("")
    assert seen[:1] in ([], [[(0,)]]), "the commit was visible: the test provokes nothing"
    assert len(run.run.read_json(run.found["snapshot"]["again"])["layers"]) > 1, "there was no pass"
    check(run, world, world.all_rows)


@pytest.mark.slow
@pytest.mark.parametrize("moment", some("view", "search"))
def test_a_view_that_dies_is_opened_anew_and_nothing_read_in_it_counts(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run.record()
    world.run(*CHANGES)

    def die() -> None:
        world.server.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE temporary")
        # Of what was read so far nothing may stay.
        world.run("UPDATE orders SET n = 3", "DELETE FROM visits WHERE a = 3", "DELETE FROM orders WHERE id % 10 = 3")

    happened = at(monkeypatch, moment, die)
    run.snapshot()
    assert happened
    check(run, world, world.all_rows)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [pytest.param("the view", marks=pytest.mark.long), "the try"])
def test_what_is_read_as_a_whole_in_a_view_that_is_lost_is_read_anew(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """One table was read already, and the next view is another position."""
    world.run("CREATE TABLE calls (a int)", "INSERT INTO calls SELECT i % 7 FROM generate_series(1, 100) i")
    run.record()
    original, read = snapshot._read_missing, list[str]()

    def losing(step: Any, plan: str, missing: Any, *rest: Any, **more: Any) -> None:
        names = [str(step.tables[part.table].table.name) for part in missing]
        if more["brief"] and not read:
            original(step, plan, missing[:1], *rest, **more)
            read.append(names[0])
            if lost == "the try":
                raise KeyboardInterrupt
            world.server.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE temporary")
            world.run("UPDATE calls SET a = 9 WHERE a = 1", "UPDATE visits SET a = 9 WHERE a = 1")
            original(step, plan, missing[1:], *rest, **more)
        if more["brief"]:
            read.extend(names)
        original(step, plan, missing, *rest, **more)

    monkeypatch.setattr(snapshot, "_read_missing", losing)
    if lost == "the try":
        with pytest.raises(KeyboardInterrupt):
            run.snapshot()
        world.run("UPDATE calls SET a = 9 WHERE a = 1", "UPDATE visits SET a = 9 WHERE a = 1")
    run.snapshot()
    both = {f"{world.schema}.{table}" for table in ("calls", "visits")}
    assert read[0] in both
    assert {*read[1:]} == both, "what was read before the loss counts"
    check(run, world, {table: world.rows(table) for table in ("calls", "visits", "orders")})


@pytest.mark.slow
@pytest.mark.parametrize("moment", some("view", "log", "pass", "search"))
def test_a_crash_of_the_server_has_all_of_it_read_again(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    if moment == "pass":
        monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    run.record()
    world.run(*CHANGES)

    def crash() -> None:
        world.server.crash()
        world.run("UPDATE orders SET n = 3 WHERE id % 10 = 3", "DELETE FROM visits WHERE a = 3")

    happened = at(monkeypatch, moment, crash)
    run.snapshot()
    assert happened
    check(run, world, world.all_rows)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["log", "view", "search"])
def test_a_try_that_is_killed_leaves_its_chunks_to_the_next_one_and_nothing_else(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    run.record()
    world.run(*CHANGES)

    def die() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        at(patch, moment, die)
        with pytest.raises(KeyboardInterrupt):
            run.snapshot()
    kept = run.run.files("chunks/done")
    world.run("UPDATE orders SET n = 4 WHERE id % 10 = 4", "DELETE FROM parts WHERE id < 20", "DELETE FROM visits")
    read: list[str] = []
    original = snapshot._read_missing

    def noted(step: Any, plan: str, missing: Any, *rest: Any, **more: Any) -> None:
        read.extend(str(step.tables[part.table].table.name) for part in missing)
        original(step, plan, missing, *rest, **more)

    monkeypatch.setattr(snapshot, "_read_missing", noted)
    run.snapshot()
    assert kept
    assert set(read) == {f"{world.schema}.visits"}
    check(run, world, world.all_rows)
    # Clearing the task of a published run reads nothing.
    assert run.snapshot()["snapshot_upper"] == run.found["consolidate"]["position"]


@pytest.mark.slow
def test_what_is_touched_after_a_pass_is_read_again(
    world: World, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass may see it or not: only the last search of a key counts, even if it finds nothing."""
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    run.record()
    world.run(*CHANGES)
    later = (
        "UPDATE orders SET n = 6 WHERE id % 10 = 0",
        "DELETE FROM orders WHERE id % 20 = 0",
        "INSERT INTO orders SELECT i, 6, 'back' FROM generate_series(1, 200, 10) i",
        "UPDATE orders SET id = id - 10000 WHERE id > 10000",
    )
    happened = at(monkeypatch, "pass", lambda: world.run(*later))
    found = run.snapshot()
    assert happened
    layers = run.run.read_json(found["again"])["layers"]
    assert sum(bool(layer["files"]) for layer in layers) > 1, "there was one look: the test provokes nothing"
    check(run, world, world.all_rows)


@pytest.mark.slow
def test_a_key_that_comes_back_in_other_bytes_is_another_key(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index finds it under both; and the two may be looked for by different tasks."""
    monkeypatch.setattr(reread_passes, "KEYS_PER_TASK", 1)
    world.run("CREATE TABLE amounts (amount numeric PRIMARY KEY)", "INSERT INTO amounts SELECT generate_series(1, 40)")
    name = f"{world.schema}.amounts"
    run = Pipeline(spark, settings_of(world.server), tmp_path.as_uri(), [name])
    run.record()
    world.run(
        "DELETE FROM amounts WHERE amount <= 20",
        "INSERT INTO amounts SELECT i + 0.00 FROM generate_series(1, 20) i",
        "UPDATE amounts SET amount = amount + 0.0 WHERE amount > 30",
    )
    rows = Counter(tuple(row) for row in world.server.query(f"SELECT amount::text FROM {name}"))
    found = run.finish()["published"]
    assert Counter(published(found[name])[1]) == rows


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["pass", "search"])
def test_a_table_whose_rows_turn_out_to_fit_no_type_is_skipped_alone(
    moment: str, world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task without another table then cannot report which server it read from."""
    world.run("ALTER TABLE orders ADD at timestamptz")
    tables = [f"{world.schema}.{table}" for table in ("orders", "parts")]
    run = Pipeline(spark, settings_of(world.server), tmp_path.as_uri(), tables, on_table_error="skip")
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0 if moment == "pass" else reread_passes.FEW_KEYS)
    happened = at(monkeypatch, moment, lambda: None)
    run.record()
    try:
        at(monkeypatch, "log", lambda: world.run("UPDATE orders SET at = 'infinity' WHERE id = 7"))
        run.snapshot()
        assert happened
        check(run, world, {"parts": world.rows("parts")})
    finally:
        run.release()
    assert list(run.found["consolidate"]["skipped"]) == tables[:1]


@pytest.mark.slow
def test_a_table_that_a_pass_cannot_read_is_skipped_as_a_whole(
    world: World, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not without the rows whose keys that pass was to look up: no later one does."""
    world.run("ALTER TABLE orders ADD at timestamptz")
    tables = [f"{world.schema}.{table}" for table in ("orders", "parts")]
    run = Pipeline(spark, settings_of(world.server), tmp_path.as_uri(), tables, on_table_error="skip")
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    # More of them in one batch of rows are refused at once: by tasks of this process.
    monkeypatch.setattr(unrepresentable, "MOST", 100)
    monkeypatch.setattr(
        reread_passes, "run_tasks", lambda spark, title, orders, work, done, **more: [work(one) for one in orders]
    )
    run.record()
    try:
        at(monkeypatch, "log", lambda: world.run("UPDATE orders SET at = 'infinity' WHERE id <= 1000"))
        run.snapshot()
        check(run, world, {"parts": world.rows("parts")})
    finally:
        run.release()
    assert list(run.found["consolidate"]["skipped"]) == tables[:1]
