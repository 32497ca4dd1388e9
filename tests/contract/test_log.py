"""For every key that a window touched, the log yields the row before the window, bit for bit as SELECT read it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pytest

from airflow_provider_cdc.sources.api.source import AT_START, Start
from tests.contract.begun import Begin, Begun, row_keys
from tests.contract.databases import Database

SETUP = [
    "INSERT INTO orders VALUES (1, 10, 1.5000, 0.1, 'ab', 'straße', '2024-02-29', '2024-02-29 23:59:59.000001', TRUE)",
    "INSERT INTO orders VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    "INSERT INTO orders VALUES (3, 0, 0, 0, '', '', '1970-01-01', '1970-01-01 00:00:01', FALSE)",
    "INSERT INTO orders VALUES (-4, -9223372036854775808, -12345678.9, -1.7e308, 'a ', '', '0001-01-01', NULL, TRUE)",
    "UPDATE orders SET note = REPEAT('large ', 5000) WHERE id = -4",
    "INSERT INTO items VALUES ('a', 1, 'one'), ('a', 2, 'two'), ('b', 1, NULL), ('Ωmega', -1, ''), ('', 0, 'x')",
    "INSERT INTO visits VALUES (1, 'same'), (1, 'same'), (1, 'same'), (2, NULL), (NULL, NULL), (NULL, NULL)",
    "INSERT INTO aside VALUES (1, 'x')",
]


COLUMNS = {
    "orders": "id INT PRIMARY KEY, big BIGINT, amount DECIMAL(20,4), ratio DOUBLE PRECISION, code CHAR(8), note TEXT, "
    "day DATE, moment TIMESTAMP(6) NULL, paid BOOLEAN",
    "items": "code VARCHAR(9) NOT NULL, number INT NOT NULL, note TEXT, PRIMARY KEY (number, code)",
    "visits": "a INT, page VARCHAR(9)",
    "aside": "id INT PRIMARY KEY, note TEXT",
}


@pytest.fixture
def shop(db: Database) -> Database:
    """Three tables that are copied, and one aside."""
    for name, columns in COLUMNS.items():
        db.create(name, columns)
    db.execute(*SETUP)
    return db


HISTORIES: dict[str, list[str]] = {
    "nothing": [],
    "update": ["UPDATE orders SET note = 'new'", "UPDATE items SET note = 'new' WHERE code = 'a'"],
    "update of a small column beside a large one": ["UPDATE orders SET paid = NULL WHERE id = -4"],
    "update to the same": ["UPDATE orders SET note = note", "UPDATE items SET note = note"],
    "update there and back": [
        "UPDATE orders SET big = big + 1 WHERE id = 1",
        "UPDATE orders SET big = big - 1 WHERE id = 1",
    ],
    "insert": [
        "INSERT INTO orders (id) VALUES (100), (101)",
        "INSERT INTO items VALUES ('c', 1, 'new')",
        "INSERT INTO visits VALUES (1, 'same'), (7, 'new')",
    ],
    "delete": ["DELETE FROM orders", "DELETE FROM items WHERE number = 1", "DELETE FROM visits WHERE a = 1"],
    "insert and delete": [
        "INSERT INTO orders (id) VALUES (100)",
        "DELETE FROM orders WHERE id = 100",
        "INSERT INTO visits VALUES (7, 'new')",
        "DELETE FROM visits WHERE a = 7",
    ],
    "delete and insert": [
        "DELETE FROM orders WHERE id = 1",
        "INSERT INTO orders (id, note) VALUES (1, 'again')",
        "DELETE FROM visits WHERE a = 2",
        "INSERT INTO visits VALUES (2, NULL)",
    ],
    "many changes of one row": [
        "UPDATE orders SET note = 'first' WHERE id = 1",
        "DELETE FROM orders WHERE id = 1",
        "INSERT INTO orders (id) VALUES (1)",
        "UPDATE orders SET note = 'last' WHERE id = 1",
    ],
    "keys that move": [
        "UPDATE orders SET id = 50 WHERE id = 1",
        "UPDATE items SET number = number + 10",
        "UPDATE items SET code = 'z' WHERE code = 'b'",
    ],
    "keys that change places": [
        "UPDATE orders SET id = 50 WHERE id = 1",
        "UPDATE orders SET id = 1 WHERE id = 2",
        "UPDATE orders SET id = 2 WHERE id = 50",
    ],
    "a key that moves away and another row that takes it": [
        "UPDATE items SET number = 77 WHERE code = '' AND number = 0",
        "INSERT INTO items VALUES ('', 0, 'another')",
    ],
    "keyless rows": [
        "INSERT INTO visits VALUES (1, 'same'), (NULL, NULL), (9, NULL)",
        "UPDATE visits SET page = 'other' WHERE a = 2",
        "DELETE FROM visits WHERE a = 1",
        "UPDATE visits SET a = 5 WHERE a IS NULL",
    ],
}


class Before:
    """What the tables were at the initial position, read before anything was written."""

    def __init__(self, run: Begun) -> None:
        self.run = run
        self.tables = run.read_all()

    def check(self) -> None:
        """The window's net change leads exactly from the current tables back to the earlier ones."""
        window = self.run.window()
        for name, now in self.run.read_all().items():
            then, key = self.tables[name], self.run.tables[name].key
            if key:
                touched, rows, left = window.before[name], by_key(then, key), by_key(now, key)
                assert touched == {one: rows.get(one) for one in touched}, name
                assert {one for one, _ in rows.items() ^ left.items()} <= touched.keys(), name
            else:
                added = Counter(row_keys(now, now.column_names))
                added.subtract(row_keys(then, then.column_names))
                assert _nonzero(window.counts[name]) == _nonzero(added), name


def by_key(rows: pa.Table, key: Sequence[str]) -> dict[bytes, bytes]:
    """The bytes of whole rows, by those of their keys."""
    return dict(zip(row_keys(rows, key), row_keys(rows, rows.column_names), strict=True))


def _nonzero(counts: Counter[bytes]) -> dict[bytes, int]:
    return {key: count for key, count in counts.items() if count}


@pytest.mark.slow
def test_the_before_of_every_touched_key_is_what_was_read(db: Database, begin: Begin) -> None:
    """Each history is a transaction, and has tables of its own."""
    tables = [f"{table}_{_suffix(history)}" for history in HISTORIES for table in ("orders", "items", "visits")]
    for table in tables:
        db.create(table, COLUMNS[table.partition("_")[0]])
    for history in HISTORIES:
        db.transaction(*(_of_history(history, statement) for statement in SETUP if "INTO aside" not in statement))
    before = Before(begin(*tables))
    for history, statements in HISTORIES.items():
        db.transaction(*(_of_history(history, statement) for statement in statements))
    before.check()


def _of_history(history: str, statement: str) -> str:
    """The statement, on the tables of the history."""
    return re.sub(r"\b(orders|items|visits)\b", rf"\1_{_suffix(history)}", statement)


def _suffix(history: str) -> str:
    return history.replace(" ", "_")


@pytest.mark.slow
def test_it_is_also_where_each_change_is_a_transaction_in_a_file_of_its_own(shop: Database, begin: Begin) -> None:
    """All histories, one after the other; each begins with what the one before it left."""
    for statements in HISTORIES.values():
        run = begin("orders", "items", "visits")
        before = Before(run)
        for statement in statements:
            shop.execute(statement)
            shop.rotate_log()
        before.check()
        run.release()


@pytest.mark.parametrize("end", ["ROLLBACK", "ROLLBACK TO SAVEPOINT here"])
def test_what_was_rolled_back_leaves_nothing(shop: Database, begin: Begin, end: str) -> None:
    run = begin("orders", "items", "visits")
    for statements in HISTORIES.values():
        if end == "ROLLBACK":
            shop.transaction(*statements, end=end)
        else:
            shop.transaction("SAVEPOINT here", *statements, end, "DELETE FROM aside")
    assert run.window().changes == []


@pytest.mark.parametrize("verb", ["COMMIT", "ROLLBACK"])
def test_a_prepared_transaction_counts_once_it_is_committed(shop: Database, begin: Begin, verb: str) -> None:
    before = Before(begin("orders", "visits"))
    shop.prepare("x1", "UPDATE orders SET note = 'x' WHERE id = 1", "INSERT INTO visits VALUES (8, 'x')")
    shop.execute("UPDATE orders SET note = 'y' WHERE id = 2")
    shop.record_commit("x1", verb)
    before.check()
    assert len(before.run.window().before["orders"]) == (2 if verb == "COMMIT" else 1)


def test_other_tables_are_passed_over_also_within_a_transaction(shop: Database, begin: Begin) -> None:
    before = Before(begin("items"))
    shop.transaction(*HISTORIES["update"], "DELETE FROM aside", *HISTORIES["keyless rows"])
    shop.create("new", "id INT PRIMARY KEY")
    shop.execute("INSERT INTO new VALUES (1)", "DROP TABLE new", "TRUNCATE TABLE aside")
    shop.execute("ALTER TABLE aside ADD COLUMN more INT")
    before.check()
    window = before.run.window()
    assert {row["table"] for row in window.changes} == {0}
    assert len(window.changes) == 2


def test_keyless_changes_count_up_to_where_the_table_was_read(shop: Database, begin: Begin) -> None:
    run = begin("visits", "orders")
    shop.execute("INSERT INTO visits VALUES (1, 'same')", "DELETE FROM orders WHERE id = 1")
    upper = run.source.bound_reads().upper
    shop.execute("INSERT INTO visits VALUES (1, 'same'), (5, 'x')", "DELETE FROM orders WHERE id = 2")
    window = run.window(upper)
    assert list(_nonzero(window.counts["visits"]).values()) == [1]
    assert len(window.before["orders"]) == 2


def test_a_key_is_the_canonical_bytes_of_its_columns_in_key_order(shop: Database, begin: Begin) -> None:
    run = begin("items")
    shop.execute("DELETE FROM items WHERE code = 'Ωmega'")
    text = "Ωmega".encode()
    key = b"\x01" + (-1).to_bytes(4, "little", signed=True) + b"\x01" + len(text).to_bytes(4, "little") + text
    assert [row["key"] for row in run.window().changes] == [key]


def test_a_window_that_is_read_again_is_the_same_and_one_without_changes_is_empty(shop: Database, begin: Begin) -> None:
    run = begin("orders", "items", "visits")
    assert run.window().changes == []
    shop.transaction(*HISTORIES["update"], *HISTORIES["keyless rows"])
    shop.rotate_log()
    shop.execute(*HISTORIES["keys that move"])
    bound = run.source.bound_reads()
    first = run.window_to(bound.log_end, bound.upper)
    shop.execute("DELETE FROM orders", "DELETE FROM visits")
    assert first.changes
    assert run.window_to(bound.log_end, bound.upper) == first


def test_what_a_segment_held_is_told_when_it_was_read(shop: Database, begin: Begin) -> None:
    run = begin("items")
    shop.transaction("UPDATE items SET note = 'new' WHERE number = 1", "DELETE FROM items WHERE number = 2")
    shop.execute("INSERT INTO items VALUES ('q', 1, NULL)")
    (segment,) = run.source.segments(Start(run.position, run.identity), AT_START, run.log_end())
    with run.source.read_segment(segment, run.position, run.tracked(run.position)) as reader:
        assert sum(batch.num_rows for batch in reader) == 4
        summary = reader.summary
    assert (summary.segment, summary.transactions, summary.row_images) == (segment, 2, 6)
    assert summary.bytes > 0
    assert summary.seconds > 0
    assert (summary.decided, summary.rolled_back, summary.prepared) == ({}, [], [])


def test_how_far_a_segment_is_read_is_told(shop: Database, begin: Begin) -> None:
    run = begin("orders")
    shop.execute(*(f"UPDATE orders SET big = {number}, note = REPEAT('larger ', 9000)" for number in range(50)))
    (segment,) = run.source.segments(Start(run.position, run.identity), AT_START, run.log_end())
    told: list[tuple[int, int]] = []
    with run.source.read_segment(
        segment, run.position, run.tracked(run.position), None, lambda *far: told.append(far)
    ) as reader:
        list(reader)
        images = reader.summary.row_images
    assert told == sorted(told)
    read, last = told[-1]
    assert segment.bytes / 2 < read < segment.bytes * 1.1
    assert images / 2 < last <= images
