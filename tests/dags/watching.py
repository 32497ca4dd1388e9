"""Observes activity during a DAG run, and what the DAG run leaves behind."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_provider_cdc.core.storage.folder import Storage

STEPS = ["preflight", "lock_and_record", "snapshot", "extract_delta", "consolidate"]


@contextmanager
def in_background(step: Callable[[int], None], every: float) -> Iterator[None]:
    """Calls ``step`` with 0, 1, 2, … all these seconds until the block ends, which raises what it raised."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        number = 0
        try:
            while not stop.wait(every):
                step(number)
                number += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def files_of(folder: Path) -> dict[str, str]:
    """The digests of a lake's files, but for those of runs in progress."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and "_runs" not in path.parts
    }


def rows_of(xcoms: Mapping[str, Any], table: str) -> list[tuple[Any, ...]]:
    """The rows of a published table."""
    folder = Storage(xcoms["consolidate"]["published"][table])
    tables = [pq.read_table(folder.path(name), filesystem=folder.filesystem) for name in folder.files()]
    return [tuple(row.values()) for found in tables for row in found.to_pylist()]
