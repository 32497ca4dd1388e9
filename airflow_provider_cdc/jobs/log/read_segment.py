"""The tasks of extract_delta: read segments of the log to files, and compose the net changes of several segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa

from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.errors import ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import CarriedImages, selected_changes
from airflow_provider_cdc.jobs.runtime.progress import UnderWay, piece_of_segment
from airflow_provider_cdc.jobs.runtime.skipped import reason, table_of
from airflow_provider_cdc.jobs.runtime.turn import GivenUp, ReadTurn
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.window import CHANGE_SCHEMA, LogSegment, SegmentSummary, TrackedTable

DONE = "delta/done"
SORT_BYTES = 256 * 2**20
"""Bytes of changes that the task of a segment holds in memory to sort them."""
GATHERED_BYTES = 64 * 2**20
"""Bytes of changes that the task holds in memory if all tables are keyed. Less memory is needed than for `SORT_BYTES`,
because the source has already sorted nearly all changes."""
COMPOSED_ROWS = 65_536
"""Number of changes that are composed at a time."""


@dataclass(frozen=True)
class SegmentRecord:
    """The record of a segment that was read: its plan, and its files.

    ``files`` have the changes as the log has them (`net_change_files.NET_SCHEMA`). Only a piece of the spooled log has
    such files: its changes may be applied in both directions. ``towards`` has the files with the changes towards the
    position of the run (`net_change_files.TOWARDS_SCHEMA`), and ``counts`` is the result of
    `net_change_files.count_by_table` for these files. ``refused`` has the tables that cannot be copied, by
    name, with the reasons. The files may lack changes of these tables. ``changes`` are the files with the single row
    changes (`CHANGE_SCHEMA`) of the tables with a change feed. ``held`` is the size of the rows in memory, in
    bytes."""

    plan: str
    segment: int
    files: tuple[StagedFile, ...]
    counts: net_change_files.Counts
    pending: int
    summary: SegmentSummary
    refused: dict[str, str] = field(default_factory=dict)
    changes: tuple[StagedFile, ...] = ()
    held: int = 0
    towards: tuple[StagedFile, ...] = ()

    @property
    def all_files(self) -> tuple[StagedFile, ...]:
        """The files with the net change of the segment."""
        return (*self.files, *self.towards)


@dataclass(frozen=True)
class ReadSegment:
    """A task that reads segments of the window ``name``. Spark sends this object to executors.

    ``start`` is the position at which the window begins. ``skips`` says whether a table that cannot be copied is left
    out. Otherwise, such a table stops the step; the last table of the run always stops it. ``alone`` says whether the
    run has only the tables in ``tables``. ``events`` has the indices of tables of which only the single changes are
    kept, because the position up to which their changes count is not known yet. ``forward`` says whether the window
    ends at the position of the run, and not at the end of the reads. None: the segment is a piece, whose changes are
    kept as the log has them.
    """

    staging: Staging
    plan: str
    source: Source
    name: str
    start: Position
    tables: tuple[TrackedTable, ...]
    skips: bool = False
    alone: bool = True
    events: tuple[int, ...] = ()
    forward: bool | None = None

    def __call__(self, segment: LogSegment) -> SegmentRecord:
        """Write the net change of one segment, and its record."""
        record = self.read(segment)
        records.write(self.staging.folder, f"{DONE}/{self.name}-{segment.number:06}.json", record)
        return record

    def read(self, segment: LogSegment) -> SegmentRecord:
        """Write the net change of one segment, but not its record."""
        turn = ReadTurn(self.staging.folder)
        turn.wait()
        try:
            return self._read_whole(segment, turn)
        finally:
            turn.leave()

    def _read_whole(self, segment: LogSegment, turn: ReadTurn) -> SegmentRecord:
        tables, refused = self.tables, dict[str, str]()
        while True:
            try:
                record = replace(self._read(segment, tables, turn), refused=refused)
            except GivenUp:
                turn.wait()
            except ValueNotRepresentable as error:
                failed_table = table_of(error, (str(tracked.table.name) for tracked in tables)) if self.skips else None
                if failed_table is None or (self.alone and len(tables) == 1):
                    raise
                refused[failed_table] = reason(error)
                tables = tuple(tracked for tracked in tables if str(tracked.table.name) != failed_table)
            else:
                return record

    def _read(self, segment: LogSegment, tables: tuple[TrackedTable, ...], turn: ReadTurn) -> SegmentRecord:
        turn.check()
        name, forward = f"delta/{self.name}-{segment.number:06}", self.forward
        schema = net_change_files.NET_SCHEMA if forward is None else net_change_files.TOWARDS_SCHEMA
        keyless = [tracked.index for tracked in tables if tracked.table.keyless]
        counts: list[net_change_files.Counts] = []
        pending = held = 0
        under_way = UnderWay(self.staging.folder, piece_of_segment(self.name, segment))

        def progress(read: int, images: int) -> None:
            turn.check()
            under_way.reached(read, images)

        with (
            self.staging.writer(name, schema, QUICKEST) as writer,
            self.staging.writer(f"{name}-changes", CHANGE_SCHEMA, QUICKEST) as changes,
            self.source.read_segment(segment, self.start, tables, changes.write, progress) as reader,
        ):
            for rows in net_change_files.gathered(reader, SORT_BYTES if keyless else GATHERED_BYTES):
                # Also decode the rows of tables in ``events``, so that a value that cannot be decoded is found now.
                rows = net_change_files.without_tables(selected_changes(self.source, tables, rows), self.events)
                rows = net_change_files.without_effect_dropped(rows, keyless)
                if forward is not None:
                    rows = net_change_files.towards(rows, keyless, forward=forward)
                    counts.append(net_change_files.count_by_table(rows))
                writer.write(net_change_files.in_buckets(rows))
                pending += rows.num_rows - rows["pending"].null_count
                held += rows.nbytes
            summary = reader.summary
        total = net_change_files.add_counts(counts)
        files = tuple(writer.files)
        record = SegmentRecord(
            self.plan, segment.number, (), total, pending, summary, changes=tuple(changes.files), held=held
        )
        return replace(record, files=files) if forward is None else replace(record, towards=files)


@dataclass(frozen=True)
class ComposeBuckets:
    """A task that composes the segments of the window ``name``. Spark sends this object to executors.

    ``forward`` says whether the window ends at the position of the run. ``tables`` are the indices of the tables of the
    window: pieces may have others. ``images`` has the earlier columns of tables that were altered since."""

    staging: Staging
    name: str
    segments: tuple[SegmentRecord, ...]
    decisions: net_change_files.Decisions
    keyless: tuple[int, ...]
    forward: bool
    tables: tuple[int, ...]
    images: CarriedImages | None = None

    def __call__(self, buckets: tuple[int, int]) -> net_change_files.NetChangeFiles:
        """Compose the changes of all segments in some buckets."""
        with self.staging.reading():
            return self._composed(buckets)

    def _composed(self, buckets: tuple[int, int]) -> net_change_files.NetChangeFiles:
        decided = [
            net_change_files.resolve_pending(rows, record.segment, self.decisions)
            for record in self.segments
            for rows in self._read(record, buckets)
        ]
        counts: list[net_change_files.Counts] = []
        with self.staging.writer(
            f"delta/{self.name}-net-{buckets[0]:02}", net_change_files.TOWARDS_SCHEMA, QUICKEST
        ) as writer:
            for rows in net_change_files.portions(decided, COMPOSED_ROWS):
                composed = net_change_files.compose(rows, self.keyless, forward=self.forward)
                writer.write(composed)
                counts.append(net_change_files.count_by_table(composed))
        return net_change_files.NetChangeFiles(tuple(writer.files), net_change_files.add_counts(counts))

    def _read(self, record: SegmentRecord, buckets: tuple[int, int]) -> Iterator[pa.Table]:
        """Yield the changes of a segment towards the position of the run."""
        schema, folder = net_change_files.NET_SCHEMA, self.staging.folder
        if record.files:
            # The images after the changes are not needed to rewind.
            columns = schema.names if self.forward else [name for name in schema.names if name != "after"]
            batches = net_change_files.read(folder, record.files, columns, schema=schema, buckets=buckets)
            rows = pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns]))
            if not self.forward:
                none = pa.chunked_array([pa.nulls(rows.num_rows, pa.binary())])
                rows = rows.add_column(schema.get_field_index("after"), schema.field("after"), none)
            rows = net_change_files.of_tables(rows, self.tables)
            if self.images is not None:
                rows = self.images.of_present(rows, record.segment)
            yield net_change_files.towards(rows, self.keyless, forward=self.forward)
        if record.towards:
            schema = net_change_files.TOWARDS_SCHEMA
            batches = net_change_files.read(folder, record.towards, schema.names, buckets=buckets)
            yield pa.Table.from_batches(batches, schema)


@dataclass(frozen=True)
class LastOfBuckets:
    """A task that composes touched keys. Spark sends this object to executors."""

    staging: Staging
    files: tuple[StagedFile, ...]

    def __call__(self, buckets: tuple[int, int]) -> net_change_files.NetChangeFiles:
        """Write the last change of each key in some buckets."""
        with self.staging.reading():
            rows = net_change_files.last(
                pa.Table.from_batches(
                    net_change_files.read(
                        self.staging.folder,
                        self.files,
                        net_change_files.NET_SCHEMA.names,
                        schema=net_change_files.NET_SCHEMA,
                        buckets=buckets,
                    ),
                    net_change_files.NET_SCHEMA,
                )
            )
        rows = net_change_files.touched(rows)
        with self.staging.writer(f"delta/net-{buckets[0]:02}", net_change_files.TOWARDS_SCHEMA, QUICKEST) as writer:
            writer.write(rows.sort_by([("table", "ascending"), ("bucket", "ascending")]))
        return net_change_files.NetChangeFiles(tuple(writer.files), net_change_files.count_by_table(rows))
