"""Continuous reads of the log for its keys: which were touched, whether a row was left, and no loss in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import LogGone, SchemaChanged
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.postgres.log import segments, tail
from airflow_provider_cdc.sources.postgres.log.tail import PostgresLogTail, open_tail
from airflow_provider_cdc.sources.postgres.slots.waits import log_end
from tests.sources.changes import key
from tests.sources.postgres.log.reading import FULL, Follow, LogReading, Run


@contextmanager
def tail_of(reading: LogReading) -> Iterator[PostgresLogTail]:
    tracked = [TrackedTable(index, table, keys_only=True) for index, table in enumerate(reading.tables)]
    with open_tail(reading.settings, reading.initial, reading.identity, tracked) as opened:
        yield opened


def touched(tail: PostgresLogTail, end: Lsn | None = None) -> dict[bytes, int]:
    """Whether each key was left, by the key; of the last change of each."""
    rows = [row for batch in tail.read(None if end is None else log_end(end)) for row in batch.to_pylist()]
    return {row["key"]: row["count"] for row in sorted(rows, key=lambda row: int(row["order"]))}


def test_what_the_last_change_left_counts(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY, v text)", "INSERT INTO a SELECT i FROM generate_series(1, 9) i")
    reading = follow("a")
    run(
        "INSERT INTO a VALUES (10)",
        "UPDATE a SET v = 'x' WHERE id = 1",
        "DELETE FROM a WHERE id = 2",
        "UPDATE a SET id = 13 WHERE id = 3",
        "DELETE FROM a WHERE id = 4",
        "INSERT INTO a VALUES (4)",
        "INSERT INTO a VALUES (11)",
        "DELETE FROM a WHERE id = 11",
        "UPDATE a SET id = id + 100 WHERE id = 5",
        "UPDATE a SET id = id - 100 WHERE id = 105",
    )
    with tail_of(reading) as tail:
        left = {1: 1, 2: 0, 3: 0, 13: 1, 4: 1, 10: 1, 11: 0, 5: 1, 105: 0}
        assert touched(tail) == {key(number): count for number, count in left.items()}
        before = tail.order
        assert touched(tail) == {}
        run("DELETE FROM a WHERE id = 1")
        (batch,) = tail.read()
        assert batch["order"].to_pylist()[0] > before > 0
        assert batch["key"].to_pylist() == [key(1)]
        assert tail.transactions == 11


def test_the_key_may_be_any_index_that_the_log_identifies_rows_by(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, n int NOT NULL, s text NOT NULL)",
        "ALTER TABLE a ADD g int GENERATED ALWAYS AS (n + 1) STORED",
        "CREATE UNIQUE INDEX named ON a (s, n)",
        "ALTER TABLE a REPLICA IDENTITY USING INDEX named",
        "INSERT INTO a VALUES (1, 1, 'x'), (2, 2, 'x')",
    )
    reading = follow("a")
    assert reading.tables[0].key == ("s", "n")
    run("UPDATE a SET n = 7 WHERE id = 1", "UPDATE a SET id = 9 WHERE id = 2")
    with tail_of(reading) as tail:
        assert touched(tail) == {key("x", 1): 0, key("x", 7): 1, key("x", 2): 1}


def test_a_key_that_is_stored_out_of_line_is_told_with_every_change(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (name text PRIMARY KEY, n int)",
        "INSERT INTO a VALUES (repeat('k', 200000), 1), (repeat('l', 200000), 1)",
    )
    reading = follow("a")
    run("UPDATE a SET n = 2", "DELETE FROM a WHERE name < 'l'")
    with tail_of(reading) as tail:
        assert touched(tail) == {key("k" * 200_000): 0, key("l" * 200_000): 1}


def test_rows_that_move_between_partitions(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 (v text, id int NOT NULL)",
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)",
        f"ALTER TABLE p2 {FULL}",
        "INSERT INTO p VALUES (1), (11), (2)",
    )
    reading = follow("p")
    run("UPDATE p SET id = 12 WHERE id = 1", "UPDATE p SET id = 3 WHERE id = 11", "UPDATE p SET v = 'x' WHERE id = 2")
    with tail_of(reading) as tail:
        assert touched(tail) == {key(1): 0, key(12): 1, key(11): 0, key(3): 1, key(2): 1}


@pytest.mark.parametrize("part", [1, segments.FIRST_PART])
def test_what_lies_beyond_the_stop_comes_with_the_next_look(
    run: Run, follow: Follow, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    """The server may return more than was requested, and then no longer has it."""
    if part == 1:
        monkeypatch.setattr(segments, "FIRST_PART", 1)
        monkeypatch.setattr(segments, "PART_BYTES", 1)
        monkeypatch.setattr(segments, "_decoded_again", lambda *arguments: 0)
        monkeypatch.setattr(tail, "NET_BYTES", 100)
    asked = segments.take
    run("CREATE TABLE a (id int PRIMARY KEY)")
    reading = follow("a")
    ends = []
    for number in range(6):
        run(f"INSERT INTO a VALUES ({number})")
        ends.append(reading.now())
    monkeypatch.setattr(
        tail,
        "take",
        lambda connection, copy, publication, start, stop: asked(connection, copy, publication, start, ends[-1]),
    )
    with tail_of(reading) as opened:
        assert touched(opened, ends[1]) == {key(0): 1, key(1): 1}
        assert touched(opened, ends[2]) == {key(2): 1}
        assert touched(opened) == {key(3): 1, key(4): 1, key(5): 1}


def test_an_identity_that_no_longer_tells_the_key_stops_the_look(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, n int NOT NULL UNIQUE)",
        "INSERT INTO a VALUES (1, 1)",
    )
    reading = follow("a")
    run("ALTER TABLE a REPLICA IDENTITY USING INDEX a_n_key", "UPDATE a SET n = 2")
    with tail_of(reading) as tail, pytest.raises(SchemaChanged, match="lacks id"):
        touched(tail)


def test_a_truncate_stops_the_look(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    reading = follow("a")
    run("TRUNCATE a")
    with tail_of(reading) as tail, pytest.raises(SchemaChanged, match="TRUNCATE"):
        touched(tail)


def test_a_slot_that_someone_moved_stops_the_look(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)")
    reading = follow("a")
    run("INSERT INTO a VALUES (1)")
    with tail_of(reading) as tail:
        run(f"SELECT pg_replication_slot_advance('{reading.slot}', pg_current_wal_insert_lsn())")
        with pytest.raises(LogGone, match="moved"):
            touched(tail)
