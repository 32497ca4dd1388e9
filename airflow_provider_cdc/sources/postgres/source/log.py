"""Reads the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn, Position
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.source import (
    ConnectionSettings,
    Log,
    LogTail,
    NeededLog,
    SegmentReader,
    Start,
    Waiting,
)
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import session, value
from airflow_provider_cdc.sources.postgres.slots import waits
from airflow_provider_cdc.sources.postgres.steps.check_identity import needed_log


class PostgresLog(Log):
    """`Log` for PostgreSQL."""

    settings: ConnectionSettings

    def segments(
        self,
        start: Start,
        since: LogEnd,
        until: LogEnd,
        tables: Sequence[Table] = (),
        number: int = 0,
        slots: int = 1,
    ) -> list[LogSegment]:
        from airflow_provider_cdc.sources.postgres.log.segments import log_segments

        begin, facts = Lsn.expect(start.position), PostgresFacts.of(start.facts)
        if start.kept_by is not None:
            facts = PostgresFacts.of(start.kept_by).of_copies(begin)
        begin = waits.parse_log_end(since)[0] if since else begin
        return log_segments(self.settings, begin, until, facts, number)

    def read_segment(
        self,
        segment: LogSegment,
        start: Position,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AbstractContextManager[SegmentReader]:
        from airflow_provider_cdc.sources.postgres.log.segments import open_segment

        return open_segment(self.settings, segment, Lsn.expect(start), tables, changes, progress)

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.postgres.decode.images import decode_images

        return decode_images(table, images, nulled, names, odd)

    def follow(
        self, start: Position, identity: Facts, tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        from airflow_provider_cdc.sources.postgres.log.tail import open_tail

        return open_tail(self.settings, Lsn.expect(start), PostgresFacts.of(identity), tables)

    def acknowledge(self, identity: Facts, end: LogEnd) -> None:
        from airflow_provider_cdc.sources.postgres.log import segments

        segments.acknowledge(self.settings, PostgresFacts.of(identity), end)

    def backlog(self, initial: Position, identity: Facts) -> int:
        with session(self.settings) as connection:
            return int(value(connection, "pg_current_wal_lsn() - %s::pg_lsn", (str(initial),)))

    def needed_log(self, identity: Facts, since: Sequence[Facts]) -> NeededLog:
        return needed_log(self.settings, PostgresFacts.of(identity))

    def waiting(self, initial: Position, identity: Facts, place: LogEnd) -> Waiting:
        from airflow_provider_cdc.sources.postgres.log import segments

        return segments.waiting(self.settings, Lsn.expect(initial), PostgresFacts.of(identity), place)

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Facts) -> None:
        from airflow_provider_cdc.sources.postgres.log import segments

        segments.check_joined(self.settings, start, end, Lsn.expect(initial), PostgresFacts.of(identity))

    def place_of(self, position: Position) -> LogEnd:
        return waits.log_end(Lsn.expect(position))

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        from airflow_provider_cdc.sources.postgres.log import segments

        return segments.place_is_before(one, other)

    def is_within(self, position: str, upper: Position) -> bool:
        from airflow_provider_cdc.sources.postgres.log import segments

        return segments.is_within(position, upper)
