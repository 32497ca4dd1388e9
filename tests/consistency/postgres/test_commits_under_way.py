"""Transactions that are committing while a slot finds its point: each is in a copy completely, or not at all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.jobs.snapshot import reread_passes
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.slots import waits
from harness.pipeline import Pipeline, published, settings_of
from harness.postgres_server import PostgresServer
from tests.consistency.postgres.held import HeldSession, held_session
from tests.consistency.postgres.servers import VERSIONS, primary_of
from tests.soon import soon

Connection = psycopg.Connection[tuple[Any, ...]]
TABLES = ("orders", "visits")
SECONDS = 200.0
"""A slot is made in the middle of a step: on a busy machine it takes long until it is that far."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=[] if one == VERSIONS[-1] else pytest.mark.long) for one in VERSIONS],
)
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with primary_of(request.param) as server:
        yield server


@pytest.fixture
def shop(server: PostgresServer) -> Iterator[PostgresServer]:
    server.query(
        """
        CREATE SCHEMA shop; SET search_path TO shop;
        CREATE TABLE orders (id int PRIMARY KEY, n int); INSERT INTO orders SELECT i, 0 FROM generate_series(1, 100) i;
        CREATE TABLE visits (a int); INSERT INTO visits SELECT i % 7 FROM generate_series(1, 100) i
        """
    )
    yield server
    server.query("DROP SCHEMA shop CASCADE")
    left = "SELECT slot_name FROM pg_replication_slots UNION ALL SELECT pubname FROM pg_publication"
    soon(lambda: server.query(left), [])


@pytest.fixture
def run(shop: PostgresServer, spark: SparkSession, tmp_path: Path) -> Iterator[Pipeline]:
    pipeline = Pipeline(spark, settings_of(shop), tmp_path.as_uri(), ["shop.*"])
    yield pipeline
    pipeline.release()


class Midway:
    """A slot that is being made: it waits for one transaction after the other, so that others can come in between.

    A slot waits for those that write when it begins (``first``), then for those that write by then (``second``). What
    begins still later can commit before the slot has its point, and is before it then.
    """

    def __init__(self, server: PostgresServer, sessions: ExitStack) -> None:
        self._server = server
        self.first, self.second = (sessions.enter_context(server.connect()) for _ in range(2))
        self.first.execute("BEGIN")
        self.first.execute("SELECT pg_current_xact_id()")

    @contextmanager
    def acting(self) -> Iterator[None]:
        """After any failure, the slot does not wait forever."""
        try:
            self._wait_for(self.first)
            yield
        finally:
            for session in (self.first, self.second):
                session.execute("COMMIT")

    def end_first(self) -> None:
        """Begin the second one, and end the first one; return once the slot waits for the second one."""
        if self.second.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self.second.execute("BEGIN")
            self.second.execute("SELECT pg_current_xact_id()")
        self.first.execute("COMMIT")
        self._wait_for(self.second)

    def _wait_for(self, session: Connection) -> None:
        """Wait until a slot waits for that session's transaction."""
        deadline = time.monotonic() + SECONDS
        sql = "SELECT 1 FROM pg_stat_activity WHERE backend_type = 'walsender' AND %s = ANY(pg_blocking_pids(pid))"
        while not self._server.query(sql, (session.info.backend_pid,)):
            assert time.monotonic() < deadline, "no slot waits for the transaction"
            time.sleep(0.01)


def copied(found: dict[str, Any]) -> dict[str, Counter[Any]]:
    return {table: Counter(published(found[f"shop.{table}"])[1]) for table in TABLES}


def there(server: PostgresServer) -> dict[str, Counter[Any]]:
    return {table: Counter(server.query(f"SELECT * FROM shop.{table}")) for table in TABLES}


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> Callable[[HeldSession], None]:
    """Lets a commit go on one second after the run has begun to wait for it."""

    def arrange(held: HeldSession) -> None:
        settle = waits.wait_until_visible

        def settling(*arguments: Any) -> None:
            later = threading.Timer(1, held.let_go)
            later.start()
            settle(*arguments)
            later.join()

        monkeypatch.setattr(waits, "wait_until_visible", settling)

    return arrange


WRITES: dict[str, tuple[str, ...]] = {
    "a transaction": (
        "UPDATE shop.orders SET n = 7 WHERE id = 5",
        "DELETE FROM shop.orders WHERE id = 6",
        "INSERT INTO shop.visits VALUES (8)",
    ),
    "its subtransactions": (
        "SAVEPOINT one",
        "UPDATE shop.orders SET n = 7 WHERE id = 5",
        "RELEASE one",
        "SAVEPOINT two",
        "DELETE FROM shop.orders WHERE id = 6",
        "INSERT INTO shop.visits VALUES (8)",
        "RELEASE two",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["a transaction", pytest.param("its subtransactions", marks=pytest.mark.long)])
def test_the_view_waits_for_commits_that_the_log_has_before_its_point_and_that_are_not_marked_yet(
    what: str,
    shop: PostgresServer,
    run: Pipeline,
    monkeypatch: pytest.MonkeyPatch,
    let_go: Callable[[HeldSession], None],
) -> None:
    """The snapshot of a slot learns from the log which transactions have committed, and readers look up their state
    in pg_xact. A reader in between treats such rows as rows of an aborted transaction, and marks them as such."""
    run.record()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        held = stack.enter_context(held_session(shop))
        midway = Midway(shop, stack)

        def choreography() -> None:
            with midway.acting():
                midway.end_first()
                held.connection.execute("BEGIN")
                for statement in WRITES[what]:
                    held.connection.execute(statement)
                commits.append(pool.submit(held.connection.execute, "COMMIT"))
                held.wait_until_held()
                assert shop.query("SELECT n FROM shop.orders WHERE id = 5") == [(0,)], "the commit is already visible"
                let_go(held)

        look_up = reread_passes._look_up

        def searched(*arguments: Any) -> Any:
            found = look_up(*arguments)
            # If the run did not wait, it has missed the commit by now.
            held.let_go()
            return found

        commits: list[Future[Any]] = []
        monkeypatch.setattr(reread_passes, "_look_up", searched)
        acting = pool.submit(choreography)
        found = run.snapshot()
        acting.result(SECONDS)
        commits[0].result(SECONDS)
    assert found["keys_again"] == 2, "it does not lie before the view: the test provokes nothing"
    run.extract_delta()
    published = copied(run.consolidate()["published"])
    assert (published["orders"][5, 7], published["orders"][6, 0], published["visits"][8,]) == (1, 0, 1)
    assert published == there(shop), "the source itself was damaged"


@pytest.mark.slow
def test_the_tables_are_looked_at_when_the_commits_before_the_point_are_marked(
    shop: PostgresServer, run: Pipeline, let_go: Callable[[HeldSession], None]
) -> None:
    """The catalog is read in a slot's snapshot, too: a column whose ALTER TABLE is not marked would be lost."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(4))
        held = stack.enter_context(held_session(shop))
        midway = Midway(shop, stack)

        def choreography() -> None:
            with midway.acting():
                midway.end_first()
                held.connection.execute("BEGIN")
                held.connection.execute("ALTER TABLE shop.orders ADD later int")
                commits.append(pool.submit(held.connection.execute, "COMMIT"))
                held.wait_until_held()
                let_go(held)

        commits: list[Future[Any]] = []
        acting = pool.submit(choreography)
        run.record()
        acting.result(SECONDS)
        commits[0].result(SECONDS)
    assert shop.query("SELECT id, n, later FROM shop.orders WHERE id = 5") == [(5, 0, None)]
    shop.query("UPDATE shop.orders SET later = 9 WHERE id = 5")
    assert copied(run.finish()["published"]) == there(shop)


@pytest.mark.slow
def test_a_pass_believes_nothing_that_the_log_says_otherwise(
    shop: PostgresServer, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes wait for what the log has. One that did not would see rows that are gone, and miss others that are there:
    it leaves both to the view."""
    monkeypatch.setattr(reread_passes, "FEW_KEYS", 0)
    monkeypatch.setattr(PostgresSource, "wait_until_visible", lambda *arguments: None)
    run.record()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        held = stack.enter_context(held_session(shop))
        held.connection.execute("BEGIN")
        for statement in (
            "DELETE FROM shop.orders WHERE id = 5",
            "UPDATE shop.orders SET id = 300 WHERE id = 6",
            "INSERT INTO shop.orders VALUES (200, 2)",
        ):
            held.connection.execute(statement)
        commit = pool.submit(held.connection.execute, "COMMIT")
        held.wait_until_held()
        read, doubtful = reread_passes._pass, []

        def reading(step: Any, tail: Any, keys: Any, meanwhile: Any) -> set[str]:
            found: set[str] = read(step, tail, keys, meanwhile)
            doubtful.append(keys.count)
            held.let_go()
            commit.result(SECONDS)
            return found

        monkeypatch.setattr(reread_passes, "_pass", reading)
        run.snapshot()
    assert doubtful[0] == 4, "the pass saw all of it, or nothing: the test provokes nothing"
    run.extract_delta()
    assert copied(run.consolidate()["published"]) == there(shop)


STEPS: Sequence[tuple[str, str]] = (
    ("before", "UPDATE shop.orders SET n = 1 WHERE id = {0}"),
    ("after", "UPDATE shop.orders SET n = n + 1 WHERE id IN ({0}, {0} + 1)"),
)


@pytest.mark.slow
@pytest.mark.parametrize("slot", [pytest.param("the run's", marks=pytest.mark.long), "the view's"])
def test_a_transaction_that_writes_before_and_after_a_slot_begins_is_told_as_a_whole(
    slot: str, shop: PostgresServer, run: Pipeline
) -> None:
    """A slot decodes only what began after it, so it has to wait for what runs. Each of the three writes once before
    and once after it could: one that runs already, one that begins meanwhile, one that begins still later."""
    before, after = (sql for _, sql in STEPS)
    if slot == "the view's":
        run.record()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(1))
        midway = Midway(shop, stack)
        third = stack.enter_context(shop.connect())
        midway.first.execute(before.format(10).encode())

        def choreography() -> None:
            with midway.acting():
                midway.second.execute("BEGIN")
                midway.second.execute(before.format(20).encode())
                midway.first.execute(after.format(10).encode())
                midway.end_first()
                third.execute("BEGIN")
                third.execute(before.format(30).encode())
                midway.second.execute(after.format(20).encode())

        acting = pool.submit(choreography)
        run.record() if slot == "the run's" else run.snapshot()
        acting.result(SECONDS)
        expected = there(shop) if slot == "the view's" else {}
        third.execute(after.format(30).encode())
        third.execute("COMMIT")
    if slot == "the run's":
        run.snapshot()
        expected = there(shop)
    run.extract_delta()
    published = copied(run.consolidate()["published"])
    assert published == expected
    wanted = {10: 2, 11: 1, 20: 2, 21: 1, 30: 2, 31: 1} if slot == "the run's" else {10: 2, 11: 1, 20: 2, 21: 1, 30: 0}
    assert {key: n for key, n in published["orders"] if key in wanted} == wanted
