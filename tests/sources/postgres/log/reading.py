"""Reads a server's log in tests, from a slot's point to now, as one net change, with rows as SELECT returns them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.postgres.decode.images import decode_images
from airflow_provider_cdc.sources.postgres.log.segments import log_segments, open_segment
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import session
from airflow_provider_cdc.sources.postgres.slots import publications, slots, waits
from harness.postgres_server import SUPERUSER, PostgresServer
from tests.sources.changes import Changes
from tests.sources.postgres.catalog_reading import read_tables

FULL = "REPLICA IDENTITY FULL"


def settings(server: PostgresServer, database: str) -> ConnectionSettings:
    return ConnectionSettings("postgres", server.host, server.port, SUPERUSER, database=database)


@dataclass
class Window(Changes):
    """What the log did to some tables."""

    summary: SegmentSummary = field(kw_only=True)
    batches: list[pa.RecordBatch] = field(kw_only=True)


def create_slot(settings: ConnectionSettings, name: str, seconds: float) -> Lsn:
    """Create the slot of a run, and return its consistent point."""
    with slots.new_slot(settings, name, seconds) as (point, _):
        return point


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
                publications.create_publication(connection, self.slot, self.tables, LockPolicy())
        self.initial = create_slot(self.settings, self.slot, 30)
        self.identity = slots.with_slot(PostgresFacts(), self.slot, publication)

    def close(self) -> None:
        slots.drop(self.settings, self.slot, self.slot)

    def execute(self, *statements: str) -> None:
        """Run statements, each in its own transaction."""
        with self.server.connect(database=self.database) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def now(self) -> Lsn:
        """The end of the log, when it is on disk."""
        end = self.server.query("SELECT pg_current_wal_insert_lsn()::text")[0][0]
        while self.server.query("SELECT pg_current_wal_flush_lsn() < %s::pg_lsn", (end,))[0][0]:
            # The server does not write a page to disk that has only its header and no record yet.
            self.server.query("SELECT pg_current_xact_id()")
        return Lsn.parse(end)

    def tracked(self, upper: Lsn) -> list[TrackedTable]:
        return [TrackedTable(index, table, upper if table.keyless else None) for index, table in enumerate(self.tables)]

    def segment(self, end: Lsn | LogEnd | None = None) -> LogSegment:
        (segment,) = log_segments(self.settings, self.initial, LogEnd(str(end or self.now())), self.identity)
        return segment

    def read(self, end: Lsn | LogEnd | None = None, upper: Lsn | None = None) -> Window:
        """The net change up to ``end`` (now), of keyless tables up to ``upper`` (the same)."""
        end = end or self.now()
        upper = upper or waits.parse_log_end(LogEnd(str(end)))[0]
        with open_segment(self.settings, self.segment(end), self.initial, self.tracked(upper)) as reader:
            batches = list(reader)
            window = Window(summary=reader.summary, batches=batches)
        for batch in batches:
            assert batch["pending"].null_count == batch.num_rows
            # Parts of a segment come in the order of the log.
            window.take(self.tables[batch["table"][0].as_py()], batch.to_pylist(), decode_images)
        if window.summary.parts == 1:
            touched = [(row["table"], row["key"]) for batch in batches for row in batch.to_pylist()]
            assert len(set(touched)) == len(touched)
        return window


Follow = Callable[..., LogReading]
"""The fixture ``follow``: makes readings of tables."""

Run = Callable[..., None]
"""The fixture ``run``: runs statements, one transaction each."""
