"""How far the reads of large parts are, for whoever watches: else a table that is one part is at 0 % until it ends.

Tasks say it in files of the run's folder. Nothing rests on these, so a store that fails holds nothing up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from airflow_provider_cdc.core.manifest import RunTable
from airflow_provider_cdc.core.parquet_writer import FILE_BYTES
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.parts import Part

UNDER_WAY = "chunks/under-way"
LARGE_BYTES = 2 * FILE_BYTES
"""Parts that weigh less are read soon enough."""
EVERY_SECONDS = 5.0
_MOST = 0.99
"""What is known of a table's size is an estimate, and a part is done when its record is there."""


class Told(NamedTuple):
    """``rows`` are those to publish, ``weight`` that of the part of the work that is done."""

    rows: int
    weight: float


class UnderWay:
    """Says, in a task, how far the part is, if it is large."""

    def __init__(self, folder: Storage, part: Part) -> None:
        self._folder = folder if part.weight > LARGE_BYTES else None
        self._name = _name(part)
        self._read = self._rows = 0
        # An earlier try may have left what it had read.
        self._tell()

    def add(self, read: int, rows: int) -> None:
        """Tell of ``read`` rows, of which ``rows`` are published."""
        self._read += read
        self._rows += rows
        if self._folder and time.monotonic() - self._told >= EVERY_SECONDS:
            self._tell()

    def _tell(self) -> None:
        self._told = time.monotonic()
        if self._folder:
            with suppress(CdcError, OSError, pa.ArrowException):
                self._folder.note_json(self._name, {"read": self._read, "rows": self._rows})


def under_way(folder: Storage, parts: Sequence[Part], tables: Sequence[RunTable]) -> Told:
    """What was said of the large ones among ``parts``."""
    rows, weight = 0, 0.0
    for part in parts:
        if part.weight <= LARGE_BYTES:
            continue
        with suppress(CdcError, OSError, pa.ArrowException, KeyError, TypeError):
            told = folder.read_json(_name(part))
            expected = sum(chunk.rows for chunk in part.chunks) or tables[part.table].table.rows
            weight += part.weight * min(told["read"] / max(1, expected), _MOST)
            rows += told["rows"]
    return Told(rows, weight)


def _name(part: Part) -> str:
    return f"{UNDER_WAY}/{part.name}.json"
