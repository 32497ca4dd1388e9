"""The tasks of snapshot: read parts of tables to files."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.filters.apply import published_columns
from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.changes.filter_images import copied
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.jobs.snapshot.key_order import Extent, KeyExtents, check_key_order
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.jobs.snapshot.piece_progress import UnderWay, piece_of_part
from airflow_provider_cdc.jobs.snapshot.survivors import OddRow, check_count, noted
from airflow_provider_cdc.sources.api.optional_capabilities import OrdersChunks
from airflow_provider_cdc.sources.api.source import Source

DONE = "chunks/done"


@dataclass(frozen=True)
class PartRecord:
    """The record of a part that was read: its files, its plan, and the incarnation of the server.

    ``upper``: the exact position of the read, as text; empty: each chunk was read at its own time. ``odd``: the result
    of `survivors.noted`. ``extents``: the extents of its chunks (`key_order`). ``refused``: the reason why the table
    cannot be copied; such a part has no files. ``began`` and ``lane`` are for the run's report: when the part was read
    (Unix seconds), and by which worker.
    """

    plan: str
    part: int
    files: tuple[StagedFile, ...]
    rows: int
    bytes: int
    upper: str
    incarnation: str
    lock_seconds: float
    nulled: dict[str, int]
    odd: tuple[OddRow, ...]
    extents: tuple[Extent, ...]
    chunks: int
    seconds: float
    refused: str = ""
    began: float = 0.0
    lane: str = ""


@dataclass(frozen=True)
class ReadPart:
    """A task that reads parts. Spark sends this object to executors.

    ``skips`` says whether the step continues if a table cannot be copied. If so, the record of the part has the reason.
    """

    staging: Staging
    plan: str
    source: Source
    tables: tuple[RunTable, ...]
    lock: LockPolicy
    pause: float
    skips: bool = False

    @contextmanager
    def session(self) -> Iterator[ReadPart]:
        """Return a task for several parts that uses as few sessions as possible. The files and records of the parts
        become durable together when the context ends. No record exists before the context ends.
        """
        with self.staging.folder.together() as folder, self.source.one_session() as source:
            yield replace(self, staging=replace(self.staging, folder=folder), source=source)

    def __call__(self, part: Part) -> PartRecord:
        """Read one part, write its rows to files, and write its record."""
        began, started = time.time(), time.monotonic()
        try:
            record = self._read(part, started)
        except ValueNotRepresentable as error:
            if not self.skips:
                raise
            record = PartRecord(
                plan=self.plan,
                part=part.number,
                files=(),
                rows=0,
                bytes=0,
                upper="",
                incarnation="",
                lock_seconds=0.0,
                nulled={},
                odd=(),
                extents=(),
                chunks=len(part.chunks),
                seconds=round(time.monotonic() - started, 3),
                refused=reason(error),
            )
        record = replace(record, began=round(began, 3), lane=f"{socket.gethostname()}:{os.getpid()}")
        records.write(self.staging.folder, f"{DONE}/{part.name}.json", record)
        return record

    def _read(self, part: Part, started: float) -> PartRecord:
        entry = self.tables[part.table]
        files = table_files(self.staging, entry, self.source.arrow_schema(entry.table))
        ordered = self.source.key_order(entry.table) if isinstance(self.source, OrdersChunks) else None
        extents = KeyExtents(ordered)
        odd: list[OddRow] = []
        under_way = UnderWay(self.staging.folder, piece_of_part(part, self.tables))
        with (
            files.writer("chunks", part.name) as writer,
            self.source.reader(entry.table, entry.consistency, self.lock) as reader,
        ):
            for at, chunk in enumerate(part.chunks):
                if at and self.pause:
                    time.sleep(self.pause)
                for batch in reader.read(chunk):
                    matches, stopping_values = copied(entry.table, batch, reader.odd)
                    if stopping_values:
                        odd += noted(entry.table, batch, stopping_values)
                        check_count(odd)
                    extents.add(chunk.number, batch)
                    rows = published_columns(entry.table, batch)
                    rows = rows if matches is None else rows.filter(matches)
                    writer.write(rows)
                    under_way.add(batch.num_rows, rows.num_rows)
            incarnation = reader.settle()
            upper, lock_seconds, nulled = reader.upper, reader.lock_seconds, dict(reader.nulled)
        check_key_order(entry.table, extents.found)
        return PartRecord(
            plan=self.plan,
            part=part.number,
            files=tuple(writer.files),
            rows=sum(file.rows for file in writer.files),
            bytes=sum(file.bytes for file in writer.files),
            upper=str(upper) if upper is not None else "",
            incarnation=incarnation,
            lock_seconds=lock_seconds,
            nulled=nulled,
            odd=tuple(odd),
            extents=tuple(extents.found),
            chunks=len(part.chunks),
            seconds=round(time.monotonic() - started, 3),
        )
