"""Other programs keep transactions of a catalog's database open, or its sessions end, while a run publishes.

Whoever checks here what was committed has an own process or an own connection, and plain PyIceberg.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CommitUnknown
from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg import commit, sql
from airflow_provider_cdc.sinks.iceberg.cuts import cut_table
from tests.interrupting import commits_fail
from tests.sinks.iceberg.runs import run_of
from tests.sinks.test_contract import Lake

FOUR = tuple(TableName("shop", name) for name in "abcd")
CUTS = "cdc.cdc_cuts"

HOLD = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT * FROM iceberg_tables").fetchall()
print("held", flush=True)
sys.stdin.read()
"""
READ = """
import sys
from pyiceberg.catalog import load_catalog
catalog = load_catalog("default", type="sql", uri=sys.argv[1], warehouse=sys.argv[2])
cuts = catalog.load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
newest = max(row["cut"] for row in cuts)
for row in sorted((row for row in cuts if row["cut"] == newest), key=lambda row: row["table"]):
    rows = catalog.load_table(row["identifier"]).scan(snapshot_id=row["snapshot_id"]).to_arrow()["id"].to_pylist()
    print(row["run_id"], row["table"], *rows)
"""


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(cut_table, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(sql, "LOCK_SECONDS", 0.1)


@contextmanager
def reader_of(lake: Lake) -> Iterator[Callable[[], None]]:
    """Another process that reads the catalog in a transaction, which ends when the yielded function is called."""
    command = [sys.executable, "-c", HOLD, lake.storage.path("_catalog.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"

        def end() -> None:
            process.communicate()

        try:
            yield end
        finally:
            process.kill()


def night(lake: Lake, number: int) -> Publication:
    return run_of(lake, number, {table: pa.table({"id": [number]}) for table in FOUR})


def newest_cut(lake: Lake, uri: str = "") -> list[str]:
    """The rows of each table of the newest cut, in a fresh process."""
    uri = uri or f"sqlite:///{lake.storage.path('_catalog.db')}"
    done = subprocess.run(
        [sys.executable, "-c", READ, uri, lake.storage.uri], stdout=subprocess.PIPE, check=True, text=True
    )
    return done.stdout.splitlines()


def rows_of(publication: Publication, number: int) -> list[str]:
    return [f"{publication.run_id} {table} {number}" for table in FOUR]


def ending_at(patch: pytest.MonkeyPatch, failure: int, end: Callable[[], None]) -> list[str]:
    """Call ``end`` when this many commits have failed. Return the names of the tables whose commits fail."""
    failed: list[str] = []

    def observe(send: Callable[[], Any], table: str) -> Any:
        try:
            return send()
        except OperationalError:
            failed.append(table)
            if len(failed) == failure:
                end()
            raise

    commits_fail(patch, observe)
    return failed


@pytest.mark.slow
@pytest.mark.parametrize("failures", [1, 2])
def test_a_cut_names_only_snapshots_that_were_committed_while_another_program_read_the_catalog(
    lake: Lake, failures: int
) -> None:
    lake.sink.publish(night(lake, 1))
    publication = night(lake, 2)
    with pytest.MonkeyPatch.context() as patch, reader_of(lake) as end:
        failed = ending_at(patch, failures, end)
        lake.sink.publish(publication)
    assert len(failed) == failures
    assert newest_cut(lake) == rows_of(publication, 2)


@pytest.mark.slow
def test_a_transaction_that_does_not_end_stops_the_run_and_the_next_try_completes_it(lake: Lake) -> None:
    first, publication = night(lake, 1), night(lake, 2)
    lake.sink.publish(first)
    with pytest.MonkeyPatch.context() as patch, reader_of(lake):
        failed = ending_at(patch, 0, lambda: None)
        with pytest.raises(CommitUnknown, match="locked"):
            lake.sink.publish(publication)
    assert len(failed) == 4
    assert newest_cut(lake) == rows_of(first, 1)
    lake.sink.publish(publication)
    assert newest_cut(lake) == rows_of(publication, 2)
