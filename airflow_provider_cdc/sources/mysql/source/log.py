"""Reads the log."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.source import ConnectionSettings, Log, NeededLog, SegmentReader, Start, Waiting
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.server import log_history
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.replication import log_settings, wait_for
from airflow_provider_cdc.sources.mysql.server.session import session


class MysqlLog(Log):
    """`Log` for MySQL."""

    settings: ConnectionSettings

    @property
    def _log(self) -> ConnectionSettings:
        return log_settings(self.settings)

    def segments(
        self,
        start: Start,
        since: LogEnd,
        until: LogEnd,
        tables: Sequence[Table] = (),
        number: int = 0,
        slots: int = 1,
    ) -> list[LogSegment]:
        from airflow_provider_cdc.sources.mysql.log import segments
        from airflow_provider_cdc.sources.mysql.log.segments import cut, log_segments

        facts = MysqlFacts.of(start.facts).of_log
        if since:
            return segments.segments_from(self._log, since, until, facts, number, slots)
        begin, end = GtidSet.expect(start.position), log_history.LogPlace.parse(until)
        return cut(log_segments(self._log, begin, end, facts.begun, slots), tables)

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        from airflow_provider_cdc.sources.mysql.log.segments import segments_before

        return segments_before(self._log, segment, count)

    def read_segment(
        self,
        segment: LogSegment,
        start: Position,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AbstractContextManager[SegmentReader]:
        from airflow_provider_cdc.sources.mysql.log.segments import open_segment

        return open_segment(
            self._log, segment, GtidSet.expect(start), tables, changes, progress, self.settings.log_server is not None
        )

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.mysql.decode.images import decode_images

        return decode_images(table, images, nulled, names, odd)

    def prepared_now(self) -> set[str] | None:
        from airflow_provider_cdc.sources.mysql.log import segments

        return segments.prepared_now(self._log)

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        from airflow_provider_cdc.sources.mysql.log import statement_writes

        statement_writes.check_writes(self._log, summaries)

    def backlog(self, initial: Position, identity: Facts) -> int:
        with session(self._log) as connection:
            return log_history.backlog(connection, MysqlFacts.of(identity).of_log.place)

    def needed_log(self, identity: Facts, since: Sequence[Facts]) -> NeededLog:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import needed_log

        return needed_log(self.settings, MysqlFacts.of(identity), [*map(MysqlFacts.of, since)])

    def waiting(self, initial: Position, identity: Facts, place: LogEnd) -> Waiting:
        from airflow_provider_cdc.sources.mysql.log import segments

        return segments.waiting(self._log, MysqlFacts.of(identity).of_log, place)

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Facts) -> None:
        from airflow_provider_cdc.sources.mysql.log import segments

        segments.check_joined(self._log, end, MysqlFacts.of(identity).of_log)

    def incarnation_at(self, identity: Facts) -> str:
        return MysqlFacts.of(identity).started or ""

    def place_of(self, position: Position) -> LogEnd:
        from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_of

        wanted = GtidSet.expect(position)
        if self.settings.log_server is not None:
            with session(self.settings) as source, session(self._log) as connection:
                wait_for(self.settings, source, connection, wanted)
        return LogEnd(str(prefix_of(self._log, wanted).place))

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        from airflow_provider_cdc.sources.mysql.log import segments

        return segments.place_is_before(one, other)

    def is_within(self, position: str, upper: Position) -> bool:
        from airflow_provider_cdc.sources.mysql.log import segments

        return segments.is_within(position, upper)
