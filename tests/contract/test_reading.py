"""Chunks partition a table, whichever readers read them and how often. The table that is read is the recorded one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.errors import SchemaChanged, ValueNotRepresentable
from tests.contract.begun import LOCK, Begin, Begun, read_chunks, row_keys, sent, written
from tests.contract.databases import Database, Row

ROWS = 400
FILLING = "x" * 150
"""Makes the tables some pages large: a source may cut no finer."""

TABLES: dict[str, tuple[str, Callable[[int], Row], int]] = {
    "integers": ("id INT PRIMARY KEY, note TEXT", lambda n: (n * n - 9000, f"{n} {FILLING}"), ROWS),
    "texts": ("name VARCHAR(40) PRIMARY KEY, note TEXT", lambda n: (f"{n * 7919 % 401} straße", FILLING), ROWS),
    "pairs": (
        "code VARCHAR(9) NOT NULL, number INT NOT NULL, note TEXT, PRIMARY KEY (number, code)",
        lambda n: ("abcdefg"[n % 7] * 3, n // 7, FILLING),
        ROWS,
    ),
    "uniques": ("note TEXT, token BIGINT NOT NULL UNIQUE", lambda n: (FILLING, n << 40), ROWS),
    "nothing": ("id INT PRIMARY KEY, note TEXT", lambda n: (n, FILLING), 0),
    "single": ("id INT PRIMARY KEY, note TEXT", lambda n: (n, None), 1),
    "keyless": ("a INT, note TEXT", lambda n: (n // 3 if n % 5 else None, FILLING), ROWS),
    "keyless_nothing": ("a INT, note TEXT", lambda n: (n, FILLING), 0),
}


def make(db: Database, name: str) -> None:
    columns, row, count = TABLES[name]
    db.create(name, columns)
    db.insert(name, [row(number) for number in range(count)])
    db.analyze(name)


def counts(rows: pa.Table) -> Counter[Row]:
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))


@pytest.mark.parametrize(("name", "at_one_position"), [*((name, False) for name in TABLES), ("integers", True)])
def test_chunks_in_any_order_and_from_any_task_hold_every_row_once(
    db: Database, begin: Begin, name: str, at_one_position: bool
) -> None:
    make(db, name)
    run = begin(name, consistency=db.at_one_position if at_one_position else "auto")
    table, consistency = run.tables[name], run.plans[name].consistency
    chunks = run.source.plan_chunks(table, 7)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert decode(list[Chunk], written(encode(chunks)), "") == chunks
    if TABLES[name][2] == ROWS and not table.keyless:
        assert len(chunks) > 5
    random.Random(name).shuffle(chunks)
    with run.source.shared_reads({consistency}, LOCK) as shared:
        parts = [read_chunks(shared, table, consistency, chunks[task::5]) for task in range(5)]
    assert counts(pa.concat_tables(parts)) == db.rows(name)


def test_one_large_chunk_and_many_small_ones_are_the_same_rows(db: Database, begin: Begin) -> None:
    make(db, "pairs")
    run = begin("pairs")
    names = run.source.arrow_schema(run.tables["pairs"]).names
    few, many = run.read_all()["pairs"], run.read_all(7)["pairs"]
    assert Counter(row_keys(few, names)) == Counter(row_keys(many, names))


@pytest.mark.parametrize("name", ["integers", "keyless"])
def test_a_chunk_that_is_read_twice_is_the_same_rows(db: Database, begin: Begin, name: str) -> None:
    make(db, name)
    run = begin(name)
    table, consistency = run.tables[name], run.plans[name].consistency
    chunk = run.source.plan_chunks(table, 7)[0]
    with run.source.shared_reads({consistency}, LOCK) as shared:
        with shared.reader(table, consistency, LOCK) as reader:
            first, second = (counts(pa.Table.from_batches(reader.read(chunk))) for _ in range(2))
        assert first == second == counts(read_chunks(shared, table, consistency, [chunk]))


def test_a_read_at_one_position_sees_no_change_after_it(db: Database, begin: Begin) -> None:
    make(db, "integers")
    make(db, "keyless")
    run = begin("integers", "keyless", consistency=db.at_one_position)
    chunks = {name: run.source.plan_chunks(table, 7) for name, table in run.tables.items()}
    with run.source.shared_reads({db.at_one_position}, LOCK) as shared:
        for name, table in run.tables.items():
            with sent(shared).reader(table, db.at_one_position, LOCK) as reader:
                assert db.parse(str(reader.upper)) == reader.upper
                assert reader.lock_seconds < 60
                then = db.rows(name)
                db.execute(f"DELETE FROM {name}")
                rows = [pa.Table.from_batches(reader.read(chunk)) for chunk in chunks[name]]
                assert counts(pa.concat_tables(rows)) == then
                assert reader.upper


def test_a_read_without_a_position_of_its_own_says_so_and_sees_what_was_committed(db: Database, begin: Begin) -> None:
    make(db, "integers")
    run = begin("integers")
    with (
        run.source.shared_reads({"watermark"}, LOCK) as shared,
        shared.reader(run.tables["integers"], "watermark", LOCK) as r,
    ):
        assert (r.upper, r.lock_seconds, dict(r.nulled)) == (None, 0.0, {})
        chunks = run.source.plan_chunks(run.tables["integers"], 100_000)
        for _ in range(3):
            db.execute("UPDATE integers SET note = CONCAT(note, '!')", "DELETE FROM integers WHERE id = 0")
            rows = [pa.Table.from_batches(r.read(chunk)) for chunk in chunks]
            assert counts(pa.concat_tables(rows)) == db.rows("integers")


CHANGES = {
    "dropped": ["DROP TABLE integers"],
    "renamed": ["ALTER TABLE integers RENAME TO other"],
    "replaced": [
        "ALTER TABLE integers RENAME TO other",
        "CREATE TABLE integers (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO integers VALUES (1, 'of the other table')",
    ],
    "truncated": ["TRUNCATE TABLE integers"],
    "a column more": ["ALTER TABLE integers ADD COLUMN more INT"],
    "a column more for a while": [
        "ALTER TABLE integers ADD COLUMN more INT",
        "UPDATE integers SET more = 1 WHERE id = -9000",
        "ALTER TABLE integers DROP COLUMN more",
    ],
}


# Each change at one moment; the other moment in dev/soak.
@pytest.mark.parametrize(
    ("change", "when", "at_one_position"),
    [
        pytest.param(change, when, when == "between", marks=[] if number % 2 == other else pytest.mark.long)
        for number, change in enumerate(CHANGES)
        for other, when in enumerate(("between", "after"))
    ],
)
def test_a_table_that_was_altered_during_the_run_stops_it(
    db: Database, begin: Begin, change: str, when: str, at_one_position: bool
) -> None:
    make(db, "integers")
    run = begin("integers", consistency=db.at_one_position if at_one_position else "auto")
    table, consistency = run.tables["integers"], run.plans["integers"].consistency
    chunks = run.source.plan_chunks(table, 7)

    def moment(name: str) -> None:
        if name == when:
            db.execute(*CHANGES[change])

    def finish() -> None:
        """All that a run does until nothing can stop it any more."""
        with run.source.shared_reads({consistency}, LOCK) as shared:
            read_chunks(shared, table, consistency, chunks[:2])
            moment("between")
            read_chunks(shared, table, consistency, chunks[2:])
        moment("after")
        run.window()

    # Which step notices is each source's own business; one of them has to.
    with pytest.raises(SchemaChanged) as stopped:
        finish()
    assert str(table.name) in str(stopped.value)
    assert stopped.value.hint


class TestValuesThatArrowCannotHold:
    """One row has such a value when it is read, another one only in the log."""

    def begin(self, db: Database, begin: Begin, policy: str) -> Begun:
        odd, _ = db.impossible_date
        db.create("days", "id INT PRIMARY KEY, day DATE")
        db.execute(f"INSERT INTO days VALUES (1, {odd}), (2, '2024-02-29'), (3, NULL), (4, {odd})")
        return begin("days", unrepresentable=policy)

    def change(self, db: Database, run: Begun) -> tuple[list[object], list[bytes]]:
        """Makes the value come and go; returns the days at the initial position, and the images of what changed."""
        days = run.read_all()["days"].sort_by("id")["day"].to_pylist()
        db.execute("UPDATE days SET day = '2024-03-01' WHERE id = 4")
        images = [row["before"] for row in run.window().changes]
        return days, images

    def test_are_noted_with_their_rows_so_that_only_survivors_stop_the_run(self, db: Database, begin: Begin) -> None:
        run = self.begin(db, begin, "error")
        odd: dict[int, str] = {}
        with run.source.reader(run.tables["days"], "watermark", LOCK) as reader:
            for chunk in run.source.plan_chunks(run.tables["days"], 7):
                for batch in reader.read(chunk):
                    ids = batch["id"].to_pylist()
                    odd |= {ids[value.row]: str(value.error) for value in reader.odd}
                    assert batch["day"].null_count == 1
        assert sorted(odd) == [1, 4]
        assert f"{db.name('days')}.day" in odd[1]
        assert "unrepresentable" in odd[1]

    def test_stop_the_read_at_once_where_there_are_very_many(self, db: Database, begin: Begin) -> None:
        run = self.begin(db, begin, "error")
        odd, _ = db.impossible_date
        db.execute("INSERT INTO days VALUES " + ", ".join(f"({number}, {odd})" for number in range(10, 1_020)))
        with pytest.raises(ValueNotRepresentable):
            run.read_all()

    def test_stop_the_run_in_the_log(self, db: Database, begin: Begin) -> None:
        run = self.begin(db, begin, "error")
        db.execute("UPDATE days SET day = NULL WHERE id IN (1, 4)")
        run.read_all()
        with pytest.raises(ValueNotRepresentable) as stopped:
            run.window()
        assert f"{db.name('days')}.day" in str(stopped.value)
        assert "unrepresentable" in stopped.value.hint

    def test_are_null_where_that_is_asked_for_and_each_is_counted(self, db: Database, begin: Begin) -> None:
        run = self.begin(db, begin, "null")
        days, images = self.change(db, run)
        assert [None if day is None else str(day) for day in days] == [None, "2024-02-29", None, None]
        nulled = {"day": 1}
        batch = run.source.decode_images(run.tables["days"], pa.array(images, pa.binary()), nulled)
        assert batch.to_pylist() == [{"id": 4, "day": None}]
        assert nulled == {"day": 2}
        with run.source.reader(run.tables["days"], "watermark", LOCK) as reader:
            for chunk in run.source.plan_chunks(run.tables["days"], 7):
                assert list(reader.read(chunk))
            assert reader.nulled == {"day": 1}

    def test_are_what_the_server_prints_where_text_is_asked_for(self, db: Database, begin: Begin) -> None:
        run = self.begin(db, begin, "string")
        _, printed = db.impossible_date
        days, images = self.change(db, run)
        assert days == [printed, "2024-02-29", None, printed]
        batch = run.source.decode_images(run.tables["days"], pa.array(images, pa.binary()))
        assert batch.to_pylist() == [{"id": 4, "day": printed}]
