"""Reads a server's log in tests, from a mark to an end, as one net change, with rows as SELECT returns them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.decode.images import decode_images
from airflow_provider_cdc.sources.mysql.log.segments import log_segments, open_segment
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer
from tests.sources.changes import Changes

Connection: TypeAlias = "pymysql.Connection[Any]"


def run(connection: Connection, *statements: str | bytes) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def settings(server: MysqlServer, **tls: str) -> ConnectionSettings:
    return ConnectionSettings("mysql", server.host, server.port, "root", tls=tls)


def log_end(server: MysqlServer) -> LogPlace:
    file, position = server.query("SHOW BINARY LOG STATUS")[0][:2]
    return LogPlace(file, int(position))


def executed(server: MysqlServer) -> GtidSet:
    return GtidSet.parse(server.query("SELECT @@gtid_executed")[0][0])


@dataclass
class Window(Changes):
    """What the log did to some tables. ``together`` is as ``summaries``, of its files read as one segment."""

    summaries: list[SegmentSummary] = field(default_factory=list)
    together: list[SegmentSummary] = field(default_factory=list)

    @property
    def images(self) -> int:
        return sum(summary.row_images for summary in self.summaries)


class LogReading:
    """Follows tables of one schema from the moment that it is made."""

    def __init__(self, server: MysqlServer, schema: str, *names: str, **tls: str) -> None:
        self.server = server
        self.settings = settings(server, **tls)
        self.initial = executed(server)
        with session(self.settings) as connection:
            self.tables = read_tables(connection, [TableName(schema, name) for name in names])

    def segments(self, end: LogPlace | None = None, slots: int = 0) -> list[LogSegment]:
        return log_segments(self.settings, self.initial, end or log_end(self.server), slots=slots)

    def tracked(self, upper: GtidSet | None = None, *, forward: bool = False) -> list[TrackedTable]:
        upper = upper or executed(self.server)
        return [
            TrackedTable(index, table, upper if table.keyless or forward else None, forward=forward)
            for index, table in enumerate(self.tables)
        ]

    def batches(
        self, segment: LogSegment, tracked: Sequence[TrackedTable]
    ) -> tuple[list[dict[str, Any]], SegmentSummary]:
        with open_segment(self.settings, segment, self.initial, tracked) as reader:
            rows = [row for batch in reader for row in batch.to_pylist()]
            return rows, reader.summary

    def read(self, end: LogPlace | None = None, upper: GtidSet | None = None, *, forward: bool = False) -> Window:
        """The net change up to ``end`` (now), of keyless tables, or ``forward``, up to ``upper`` (now).

        Files that are read one by one and files that are read together must give the same result.
        """
        end, tracked = end or log_end(self.server), self.tracked(upper, forward=forward)
        apart, together = (self._window(self.segments(end, slots), tracked) for slots in (0, 1))
        assert len(together.summaries) == 1
        assert (together.before, together.after) == (apart.before, apart.after)
        # Rows that were added and removed: files that are read together do not yield them.
        one, other = ({name: rows for name, rows in way.counts.items() if rows} for way in (apart, together))
        assert one == other
        assert together.images == apart.images
        apart.together = together.summaries
        return apart

    def _window(self, segments: Sequence[LogSegment], tracked: Sequence[TrackedTable]) -> Window:
        read = [self.batches(segment, tracked) for segment in segments]
        window = Window(summaries=[summary for _, summary in read])
        decisions = _decisions(window.summaries)
        changes = []
        for rows, summary in read:
            for row in rows:
                if row["pending"] is not None:
                    decided = decisions.get((summary.segment.number, row["pending"]))
                    if decided is None:
                        continue
                    row["order"] = decided
                changes.append(row)
        changes.sort(key=lambda row: (row["order"], row["suborder"]))
        for index, table in enumerate(self.tables):
            window.take(table, [row for row in changes if row["table"] == index], decode_images)
        window.counts = {
            name: Counter({row: n for row, n in rows.items() if n}) for name, rows in window.counts.items()
        }
        return window


def _decisions(summaries: Sequence[SegmentSummary]) -> dict[tuple[int, str], int]:
    prepared: dict[str, int] = {}
    decisions: dict[tuple[int, str], int] = {}
    for summary in summaries:
        for xid, order in summary.decided.items():
            decisions[prepared.pop(xid), xid] = order
        for xid in summary.rolled_back:
            prepared.pop(xid, None)
        prepared.update(dict.fromkeys(summary.prepared, summary.segment.number))
    return decisions
