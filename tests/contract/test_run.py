"""A complete run, with changes between all of its steps, publishes the rows of the initial position."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import FileDamaged, TransientError, ValueNotRepresentable
from airflow_provider_cdc.jobs.runtime import retry
from harness.pipeline import Pipeline, published_counts
from tests.contract.databases import PASSWORD, Database, Row

ROWS = 300
FILLING = "x" * 150
TABLES = {
    "accounts": "id INT PRIMARY KEY, amount DECIMAL(12,2), day DATE, note TEXT",
    "names": "name VARCHAR(40) PRIMARY KEY, note TEXT",
    "pairs": "code VARCHAR(9) NOT NULL, number INT NOT NULL, note TEXT, PRIMARY KEY (number, code)",
    "visits": "a INT, note TEXT",
    "nothing": "id INT PRIMARY KEY",
}


@pytest.fixture
def bank(db: Database) -> Database:
    for name, columns in TABLES.items():
        db.create(name, columns)
    numbers = range(ROWS)
    db.insert("accounts", [(n, f"{n}.25", "2024-02-29", None if n % 7 else FILLING) for n in numbers])
    db.insert("names", [(f"{n * 37 % ROWS} straße", FILLING) for n in numbers])
    db.insert("pairs", [("abc"[n % 3], n // 3, FILLING) for n in numbers])
    db.insert("visits", [(n % 50 if n % 11 else None, FILLING[: n % 2]) for n in numbers])
    for name in TABLES:
        db.analyze(name)
    return db


def write(db: Database, moment: int) -> None:
    """Changes of every kind. Each moment touches its own rows, and rows that all moments touch."""
    first = 20 * moment
    db.transaction(
        f"UPDATE accounts SET amount = amount + {moment + 1}, note = CONCAT(note, '!')",
        f"DELETE FROM accounts WHERE id BETWEEN {first} AND {first + 2}",
        f"INSERT INTO accounts VALUES ({first}, -1, NULL, 'again'), ({1000 + moment}, 0, NULL, 'new')",
        f"UPDATE visits SET note = 'seen {moment}' WHERE a BETWEEN {moment} AND {moment + 3}",
    )
    db.execute(
        f"UPDATE accounts SET id = {2000 + moment} WHERE id = {first + 5}",
        f"UPDATE names SET name = CONCAT(name, ' {moment}') WHERE name LIKE '1{moment}%'",
        f"UPDATE names SET note = 'new' WHERE name LIKE '2{moment}%'",
        f"DELETE FROM pairs WHERE number BETWEEN {first} AND {first + 3}",
        f"UPDATE pairs SET number = number + 1000 WHERE number = {first + 10}",
        f"INSERT INTO pairs VALUES ('a', {first}, 'again'), ('zz', {first}, NULL)",
        f"INSERT INTO visits VALUES ({moment}, 'new'), ({moment}, 'new'), (NULL, NULL)",
        f"DELETE FROM visits WHERE a = {30 + moment}",
        f"INSERT INTO nothing VALUES ({moment})",
    )
    db.transaction("DELETE FROM accounts", "DELETE FROM visits", end="ROLLBACK")
    db.rotate_log()


@pytest.fixture
def run(bank: Database, spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    """A run of small chunks. ``request.param`` are seconds between two of them, for tests that strike in between."""
    pause = getattr(request, "param", 0.01)
    made = Pipeline(spark, bank.settings, tmp_path.as_uri(), [f"{bank.schema}.*"], chunk_rows=30, chunk_pause=pause)
    yield made
    made.release()


def rows_of(db: Database) -> dict[str, Counter[Row]]:
    return {name: db.rows(name) for name in TABLES}


def published_of(db: Database, run: Pipeline) -> dict[str, Counter[Row]]:
    uris = run.found["consolidate"]["published"]
    return {name: published_counts(uris[str(db.name(name))])[1] for name in TABLES}


@pytest.mark.slow
def test_every_table_is_published_as_it_was_at_the_initial_position_although_each_step_runs_twice(
    bank: Database, run: Pipeline, tmp_path: Path
) -> None:
    write(bank, 0)
    position = run.record()
    expected = rows_of(bank)
    # A row that no other transaction of this test locks.
    bank.prepare("undecided", "UPDATE pairs SET note = 'prepared' WHERE number = 95")
    steps = (run.snapshot, run.extract_delta, run.consolidate)
    for moment, step in enumerate(steps, 1):
        write(bank, moment)
        if step == run.snapshot:
            bank.record_commit("undecided", "COMMIT")
        found = step()
        write(bank, moment + 4)
        assert step() == found, "a step that is done is done"
    assert rows_of(bank) != expected
    assert published_of(bank, run) == expected
    # The copy that readers find names its position.
    for name in TABLES:
        latest = run.target.read_json(f"{bank.name(name)}/_latest.json")
        assert latest[run.source.position_key] == position
    assert bank.kept() == []
    assert run.found["extract_delta"]["transactions"] > 0
    assert all(rewound > 0 for rewound in run.found["consolidate"]["rewound"].values())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


@contextlib.contextmanager
def losing_sessions(db: Database, run: Pipeline) -> Iterator[None]:
    """Once something is read, every session of the run ends."""
    stop = threading.Event()
    done = Path(run.run.path()) / "chunks/done"

    def kill() -> None:
        while not stop.is_set():
            for session in db.sessions() if done.exists() and any(done.iterdir()) else []:
                db.kill(session)
            time.sleep(0.02)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        yield
    finally:
        stop.set()
        killing.join()


@pytest.mark.long
@pytest.mark.parametrize("run", [0.3], indirect=True)
def test_a_snapshot_that_failed_goes_on_from_the_same_position(
    bank: Database, run: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 3.0)
    position = run.record()
    expected = rows_of(bank)
    write(bank, 1)
    with losing_sessions(bank, run), pytest.raises(TransientError):
        run.snapshot()
    assert Run.load(run.run).manifest.initial_position == position
    assert "snapshot" not in Run.load(run.run).steps
    write(bank, 2)
    run.finish()
    assert Run.load(run.run).manifest.initial_position == position
    assert published_of(bank, run) == expected


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["null", "string"])
def test_values_that_arrow_cannot_hold_are_published_as_asked_for_and_counted(
    db: Database, spark: SparkSession, tmp_path: Path, policy: str
) -> None:
    odd, printed = db.impossible_date
    db.create("days", "id INT PRIMARY KEY, day DATE")
    db.execute(f"INSERT INTO days VALUES (1, {odd}), (2, {odd}), (3, '2024-02-29'), (4, NULL)")
    name = str(db.name("days"))
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [name], unrepresentable=policy)
    try:
        run.record()
        # One is put back from the log, one is read, and one is read that was not there yet.
        db.execute("UPDATE days SET day = '2024-01-01' WHERE id = 1", f"UPDATE days SET day = {odd} WHERE id = 3")
        published = run.finish()["published"]
    finally:
        run.release()
    _, rows = published_counts(published[name])
    texts = {number: None if day is None else str(day) for number, day in rows}
    shown = printed if policy == "string" else None
    assert texts == {1: shown, 2: shown, 3: "2024-02-29", 4: None}
    nulled = [run.found[step]["nulled"] for step in ("snapshot", "consolidate")]
    assert nulled == ([{name: {"day": 2}}, {name: {"day": 1}}] if policy == "null" else [{}, {}])


def test_values_that_came_after_the_initial_position_stop_nothing(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    db.create("days", "id INT PRIMARY KEY, day DATE, note VARCHAR(9)")
    db.execute("INSERT INTO days VALUES (1, '2024-02-28', 'a'), (2, '2024-02-29', 'b'), (3, NULL, 'c')")
    name = str(db.name("days"))
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [name])
    try:
        run.record()
        db.execute(f"INSERT INTO days VALUES (4, {odd}, 'd')", f"UPDATE days SET day = {odd} WHERE id = 2")
        published = run.finish()["published"]
    finally:
        run.release()
    _, rows = published_counts(published[name])
    assert sorted((number, str(day), note) for number, day, note in rows) == [
        (1, "2024-02-28", "a"),
        (2, "2024-02-29", "b"),
        (3, "None", "c"),
    ]


def test_values_that_survive_stop_the_run_and_all_their_columns_are_told(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    odd, _ = db.impossible_date
    for table in ("days", "more"):
        db.create(table, "id INT PRIMARY KEY, day DATE")
        db.execute(f"INSERT INTO {table} VALUES (1, {odd}), (2, '2024-02-29')")
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [str(db.name("*"))])
    try:
        run.record()
        db.execute(f"INSERT INTO more VALUES (3, {odd})")
        with pytest.raises(ValueNotRepresentable) as stopped:
            run.finish()
    finally:
        run.release()
    for table in ("days", "more"):
        assert f"{db.name(table)}.day" in str(stopped.value)
    assert "unrepresentable" in stopped.value.hint
    assert not list(tmp_path.glob("*/_latest.json"))


def at_once(*steps: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(steps)) as tries:
        return [done.result() for done in [tries.submit(step) for step in steps]]


@pytest.mark.slow
def test_two_tries_of_every_step_publish_what_one_does(bank: Database, run: Pipeline, tmp_path: Path) -> None:
    """The task of the first one was presumed dead."""
    run.record()
    expected = rows_of(bank)
    write(bank, 1)
    first, second = at_once(run.snapshot, run.snapshot)
    assert first == second
    write(bank, 2)
    first, second = at_once(run.extract_delta, run.extract_delta)
    assert first == second
    first, second = at_once(run.consolidate, run.consolidate)
    assert first == second
    assert published_of(bank, run) == expected
    for name in TABLES:
        (folder,) = (tmp_path / str(bank.name(name))).glob("snapshot=*")
        assert (
            sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))
            == first["rows"][str(bank.name(name))]
        )
    assert bank.kept() == []


# Nothing of it depends on the source.
@pytest.mark.parametrize("kind", ["mysql", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
def test_a_run_whose_records_are_gone_puts_no_file_beside_those_of_its_copy(
    bank: Database, spark: SparkSession, tmp_path: Path
) -> None:
    """A reader that lists the folder of the published copy would find each row twice."""
    lake, tables = (tmp_path / "lake").as_uri(), [f"{bank.schema}.accounts"]
    first = Pipeline(spark, bank.settings, lake, tables)
    first.record()
    (uri,) = first.finish()["published"].values()
    expected = published_counts(uri)
    write(bank, 1)
    for scratch in ((tmp_path / "other").as_uri(), ""):
        if not scratch:
            shutil.rmtree(first.run.path())
        again = Pipeline(spark, bank.settings, lake, tables, scratch=scratch)
        again.record()
        again.snapshot()
        again.extract_delta()
        with pytest.raises(FileDamaged, match="files that do not belong to it"):
            again.consolidate()
        again.release()
        assert published_counts(uri) == expected


@pytest.mark.slow
def test_a_file_that_was_cut_short_is_not_published(bank: Database, run: Pipeline, tmp_path: Path) -> None:
    """A file of a table that the window does not touch, so that nothing else would open it."""
    run.record()
    run.snapshot()
    run.extract_delta()
    file = max(Path(run.run.path()).glob("chunks/*/*.parquet"), key=lambda path: path.stat().st_size)
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(FileDamaged, match=file.name):
        run.consolidate()
    assert not list(tmp_path.glob("*/_latest.json"))
    assert not list(tmp_path.glob("*/snapshot=*/*"))
