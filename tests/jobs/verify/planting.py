"""Copies of tables on a real server, and faults that are planted in them without this package."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.jobs.runtime import tasks
from airflow_provider_cdc.jobs.verify.request import CopyAsked, TableResult, VerifyRequest
from airflow_provider_cdc.jobs.verify.step import verify

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
ROWS = 600

Fault = Callable[[pa.Table], pa.Table]


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call the tasks of all steps in this process."""

    def run_here(
        spark: Any, title: str, orders: Sequence[Any], work: Any, done: Any = lambda result: None, **how: Any
    ) -> list[Any]:
        results = [work(order) for order in orders]
        for result in results:
            done(result)
        return results

    for name, module in list(sys.modules.items()):
        if name.startswith("airflow_provider_cdc.jobs.") and hasattr(module, "run_tasks") and module is not tasks:
            monkeypatch.setattr(module, "run_tasks", run_here)


def changed_value(rows: pa.Table) -> pa.Table:
    return _set(rows, "a", 100, "planted")


def null_for_empty(rows: pa.Table) -> pa.Table:
    return _set(rows, "b", 7, None)


def lost_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 300), rows.slice(301)])


def lost_last_row(rows: pa.Table) -> pa.Table:
    return rows.slice(0, rows.num_rows - 1)


def doubled_row(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(200, 1)])


def extra_row(rows: pa.Table) -> pa.Table:
    extra = rows.slice(10, 1).set_column(0, rows.schema.field(0), pa.array([1_000_000], rows.schema.field(0).type))
    return pa.concat_tables([rows, extra])


def exchanged_values(rows: pa.Table) -> pa.Table:
    values = rows["a"].to_pylist()
    return _set(_set(rows, "a", 50, values[60]), "a", 60, values[50])


def swapped_columns(rows: pa.Table) -> pa.Table:
    a, b = rows["a"], rows["b"]
    return rows.set_column(rows.column_names.index("a"), rows.schema.field("a"), b.cast(a.type)).set_column(
        rows.column_names.index("b"), rows.schema.field("b"), a.cast(b.type)
    )


def unharmed(rows: pa.Table) -> pa.Table:
    return rows


FAULTS: dict[str, tuple[Fault, str]] = {
    "changed_value": (changed_value, "changed"),
    "null_for_empty": (null_for_empty, "changed"),
    "lost_row": (lost_row, "missing"),
    "lost_last_row": (lost_last_row, "missing"),
    "doubled_row": (doubled_row, "repeated"),
    "extra_row": (extra_row, "extra"),
    "exchanged_values": (exchanged_values, "changed"),
    "swapped_columns": (swapped_columns, "changed"),
    "unharmed": (unharmed, ""),
}
"""By the name of a table: the fault to plant, and the kind of difference to find."""


def _set(rows: pa.Table, column: str, at: int, value: Any) -> pa.Table:
    values = rows[column].to_pylist()
    values[at] = value
    return rows.set_column(
        rows.column_names.index(column), rows.schema.field(column), pa.array(values, rows[column].type)
    )


def file_of(lake: Path, table: str) -> Path:
    record = json.loads((lake / table / "_latest.json").read_text())
    return Path(record["path"].removeprefix("file://"), record["files"][0]["name"])


def plant(lake: Path, table: str, fault: Fault) -> None:
    path = file_of(lake, table)
    rows = pq.read_table(path)
    # Rows are in the order of their keys.
    pq.write_table(fault(rows), path)


def ask(folder: Path, settings: Any, copies: Sequence[CopyAsked], **more: Any) -> dict[str, TableResult]:
    """Verify copies, and return the results by the table's name without its schema."""
    request = VerifyRequest(**{"what": "source", "id": f"v{random.randrange(10**9)}", "copies": tuple(copies), **more})
    place = Storage(folder.as_uri()).folder("_verify", request.id)
    records.write(place, "request.json", request)
    result = verify(SPARK, place, settings)
    # The throw-away runs are gone, and the result can be read back.
    assert place.folders() == []
    assert records.read(type(result), place, "result.json") == result
    return {one.table.rpartition(".")[2]: one for one in result.tables}


class Writers:
    """A thread that keeps writing until the block ends."""

    def __init__(self, write: Callable[[random.Random], None], seed: int) -> None:
        self._write, self._random = write, random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.failure: BaseException | None = None
        self._written = 0

    def wait_for_more(self, transactions: int) -> None:
        """Wait until so many more transactions were written."""
        wanted, deadline = self._written + transactions, time.monotonic() + 60
        while self._written < wanted and self.failure is None:
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.01)

    def _work(self) -> None:
        while not self._stop.is_set():
            try:
                self._write(self._random)
                self._written += 1
                # Many transactions would only make the log long.
                self._stop.wait(0.003)
            except BaseException as error:
                self.failure = error
                return

    def __enter__(self) -> Writers:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(AttributeError):
            assert self.failure is None, self.failure
