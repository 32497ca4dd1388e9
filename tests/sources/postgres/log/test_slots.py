"""Whatever happens to the slot of the log reader, the reader reports it and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.errors import (
    ConfigurationError,
    LogGone,
    PositionError,
    SourceUnavailable,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.log import segments
from airflow_provider_cdc.sources.postgres.log.segments import log_segments, open_segment
from airflow_provider_cdc.sources.postgres.server.session import query, session
from airflow_provider_cdc.sources.postgres.slots import slots, waits
from harness.postgres_server import PostgresServer
from tests.conftest import PostgresFactory
from tests.consistency.postgres.servers import EVERY
from tests.soon import soon
from tests.sources.changes import key
from tests.sources.postgres.log.messages import peek
from tests.sources.postgres.log.reading import FULL, Follow, LogReading, Run


def test_a_slot_that_someone_moved(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    run("INSERT INTO a VALUES (1)")
    end = reading.now()
    segment = reading.segment(end)
    run(f"SELECT pg_replication_slot_advance('{reading.slot}', pg_current_wal_insert_lsn())")
    with pytest.raises(LogGone, match="the slot was moved"):
        reading.segment(end)
    with (
        pytest.raises(LogGone, match="the slot was moved"),
        open_segment(reading.settings, segment, reading.initial, reading.tracked(end)),
    ):
        pass


def test_a_slot_that_is_gone(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    end = reading.now()
    segment = reading.segment(end)
    slots.drop(reading.settings, reading.slot)
    with pytest.raises(LogGone, match="is gone"):
        reading.segment(end)
    with (
        pytest.raises(LogGone, match="is gone"),
        open_segment(reading.settings, segment, reading.initial, reading.tracked(end)),
    ):
        pass


def test_a_slot_that_is_dropped_while_it_is_read(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    end = reading.now()
    with open_segment(reading.settings, reading.segment(end), reading.initial, reading.tracked(end)) as reader:
        slots.drop(reading.settings, reading.slot)
        with pytest.raises(LogGone):
            list(reader)


def test_a_slot_that_another_session_reads_gives_us_the_same(
    run: Run, follow: Follow, postgres: PostgresServer, database: str
) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    run("INSERT INTO a VALUES (1)")
    other = psycopg.connect(
        host=postgres.host, port=postgres.port, user="postgres", dbname=database, replication="database"
    )
    options = f"(proto_version '1', publication_names '{reading.slot}')"
    other.pgconn.exec_(f"START_REPLICATION SLOT {reading.slot} LOGICAL 0/0 {options}".encode())
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    assert postgres.query(active, (reading.slot,)) == [(True,)]
    assert reading.read().before["a"] == {key(1): None}
    other.close()
    soon(lambda: postgres.query(active, (reading.slot,)), [(False,)])
    assert reading.read().before["a"] == {key(1): None}


def test_a_slot_that_is_moved_right_before_it_is_read(run: Run, follow: Follow, postgres: PostgresServer) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    run("INSERT INTO a VALUES (1)")
    end = reading.now()
    with open_segment(reading.settings, reading.segment(end), reading.initial, reading.tracked(end)) as reader:
        postgres.query(
            "SELECT pg_replication_slot_advance(%s, %s)", (reading.slot, str(end)), database=reading.database
        )
        with pytest.raises(LogGone, match="was moved"):
            list(reader)


@pytest.mark.parametrize("old_transaction", [False, True])
def test_a_long_window_is_taken_in_parts_and_leaves_the_slot_as_it_is(
    run: Run, follow: Follow, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, old_transaction: bool
) -> None:
    """No part is decoded from too late a place, and nothing is returned twice."""
    monkeypatch.setattr(segments, "FIRST_PART", 7)
    monkeypatch.setattr(segments, "PART_BYTES", 1)
    again: list[int] = []
    original = segments._decoded_again

    def small_again(*arguments: Any) -> int:
        again.append(original(*arguments))
        return 0

    monkeypatch.setattr(segments, "_decoded_again", small_again)
    run("CREATE TABLE a (id int PRIMARY KEY, n int)", f"ALTER TABLE a {FULL}", "CREATE TABLE other (id int)")
    reading = follow("a")
    run("INSERT INTO a SELECT g, 0 FROM generate_series(1, 20) g")
    with reading.server.connect(database=reading.database, autocommit=not old_transaction) as old:
        old.execute("UPDATE a SET n = -1 WHERE id = 20")
        for start in range(1, 20):
            run(f"UPDATE a SET n = n + 1 WHERE id = {start}", "INSERT INTO other VALUES (1)")
            if start % 5 == 0:
                # Once everything that began before has ended, parts need not be decoded from the beginning.
                run("CHECKPOINT")
        old.commit()
    run("DELETE FROM a WHERE id < 3")
    end = reading.now()
    found = reading.read(end)
    assert found.before["a"] == {key(number): None for number in range(1, 21)}
    assert found.summary.row_images == 20 + 2 * 20 + 2
    assert len(again) > 3, "it was taken in too few parts"
    assert (again[-1] > again[0]) or not old_transaction
    assert reading.read(end).before == found.before
    left = "SELECT slot_name FROM pg_replication_slots WHERE slot_name <> %s"
    soon(lambda: postgres.query(left, (reading.slot,)), [])


@pytest.mark.parametrize("part", [1, 2, 7, segments.FIRST_PART])
def test_the_mark_of_the_reads_is_met_however_the_window_is_taken(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """Among messages of others, on both sides of it, and large ones."""
    monkeypatch.setattr(segments, "FIRST_PART", part)
    monkeypatch.setattr(segments, "PART_BYTES", 1)
    run("CREATE TABLE a (id int PRIMARY KEY, n int)", f"ALTER TABLE a {FULL}", "INSERT INTO a VALUES (1, 0)")
    reading = follow("a")
    others = (
        "SELECT pg_logical_emit_message(false, 'airflow-provider-cdc', repeat('0', 32))",
        "SELECT pg_logical_emit_message(true, 'other', repeat('x', 300000))",
        "SELECT pg_logical_emit_message(false, 'other', repeat('x', 300000))",
    )
    for _ in range(4):
        run("UPDATE a SET n = n + 1", *others)
    with session(reading.settings) as connection:
        ask = partial(query, connection)
        mark = waits.write(ask)
        end, _ = waits.wait(ask, "the end of the log")
    run("UPDATE a SET n = n + 1", *others)
    assert reading.read(waits.log_end(end, mark), end).summary.row_images == 2 * 4
    with pytest.raises(LogGone, match="no longer contains the mark"):
        reading.read(waits.log_end(end, replace(mark, token="0" * 32)), end)


def test_a_log_that_ends_before_the_bound(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    with pytest.raises(LogGone, match="the log ends at"):
        reading.segment(Lsn.parse("FFFF/0"))


@pytest.mark.parametrize("end", ["", "x", "binlog.000001:4"])
def test_a_bound_that_is_no_place_in_the_log(run: Run, follow: Follow, end: str) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    with pytest.raises(PositionError):
        log_segments(reading.settings, reading.initial, LogEnd(end), reading.identity)


def test_a_privilege_is_missing(run: Run, follow: Follow, postgres: PostgresServer) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    end = reading.now()
    postgres.query("CREATE ROLE reader LOGIN PASSWORD 'secret'")
    try:
        other = ConnectionSettings("postgres", postgres.host, postgres.port, "reader", "secret", reading.database)
        with (
            open_segment(other, reading.segment(end), reading.initial, reading.tracked(end)) as reader,
            pytest.raises(ConfigurationError, match="replication"),
        ):
            list(reader)
    finally:
        postgres.query("DROP ROLE reader")


def test_no_session_stays_behind(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    run("INSERT INTO a SELECT g FROM generate_series(1, 200000) g")
    end = reading.now()
    with open_segment(reading.settings, reading.segment(end), reading.initial, reading.tracked(end)) as reader:
        next(iter(reader))
    ours = "SELECT query FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
    soon(lambda: reading.server.query(ours, (reading.database,)), [])


@pytest.mark.slow
def test_a_session_that_ends_early(run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was read counts, and the next try reads the same."""
    run("CREATE TABLE a (id int PRIMARY KEY, filling text)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    # More than the buffers between the server and the client hold.
    run("INSERT INTO a SELECT g, repeat('x', 300) FROM generate_series(1, 100000) g")
    end = reading.now()
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND query LIKE %s"
    take = segments.take

    def ended_early(*arguments: Any, **more: Any) -> Iterator[pa.Array]:
        messages = take(*arguments, **more)
        yield next(messages)
        assert reading.server.query(kill, (reading.database, "%slot_get_binary%")) == [(True,)]
        yield from messages

    with (
        monkeypatch.context() as patch,
        open_segment(reading.settings, reading.segment(end), reading.initial, reading.tracked(end)) as reader,
    ):
        patch.setattr(segments, "take", ended_early)
        with pytest.raises(SourceUnavailable):
            list(reader)
    assert len(reading.read(end).before["a"]) == 100_000


@pytest.mark.parametrize("version", EVERY)
def test_a_large_transaction_that_is_rolled_back_with_its_savepoints(
    version: int, postgres_factory: PostgresFactory
) -> None:
    """PostgreSQL 18 sends Stream Abort for it, although nothing is streamed, for copied tables and for others."""
    server = postgres_factory({"logical_decoding_work_mem": "64kB"}, version)
    for name in ("a", "other"):
        server.query(f"CREATE TABLE {name} (id int PRIMARY KEY, filling text); ALTER TABLE {name} {FULL}")
    server.query("INSERT INTO a VALUES (1, 'there')")
    reading = LogReading(server, "postgres", "a")
    many = "INSERT INTO {} SELECT i, repeat('x', 100) FROM generate_series({}, {}) i"
    for name in ("a", "other"):
        with server.connect(autocommit=False) as connection:
            connection.execute("SAVEPOINT one")
            connection.execute(many.format(name, 10, 20))
            connection.execute("RELEASE one")
            connection.execute(many.format(name, 21, 3000))
            server.query(f"UPDATE a SET filling = 'during {name}'")
            connection.rollback()
    with server.connect(autocommit=False) as connection:
        connection.execute(many.format("a", 10, 3000))
        connection.execute("SAVEPOINT one")
        connection.execute(many.format("a", 4000, 7000))
        connection.execute("ROLLBACK TO one")
        connection.commit()
    kinds = {message[:1] for message in peek(server, "postgres", reading.slot, reading.slot)}
    assert (b"A" in kinds) == (version == 18), "the server behaves otherwise: the test provokes nothing"
    befores = reading.read().before["a"]
    assert befores.pop(key(1)) == (1, "there")
    assert befores == {key(number): None for number in range(10, 3001)}
    reading.close()


def test_a_limit_on_temporary_files_is_told_with_what_lifts_it(run: Run, follow: Follow) -> None:
    """It is no lack of room that passes: each retry would meet it again."""
    run("CREATE TABLE a (id int PRIMARY KEY, t text)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    run("INSERT INTO a SELECT g, repeat('x', 1000) FROM generate_series(1, 10000) g")
    end = reading.now()
    run(f"ALTER DATABASE {reading.database} SET temp_file_limit = '1MB'")
    with pytest.raises(ConfigurationError, match="temp_file_limit") as refused:
        reading.read(end)
    assert "SET temp_file_limit = -1" in refused.value.hint
    run(f"ALTER DATABASE {reading.database} SET temp_file_limit = -1")
    assert len(reading.read(end).before["a"]) == 10_000
