"""The log reader on a real server finds the changes that were made."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from airflow_provider_cdc.errors import (
    SchemaChanged,
)
from airflow_provider_cdc.sources.postgres.log.segments import PostgresSegmentReader, open_segment
from harness.postgres_server import PostgresServer
from tests.sources.changes import key
from tests.sources.postgres.log.reading import FULL, Follow, Run


def test_the_first_before_of_each_key(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        f"ALTER TABLE a {FULL}",
        "INSERT INTO a VALUES (1, 'one'), (2, 'two'), (3, NULL)",
    )
    reading = follow("a")
    run(
        "UPDATE a SET v = 'x' WHERE id = 1",
        "UPDATE a SET v = 'y' WHERE id = 1",
        "DELETE FROM a WHERE id = 2",
        "INSERT INTO a VALUES (2, 'again'), (4, 'new')",
        "DELETE FROM a WHERE id = 4",
        "UPDATE a SET id = 10 WHERE id = 3",
        "INSERT INTO a VALUES (1, 'z') ON CONFLICT (id) DO UPDATE SET v = 'conflict'",
        "COPY (SELECT 1) TO '/dev/null'",
    )
    window = reading.read()
    assert window.before["a"] == {
        key(1): (1, "one"),
        key(2): (2, "two"),
        key(3): (3, None),
        key(4): None,
        key(10): None,
    }
    assert window.summary.transactions == 7
    assert window.summary.row_images == 2 + 2 + 1 + 2 + 1 + 2 + 2
    # This only peeks into the slot.
    assert reading.read().before == window.before


def test_keys_of_several_columns_in_another_order_than_the_columns(run: Run, follow: Follow) -> None:
    run(
        'CREATE TABLE a (v int, s text, "i d" int, PRIMARY KEY ("i d", s))',
        f"ALTER TABLE a {FULL}",
        "INSERT INTO a VALUES (7, 'x', 1), (8, 'y', 1)",
    )
    reading = follow("a")
    run("UPDATE a SET v = 0 WHERE s = 'x'", "UPDATE a SET s = 'Y' WHERE s = 'y'")
    assert reading.read().before["a"] == {key(1, "x"): (7, "x", 1), key(1, "y"): (8, "y", 1), key(1, "Y"): None}


def test_keyless_rows_come_and_go(run: Run, follow: Follow) -> None:
    run("CREATE TABLE k (a int, b text)", f"ALTER TABLE k {FULL}", "INSERT INTO k VALUES (1, 'x'), (1, 'x'), (2, NULL)")
    reading = follow("k")
    run(
        "DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k)",
        "INSERT INTO k SELECT 3, 'n' FROM generate_series(1, 5)",
        "UPDATE k SET b = 'u' WHERE a = 2",
        "UPDATE k SET b = 'v' WHERE a = 3",
        "UPDATE k SET b = 'n' WHERE a = 3",
        "INSERT INTO k VALUES (9, 'gone')",
        "DELETE FROM k WHERE a = 9",
    )
    assert reading.read().counts["k"] == Counter({(1, "x"): -1, (3, "n"): 5, (2, None): -1, (2, "u"): 1})


def test_keyless_changes_count_up_to_their_own_bound(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE k (a int)",
        f"ALTER TABLE k {FULL}",
        "CREATE TABLE a (id int PRIMARY KEY)",
        f"ALTER TABLE a {FULL}",
    )
    reading = follow("k", "a")
    run("INSERT INTO k VALUES (1)", "INSERT INTO a VALUES (1)")
    upper = reading.now()
    run("INSERT INTO k VALUES (2)", "INSERT INTO a VALUES (2)")
    window = reading.read(upper=upper)
    assert window.counts["k"] == Counter({(1,): 1})
    assert window.before["a"] == {key(1): None, key(2): None}
    window = reading.read(end=upper)
    assert window.before["a"] == {key(1): None}
    assert window.summary.transactions == 2


def test_toasted_values_that_an_update_leaves_alone(run: Run, follow: Follow) -> None:
    """The new row does not repeat the values, but the old one has them complete."""
    wide = "(SELECT string_agg(md5(g::text), '') FROM generate_series(1, {}) g)".format
    run(
        "CREATE TABLE a (id text PRIMARY KEY, n int, v text, w text)",
        "CREATE TABLE k (n int, v text, w text)",
        "ALTER TABLE a ALTER id SET STORAGE EXTERNAL",
        f"ALTER TABLE a {FULL}",
        f"ALTER TABLE k {FULL}",
        # A key value may be stored outside of the row, too.
        f"INSERT INTO a VALUES (left({wide(100)}, 2500), 1, {wide(30000)}, {wide(100)})",
        f"INSERT INTO k VALUES (1, {wide(30000)}, {wide(100)})",
    )
    rows = reading_rows(run, follow)
    reading = follow("a", "k")
    run("UPDATE a SET n = 2", "UPDATE a SET n = 3, w = 'w'", "UPDATE k SET n = 2", "UPDATE k SET n = 3, w = 'w'")
    window = reading.read()
    (a,), (k,) = rows
    assert list(window.before["a"].items()) == [(key(a[0]), a)]
    assert len(a[2]) == 960_000
    assert window.counts["k"] == Counter({k: -1, (3, k[1], "w"): 1})


def reading_rows(run: Run, follow: Follow) -> tuple[list[Any], list[Any]]:
    """The rows of a and k, from the log of a change that leaves them as they are."""
    reading = follow("a", "k")
    run("UPDATE a SET n = n", "DELETE FROM k WHERE n = 100")
    a = [row for row in reading.read().before["a"].values() if row is not None]
    with reading.server.connect(database=reading.database) as connection:
        return a, connection.execute("SELECT * FROM k").fetchall()


def test_what_was_rolled_back_did_not_happen(run: Run, follow: Follow, postgres: PostgresServer, database: str) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    with postgres.connect(database=database) as connection:
        for statement in [
            "BEGIN", "INSERT INTO a VALUES (1)", "SAVEPOINT s", "INSERT INTO a VALUES (2)", "ROLLBACK TO s",
            "SAVEPOINT t", "INSERT INTO a VALUES (3)", "RELEASE t", "COMMIT",
            "BEGIN", "INSERT INTO a VALUES (4)", "ROLLBACK",
            "BEGIN", "INSERT INTO a VALUES (5)", "PREPARE TRANSACTION 'p5'",
            "BEGIN", "INSERT INTO a VALUES (6)", "PREPARE TRANSACTION 'p6'",
            "BEGIN", "INSERT INTO a VALUES (7)", "PREPARE TRANSACTION 'p7'",
            "COMMIT PREPARED 'p6'", "ROLLBACK PREPARED 'p7'",
        ]:  # fmt: skip
            connection.execute(statement)
        assert set(reading.read().before["a"]) == {key(1), key(3), key(6)}
        connection.execute("COMMIT PREPARED 'p5'")
    assert set(reading.read().before["a"]) == {key(1), key(3), key(5), key(6)}


def test_a_transaction_that_began_before_and_commits_after(
    run: Run, follow: Follow, postgres: PostgresServer, database: str
) -> None:
    """Creating the slot waits for running transactions; one that commits later is completely in the window."""
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    with postgres.connect(database=database, autocommit=False) as connection:
        connection.execute("INSERT INTO a VALUES (1)")
        waiting = threading.Timer(0.5, connection.commit)
        waiting.start()
        reading = follow("a")
        waiting.join()
        connection.execute("INSERT INTO a VALUES (2)")
        assert reading.read().before == {}
        connection.commit()
    assert reading.read().before["a"] == {key(2): None}


def test_rows_of_other_tables_messages_and_origins_are_passed_over(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}", "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TYPE mood AS ENUM ('x')", "CREATE TABLE c (m mood PRIMARY KEY)", f"ALTER TABLE c {FULL}",
    )  # fmt: skip
    reading = follow("a", "c")
    run(
        f"ALTER PUBLICATION {reading.slot} ADD TABLE b",
        "INSERT INTO b VALUES (1)",
        "UPDATE b SET id = 2",
        "TRUNCATE b",
        "ALTER TABLE b ADD c int",
        "INSERT INTO b VALUES (3, 3)",
        "SELECT pg_logical_emit_message(true, 'us', 'in a transaction')",
        "SELECT pg_logical_emit_message(false, 'us', 'by itself')",
        "SELECT pg_replication_origin_create('elsewhere')",
    )
    with reading.server.connect(database=reading.database) as connection:
        connection.execute("SELECT pg_replication_origin_session_setup('elsewhere')")
        connection.execute("BEGIN")
        connection.execute("SELECT pg_replication_origin_xact_setup('0/10', now())")
        connection.execute("INSERT INTO a VALUES (1)")
        connection.execute("INSERT INTO c VALUES ('x')")
        connection.execute("COMMIT")
        # The server's process ends a moment after its connection, and holds the origin until then.
        connection.execute("SELECT pg_replication_origin_session_reset()")
    window = reading.read()
    assert window.before == {"a": {key(1): None}, "c": {key("x"): None}}
    reading.server.query("SELECT pg_replication_origin_drop('elsewhere')")


def test_rows_that_move_between_partitions(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE p (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        # Another order of columns, and a dropped one: the log has the root's.
        "CREATE TABLE p1 (v text, gone int, id int NOT NULL)",
        "ALTER TABLE p1 DROP gone",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (id)",
        "CREATE TABLE p2d PARTITION OF p2 DEFAULT",
        *(f"ALTER TABLE {name} {FULL}" for name in ("p", "p1", "p2", "p2d")),
        "INSERT INTO p VALUES (1, 'one'), (11, 'eleven')",
    )
    reading = follow("p")
    run(
        "UPDATE p SET id = 12 WHERE id = 1",
        "UPDATE p1 SET v = 'none'",
        "UPDATE p2 SET v = v || '!'",
        "INSERT INTO p1 VALUES ('two', 2)",
    )
    assert reading.read().before["p"] == {key(1): (1, "one"), key(11): (11, "eleven"), key(12): None, key(2): None}


def test_children_by_inheritance_are_other_tables(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE child (more int) INHERITS (a)",
        f"ALTER TABLE a {FULL}", f"ALTER TABLE child {FULL}",
    )  # fmt: skip
    reading = follow("a")
    run("INSERT INTO child VALUES (1, 2)", "INSERT INTO a VALUES (3)", "DELETE FROM a")
    assert reading.read().before["a"] == {key(3): None}


def test_names_that_need_quotes(run: Run, follow: Follow) -> None:
    run('CREATE TABLE "Ta ble" ("I""d" int PRIMARY KEY, "ä" text)', f'ALTER TABLE "Ta ble" {FULL}')
    run('CREATE PUBLICATION "My ""own"", \'p\'" FOR TABLE "Ta ble"')
    reading = follow("Ta ble", publication="My \"own\", 'p'")
    run("INSERT INTO \"Ta ble\" VALUES (1, 'x')")
    assert reading.read().before["Ta ble"] == {key(1): None}


def test_a_window_without_changes(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    window = reading.read()
    assert (window.before, window.summary.transactions, window.batches) == ({}, 0, [])


@pytest.mark.slow
def test_more_keys_than_the_first_memory_holds(run: Run, follow: Follow) -> None:
    run(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        f"ALTER TABLE a {FULL}",
        "INSERT INTO a SELECT g, md5(g::text) FROM generate_series(1, 100000) g",
    )
    reading = follow("a")
    run("UPDATE a SET v = v || '!' WHERE id % 2 = 0", "DELETE FROM a WHERE id % 3 = 0")
    with reading.server.connect(database=reading.database) as connection:
        expected = {
            key(g): (g, text)
            for g, text in connection.execute(
                "SELECT g, md5(g::text) FROM generate_series(1, 100000) g WHERE g % 2 = 0 OR g % 3 = 0"
            ).fetchall()
        }
    window = reading.read()
    assert window.before["a"] == expected
    assert len(window.batches) > 1


@pytest.mark.slow
def test_memory_grows_with_the_touched_keys_and_not_with_the_changes(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY, v text)", f"ALTER TABLE a {FULL}")
    run("CREATE TABLE k (v text)", f"ALTER TABLE k {FULL}")
    run("INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, 100) g")
    reading = follow("a", "k")
    for _ in range(100):
        run("UPDATE a SET v = v || 'y'")
        run("INSERT INTO k SELECT repeat('z', 1000) FROM generate_series(1, 10)", "DELETE FROM k")
    end = reading.now()
    with open_segment(reading.settings, reading.segment(end), reading.initial, reading.tracked(end)) as reader:
        assert isinstance(reader, PostgresSegmentReader)
        assert sum(batch.num_rows for batch in reader) == 100
        assert reader.summary.bytes > 4_000_000
        assert reader._walker.change.arena.nbytes < 1_000_000


@pytest.mark.slow
def test_the_end_is_exact_although_writers_go_on(run: Run, follow: Follow) -> None:
    run("CREATE TABLE a (id int PRIMARY KEY)", f"ALTER TABLE a {FULL}")
    reading = follow("a")
    stop = threading.Event()
    written: list[object] = []

    def write() -> None:
        with reading.server.connect(database=reading.database) as connection:
            connection.execute("SET synchronous_commit = off")
            while not stop.is_set():
                connection.execute("INSERT INTO a VALUES (%s)", (len(written),))
                written.append(connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            before = len(written)
            end = reading.now()
            after = len(written)
            found = reading.read(end).before.get("a", {})
            assert before <= len(found) <= after + 1
            assert set(found) == {key(number) for number in range(len(found))}
    finally:
        stop.set()
        writer.join()


def test_stored_generated_columns(run: Run, follow: Follow, postgres: PostgresServer) -> None:
    """The log has them from PostgreSQL 18 on. Before, both preflight and the log reader refuse them."""
    run(
        "CREATE TABLE a (id int PRIMARY KEY, v text, g text GENERATED ALWAYS AS (v || '!') STORED)",
        f"ALTER TABLE a {FULL}",
        "INSERT INTO a VALUES (1, 'one')",
    )
    reading = follow("a")
    run("UPDATE a SET v = 'x'", "INSERT INTO a VALUES (2, 'two')")
    if postgres.binaries.major >= 18:
        assert reading.read().before["a"] == {key(1): (1, "one", "one!"), key(2): None}
    else:
        with pytest.raises(SchemaChanged, match=r"its columns have changed \(g\)"):
            reading.read()


def test_columns_that_were_added_and_dropped_in_place(run: Run, follow: Follow) -> None:
    """Older rows lack them on disk, where their default, which was never written, is still their value."""
    run(
        "CREATE TABLE a (x int, id int PRIMARY KEY, y text)",
        "CREATE TABLE k (x int, y text)",
        "CREATE TABLE p (x int, id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p DEFAULT",
        *(f"ALTER TABLE {name} {FULL}" for name in ("a", "k", "p", "p1")),
        "INSERT INTO a VALUES (0, 1, 'y')",
        "INSERT INTO k VALUES (0, 'y')",
        "INSERT INTO p VALUES (0, 1)",
        *(f"ALTER TABLE {name} DROP x" for name in ("a", "k", "p")),
        *(f"ALTER TABLE {name} ADD w text DEFAULT repeat('w', 3000)" for name in ("a", "k", "p")),
        *(f"ALTER TABLE {name} ADD n int" for name in ("a", "k", "p")),
        *(f"ALTER TABLE {name} ALTER w SET DEFAULT 'other'" for name in ("a", "k", "p")),
    )
    reading = follow("a", "k", "p")
    run("UPDATE a SET y = 'z'", "UPDATE k SET y = 'z'", "UPDATE p SET n = 1")
    window, wide = reading.read(), "w" * 3000
    assert window.before["a"] == {key(1): (1, "y", wide, None)}
    assert window.before["p"] == {key(1): (1, wide, None)}
    assert window.counts["k"] == Counter({("y", wide, None): -1, ("z", wide, None): 1})
