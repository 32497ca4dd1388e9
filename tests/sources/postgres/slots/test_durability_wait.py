"""A read counts once no crash can undo what it saw. A crash before that ends the session that read."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psycopg
import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.api.source import AT_START, ChunkReader, Start
from airflow_provider_cdc.sources.postgres import PostgresSource
from airflow_provider_cdc.sources.postgres.decode import rows
from airflow_provider_cdc.sources.postgres.slots import waits
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.sources.postgres.log.reading import settings as settings_of

# Commits can be seen long before anything writes them to disk.
LAZY = {
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
    "synchronous_commit": "off",
    "wal_writer_delay": "3s",
}
RUN_ID = "20260101T000000Z-00000000"
RESTARTED, CRASHED_INSIDE = "the whole server", "one of its processes"


@pytest.fixture
def lazy(postgres_factory: PostgresFactory) -> PostgresServer:
    server = postgres_factory(LAZY)
    server.query("CREATE TABLE stock (id int PRIMARY KEY, n int); ALTER TABLE stock REPLICA IDENTITY FULL")
    return server


def crash(server: PostgresServer, what: str) -> None:
    if what == RESTARTED:
        server.crash()
        return
    # As when memory runs out: the server restarts with empty memory, but its main process survives.
    pid = log_writer(server)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(psycopg.Error, ValueError):
            if log_writer(server) != pid:
                return
        time.sleep(0.05)
    pytest.fail("the server did not crash")


def log_writer(server: PostgresServer) -> int:
    """The process that periodically writes the log to disk. While it is stopped, only committing sessions do so."""
    ((pid,),) = server.query("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    return int(pid)


def read_all(reader: ChunkReader, source: PostgresSource, table: object) -> set[int]:
    chunks = source.plan_chunks(table, 1000)  # type: ignore[arg-type]
    return {row["id"] for chunk in chunks for batch in reader.read(chunk) for row in batch.to_pylist()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "consistency", "encrypted"),
    [
        (RESTARTED, "watermark", False),
        (CRASHED_INSIDE, "watermark", True),
        pytest.param(CRASHED_INSIDE, "exported", False, marks=pytest.mark.long),
        pytest.param(RESTARTED, "exported", True, marks=pytest.mark.long),
    ],
)
def test_a_part_that_settled_is_there_after_a_crash_and_no_other_part_settles(
    lazy: PostgresServer, what: str, consistency: str, encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "is_plain", lambda connection: not encrypted)
    source = PostgresSource(settings_of(lazy, "postgres"))
    initial = source.record_initial(source.preflight(["public.stock"]), LockPolicy(), RUN_ID)
    (table,) = initial.tables
    run = source.of_run(initial.identity, initial.position)
    policy = LockPolicy()

    lazy.query("INSERT INTO stock VALUES (1, 1)")
    with run.shared_reads({consistency}, policy) as shared, shared.reader(table, consistency, policy) as reader:
        # With a shared view, it may be after the view's position, or not visible yet.
        seen = read_all(reader, run, table)
        assert consistency == "exported" or seen == {1}
        incarnation = reader.wait_until_durable()
    crash(lazy, what)
    assert {id for (id,) in lazy.query("SELECT id FROM stock")} >= seen
    assert (run.bound_reads().incarnation == incarnation) == (what == CRASHED_INSIDE)

    if consistency == "watermark":
        os.kill(log_writer(lazy), signal.SIGSTOP)
    lazy.query("INSERT INTO stock VALUES (2, 2)")
    with (
        suppress(SourceUnavailable),
        run.shared_reads({consistency}, policy) as shared,
        shared.reader(table, consistency, policy) as reader,
    ):
        seen = read_all(reader, run, table)
        crash(lazy, what)
        with pytest.raises(SourceUnavailable):
            reader.wait_until_durable()
    if consistency == "watermark":
        assert 2 in seen
        assert lazy.query("SELECT id FROM stock") == [(1,)], "nothing was lost: the test provokes nothing"
    source.discard(initial.identity)


@pytest.mark.slow
def test_the_initial_position_and_the_bound_outlive_a_crash(lazy: PostgresServer) -> None:
    source = PostgresSource(settings_of(lazy, "postgres"))
    plans = source.preflight(["public.stock"])
    lazy.query("INSERT INTO stock VALUES (1, 1)")
    initial = source.record_initial(plans, LockPolicy(), RUN_ID)
    lazy.crash()
    run = source.of_run(initial.identity, initial.position)
    run.check_identity(initial.identity, initial.position)
    lazy.query("INSERT INTO stock VALUES (2, 2)")
    bound = run.bound_reads()
    lazy.crash()
    assert len(run.segments(Start(initial.position, initial.identity), AT_START, bound.log_end)) == 1
    assert lazy.query("SELECT id FROM stock ORDER BY 1") == [(1,), (2,)]
    source.discard(initial.identity)


def test_settling_takes_one_query_where_the_log_is_on_disk(postgres_factory: PostgresFactory) -> None:
    server = postgres_factory({"autovacuum": "off"})
    server.query("CREATE TABLE stock (id int)")
    with server.connect() as connection:
        asked: list[str] = []

        def ask(sql: str) -> list[tuple[str, ...]]:
            asked.append(sql)
            return connection.execute(sql).fetchall()

        first, incarnation = waits.wait(ask, "here")
        for _ in range(20):
            asked.clear()
            again, same = waits.wait(ask, "here")
            # From time to time the server notes in its log what runs.
            if len(asked) == 1:
                break
        assert len(asked) == 1
        assert (
            first <= again <= Lsn.parse(connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()[0][0])
        )
        assert incarnation == same
    server.restart()
    with server.connect() as connection:
        assert waits.wait(lambda sql: connection.execute(sql).fetchall(), "here")[1] != incarnation
