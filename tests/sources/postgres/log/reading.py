"""Reading a server's log in tests: from a slot's point to now, as one net change, with rows as SELECT gives them."""

from __future__ import annotations

import struct
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.options import LockPolicy
from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres import publishing, slots
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log.segments import log_segments, open_segment
from airflow_provider_cdc.sources.postgres.schema import read_tables
from airflow_provider_cdc.sources.postgres.session import session
from airflow_provider_cdc.sources.window import LogSegment, SegmentSummary, TrackedTable
from harness.postgres_server import SUPERUSER, PostgresServer

Row = tuple[Any, ...]


FULL = "REPLICA IDENTITY FULL"


def key(*values: int | str) -> bytes:
    """The key of int4 and text columns, as ``core.row_bytes`` encodes it."""
    parts = []
    for value in values:
        if isinstance(value, int):
            parts.append(b"\x01" + struct.pack("<i", value))
        else:
            data = value.encode()
            parts.append(b"\x01" + struct.pack("<I", len(data)) + data)
    return b"".join(parts)


def settings(server: PostgresServer, database: str) -> ConnectionSettings:
    return ConnectionSettings("postgres", server.host, server.port, SUPERUSER, database=database)


@dataclass
class Window:
    """What the log did to some tables: ``before`` by table and key, ``counts`` by keyless table and row."""

    summary: SegmentSummary
    before: dict[str, dict[bytes, Row | None]] = field(default_factory=dict)
    counts: dict[str, Counter[Row]] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)


class LogReading:
    """Follows tables of the schema public from the moment that it is made; `close` drops the slot.

    ``publication`` is one that exists; without it, one is made.
    """

    def __init__(self, server: PostgresServer, database: str, *names: str, publication: str = "") -> None:
        self.server, self.database = server, database
        self.settings = settings(server, database)
        self.slot = f"cdc_test_{uuid.uuid4().hex[:12]}"
        with session(self.settings) as connection:
            self.tables = read_tables(connection, [TableName("public", name) for name in names])
            if not publication:
                publishing.create_publication(connection, self.slot, self.tables, LockPolicy())
        self.initial = str(slots.create_slot(self.settings, self.slot, 30))
        self.identity = {"slot": self.slot, "publication": publication or self.slot}

    def close(self) -> None:
        slots.drop(self.settings, self.slot, self.slot)

    def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.server.connect(database=self.database) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def now(self) -> str:
        """The end of the log, when it is on disk."""
        end = self.server.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        while self.server.query("SELECT pg_current_wal_flush_lsn() < %s::pg_lsn", (end,))[0][0]:
            time.sleep(0.01)
        return str(end)

    def tracked(self, upper: str) -> list[TrackedTable]:
        return [TrackedTable(index, table, upper if table.keyless else "") for index, table in enumerate(self.tables)]

    def segment(self, end: str | None = None) -> LogSegment:
        (segment,) = log_segments(self.settings, self.initial, end or self.now(), self.identity)
        return segment

    def read(self, end: str | None = None, upper: str | None = None) -> Window:
        """The net change up to ``end`` (now), of keyless tables up to ``upper`` (the same)."""
        end = end or self.now()
        with open_segment(self.settings, self.segment(end), self.initial, self.tracked(upper or end)) as reader:
            batches = list(reader)
            window = Window(reader.summary, batches=batches)
        for batch in batches:
            table = self.tables[batch["table"][0].as_py()]
            assert batch["pending"].null_count == batch.num_rows
            images = iter(image_rows(table, [image for image in batch["before"].to_pylist() if image is not None]))
            for row in batch.to_pylist():
                before = None if row["before"] is None else next(images)
                if table.keyless:
                    assert before is not None
                    counts = window.counts.setdefault(table.name.name, Counter())
                    assert before not in counts or window.summary.parts > 1
                    counts[before] = counts.get(before, 0) + row["count"]
                else:
                    keys = window.before.setdefault(table.name.name, {})
                    assert row["key"] not in keys or window.summary.parts > 1
                    # Parts come in the order of the log.
                    keys.setdefault(row["key"], before)
        return window


def image_rows(table: Table, images: list[bytes]) -> list[Row]:
    batch = decode_images(table, pa.array(images, pa.binary()))
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) if images else []


Follow = Callable[..., LogReading]
"""The fixture ``follow``: makes readings of tables."""

Run = Callable[..., None]
"""The fixture ``run``: runs statements, one transaction each."""
