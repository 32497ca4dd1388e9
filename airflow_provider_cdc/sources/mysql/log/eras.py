"""Reads the log across statements that change the columns of a table that is rolled forward.

The segments of the window are cut after each such statement. So within a segment, each table has one set of columns:
its rows are decoded and netted by them. After that, the images become images of the present table, by exactly the
statements behind them in the log. So everything after the reader sees one kind of images.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.table import Era, Table
from airflow_provider_cdc.errors import SchemaChanged
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.decode.carried_images import carried_images
from airflow_provider_cdc.sources.mysql.decode.images import decode_images
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, file_number


def cut(segments: Sequence[LogSegment], tables: Sequence[Table]) -> list[LogSegment]:
    """Return the segments, cut after each statement that begins another era of a table, and numbered again.

    :raises SchemaChanged: the segments do not contain such a statement.
    """
    ends = {era.ends: LogPlace.parse(era.ends) for table in tables for era in table.eras}
    if not ends:
        return list(segments)
    pieces: list[LogSegment] = []
    passed: tuple[str, ...] = ()
    left = sorted(ends, key=lambda text: (file_number(ends[text].file), ends[text].position))
    for segment in segments:
        rest: LogSegment | None = replace(segment, passed=passed)
        while rest is not None and left and _contains(rest, ends[left[0]]):
            before, rest = _cut(rest, ends[left[0]])
            pieces.append(before)
            passed += (left.pop(0),)
            rest = rest and replace(rest, passed=passed)
        if rest is not None:
            pieces.append(rest)
    if left:
        raise SchemaChanged(
            f"the window does not contain the schema change before {left[0]}",
            hint="clear the task `preflight` and all tasks after it",
        )
    return [replace(piece, number=number) for number, piece in enumerate(pieces)]


def _contains(segment: LogSegment, place: LogPlace) -> bool:
    if place.file not in (segment.name, *segment.also):
        return False
    is_after = place.file != segment.name or place.position > segment.start
    return is_after and (place.file != segment.last_name or segment.stop is None or place.position <= segment.stop)


def _cut(segment: LogSegment, place: LogPlace) -> tuple[LogSegment, LogSegment | None]:
    names = (segment.name, *segment.also)
    at = names.index(place.file)
    size = place.position - segment.start if at == 0 else segment.bytes * at // len(names)
    size = min(size, segment.bytes)
    before = replace(segment, also=names[1 : at + 1], stop=place.position, bytes=size)
    if place.file == segment.last_name and place.position == segment.stop:
        return before, None
    rest = replace(segment, name=place.file, start=place.position, also=names[at + 1 :], bytes=segment.bytes - size)
    return before, rest


class SegmentEras:
    """The tables of a segment, with the columns that they have in it. ``begins`` are the places of the statements that
    end the eras of tables."""

    def __init__(self, segment: LogSegment, tables: Sequence[TrackedTable]) -> None:
        self._carried = {one.index: (one.table, era) for one in tables if (era := era_at(one.table, segment))}
        self.tracked = [
            replace(one, table=one.table.in_era(self._carried[one.index][1])) if one.index in self._carried else one
            for one in tables
        ]
        self.begins = frozenset(era.begins for one in tables for era in one.table.eras)

    def carry(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of `DELTA_SCHEMA` with images of the present table. All its rows are of one table."""
        table, era = self._carried.get(batch["table"][0].as_py(), (None, None)) if batch.num_rows else (None, None)
        if table is None or era is None:
            return batch
        before, after = (carried_images(table, era, batch[name]) for name in ("before", "after"))
        columns = {name: batch[name] for name in batch.schema.names} | {"before": before, "after": after}
        if table.keyless:
            names = [column.name for column in table.columns]
            columns["key"] = row_bytes.encode(decode_images(table, before), names)
        return pa.record_batch([*columns.values()], schema=batch.schema)


def era_at(table: Table, segment: LogSegment) -> Era | None:
    """Return the era of a table in a segment. None: the table has its present columns."""
    number = sum(era.ends in segment.passed for era in table.eras)
    return table.eras[number] if number < len(table.eras) else None


class EraWalker(LogWalker):
    """A walker that goes on at the statements that end an era of a table. Such a statement concerns no other table."""

    def __init__(
        self,
        segment: LogSegment,
        initial: GtidSet,
        tracked: Sequence[TrackedTable],
        summary: SegmentSummary,
        begins: Collection[str],
    ) -> None:
        stop = None if segment.also else segment.stop
        super().__init__(segment.name, segment.start, stop, initial, tracked, summary)
        self._begins = begins

    def _check(self, statement: Statement) -> None:
        if not self._begins or str(LogPlace(self._file, self.position)) not in self._begins:
            super()._check(statement)
