"""Hundreds of small tables take few sessions of the server, and each table is still read completely."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.jobs.snapshot import parts
from harness.pipeline import Pipeline, published_counts
from tests.contract.begun import LOCK, Begin
from tests.contract.databases import Database

TABLES = 50
OPENED = {
    "mysql": "SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Connections'",
    "postgres": "SELECT sessions FROM pg_stat_database WHERE datname = current_database()",
}


@pytest.mark.slow
def test_small_tables_share_sessions(spark: Any, kind: str, db: Database, tmp_path: Path) -> None:
    for number in range(TABLES):
        db.create(f"t{number}", "id INT PRIMARY KEY, note TEXT")
        db.insert(f"t{number}", [(number, "a"), (number + 1, None)])
    # One among them that is read at a single position.
    db.create("keyless", "a INT")
    db.insert("keyless", [(1,), (1,)])
    run = Pipeline(spark, db.settings, tmp_path.as_uri(), [f"{db.schema}.*"])
    run.record()
    try:
        before = int(db.query(OPENED[kind])[0][0])
        found = run.snapshot()
        opened = int(db.query(OPENED[kind])[0][0]) - before
        assert found["rows"] == 2 * TABLES + 2
        # A fixed number of sessions belongs to the step.
        assert opened < 0.6 * TABLES
        run.extract_delta()
        for name, uri in run.consolidate()["published"].items():
            assert published_counts(uri)[1] == db.rows(name.partition(".")[2])
    finally:
        run.release()


def test_tables_are_read_one_after_the_other_on_one_session(db: Database, begin: Begin) -> None:
    names = ["first", "second", "third"]
    for number, name in enumerate(names):
        db.create(name, "id INT PRIMARY KEY, note TEXT")
        db.insert(name, [(number, name), (number + 1, None)])
    run = begin(*names, consistency="watermark")
    db.wait_for_no_session()
    seen = set()
    with run.source.one_session() as source:
        for name in names:
            table = run.tables[name]
            with source.reader(table, "watermark", LOCK) as reader:
                rows = sum(batch.num_rows for chunk in source.plan_chunks(table, 100) for batch in reader.read(chunk))
                reader.wait_until_durable()
                seen |= set(db.sessions())
            assert rows == 2
    # One plans, one reads.
    assert len(seen) == 2
    db.wait_for_no_session()


def test_a_session_that_breaks_costs_one_table_and_no_more(db: Database, begin: Begin) -> None:
    names = ["first", "second", "third"]
    for name in names:
        db.create(name, "id INT PRIMARY KEY")
        db.insert(name, [(1,)])
    run = begin(*names, consistency="watermark")

    def read(source: Any, name: str) -> int:
        chunks = run.source.plan_chunks(run.tables[name], 100)
        with source.reader(run.tables[name], "watermark", LOCK) as reader:
            return sum(batch.num_rows for chunk in chunks for batch in reader.read(chunk))

    with run.source.one_session() as source:
        assert read(source, "first") == 1
        for session in db.sessions():
            db.kill(session)
        with pytest.raises(SourceUnavailable):
            read(source, "second")
        assert read(source, "second") == read(source, "third") == 1


def test_chunks_of_one_row_are_too_many(
    db: Database, begin: Begin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(parts, "TABLE_CHUNKS", 20)
    monkeypatch.setattr(parts, "RUN_CHUNKS", 30)
    for name in ("large", "larger"):
        db.create(name, "id INT PRIMARY KEY, note TEXT")
        db.insert(name, [(number, "x" * 150) for number in range(3000)])
        db.analyze(name)
    run = begin("large", "larger")
    entries = [RunTable(table, run.plans[name].consistency, "") for name, table in run.tables.items()]
    planned = parts.cut(run.source, entries, 1, 2)
    chunks = [sum(len(part.chunks) for part in planned if part.table == index) for index in range(2)]
    assert all(5 < own <= math.ceil(20 * 1.5) for own in chunks)
    assert "large is read in chunks of" in capsys.readouterr().out
