"""Implements the interface through which jobs and operators use a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from airflow_provider_cdc.core.options.run import AS_DECLARED, LockPolicy, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, Trace
from airflow_provider_cdc.core.positions.position import LogEnd, Lsn, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Era, Evolution, Parts, Table, TableName, whole_tables
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import LogTail, NeededLog, SegmentReader, Start, Waiting
from airflow_provider_cdc.sources.api.planning import Reach, Runway
from airflow_provider_cdc.sources.api.reading import ChunkReader
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.starts import KeptObject, LeftByRun
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable, UpperBound
from airflow_provider_cdc.sources.postgres.catalog import schema, schema_difference, type_catalog, types
from airflow_provider_cdc.sources.postgres.chunking import chunks, sample
from airflow_provider_cdc.sources.postgres.server import server, session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import session, value
from airflow_provider_cdc.sources.postgres.slots import end_mark, run_publication, slots, transaction_waits
from airflow_provider_cdc.sources.postgres.steps import (
    chunk_reader,
    past,
    preflight,
    roll_forward,
    snapshot,
    standing_slot,
)
from airflow_provider_cdc.sources.postgres.steps.carried_reads import CarriesReads
from airflow_provider_cdc.sources.postgres.steps.check_identity import (
    check_identity,
    check_published,
    has_reached,
    needed_log,
    runway,
)
from airflow_provider_cdc.sources.session import Kept, keeping, session_of

_ALTERED_SECONDS = 60.0  # the longest wait for transactions that alter a type


class PostgresSource(CarriesReads, Source):
    """`Source` for PostgreSQL. Each method calls a function of the module for its subject.

    Modules that decode the log are imported where they are used, because their kernels take a second to load.

    :param view: the exported snapshot for reads with ``exported``. `share_reads` yields a source with such a snapshot.
    """

    kind: ClassVar[str] = "postgres"
    position_key: ClassVar[str] = "initial_lsn"
    load_signals: ClassVar[frozenset[str]] = server.SIGNALS
    carries_pieces: ClassVar[bool] = True

    def __init__(self, settings: ConnectionSettings, view: snapshot.SharedView | None = None) -> None:
        self.settings = settings
        self.view = view
        self._kept: Kept | None = None

    def __repr__(self) -> str:
        return f"PostgresSource({self.settings.address})"

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        return preflight.preflight(self.settings, patterns, options, parts)

    def check_server(self) -> list[Problem]:
        return preflight.check_server(self.settings)

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        with session(self.settings) as connection:
            tables = schema.present_tables(connection, [plan.table for plan in plans])
        return [replace(table, options=plan.options) for plan, table in zip(plans, tables, strict=True)]

    def comparable_texts(self, table: Table) -> dict[str, str]:
        return types.comparable_texts(table)

    def pushed_condition(self, table: Table) -> str:
        from airflow_provider_cdc.sources.postgres.chunking import pushed_conditions

        return pushed_conditions.pushed_condition(table)

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        return sample.sample(self.settings, plans)

    def here(self) -> tuple[Facts, Lsn]:
        with session(self.settings) as connection:
            return server.identity(connection).recorded(), Lsn.parse(value(connection, "pg_current_wal_lsn()::text"))

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        return snapshot.record_initial(self.settings, plans, lock, run_id, self.settings.options.get("publication", ""))

    def keep_past(self, plans: Sequence[TablePlan], options: StepOptions) -> None:
        standing_slot.keep_past(self.settings, plans, options)

    def note_position(self, point: InitialPoint, options: StepOptions) -> None:
        facts, position = PostgresFacts.of(point.identity), Lsn.expect(point.position)
        standing_slot.note_position(session_setup.of_run(self.settings, facts, position), options)

    def note_copies(self, options: StepOptions, copies: Mapping[str, Mapping[str, Position]], incarnation: str) -> None:
        of_lakes = {lake: {name: Lsn.expect(at) for name, at in own.items()} for lake, own in copies.items()}
        standing_slot.note_copies(self.settings, options, of_lakes, incarnation)

    def give_up_past(self, options: StepOptions) -> None:
        standing_slot.give_up_past(self.settings, options)

    def refusals_since(
        self,
        identity: Facts,
        position: Position,
        tables: Sequence[Table],
        to: AsOf | None,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        facts, at, bounds = PostgresFacts.of(identity), Lsn.expect(position), (keys_only, bases, evolutions)
        return roll_forward.refusals_since(self.settings, facts, at, tables, to, options, *bounds)

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.postgres.decode.images import new_columns

        return new_columns(table, era)

    def check_since(self, identity: Facts, position: Position) -> None:
        roll_forward.check_since(self.settings, PostgresFacts.of(identity), Lsn.expect(position))

    def keep_window(
        self, point: InitialPoint, plans: Sequence[TablePlan], options: StepOptions, run_id: str
    ) -> InitialPoint:
        return roll_forward.keep_window(self.settings, point, plans, options, run_id)

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        past.check_past(self.settings, as_of, plans, options)

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        return past.record_past(self.settings, as_of, plans, options, run_id)

    def has_reached(self, target: AsOf) -> Reach:
        return has_reached(self.settings, target)

    def backlog(self, initial: Position, identity: Facts) -> int:
        with session(self.settings) as connection:
            return int(value(connection, "pg_current_wal_lsn() - %s::pg_lsn", (str(initial),)))

    def load(self, signals: Sequence[str]) -> Mapping[str, float]:
        return server.load(self.settings, signals)

    def close_idle(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def runway(self) -> Runway:
        return runway(self.settings)

    def needed_log(self, identity: Facts, since: Sequence[Facts]) -> NeededLog:
        return needed_log(self.settings, PostgresFacts.of(identity))

    def waiting(self, initial: Position, identity: Facts, place: LogEnd) -> Waiting:
        from airflow_provider_cdc.sources.postgres.log import segments as pieces

        return pieces.waiting(self.settings, Lsn.expect(initial), PostgresFacts.of(identity), place)

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Facts) -> None:
        from airflow_provider_cdc.sources.postgres.log import segments as pieces

        pieces.check_joined(self.settings, start, end, Lsn.expect(initial), PostgresFacts.of(identity))

    def place_of(self, position: Position) -> LogEnd:
        return end_mark.log_end(Lsn.expect(position))

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        from airflow_provider_cdc.sources.postgres.log import segments as pieces

        return pieces.place_is_before(one, other)

    def is_within(self, position: str, upper: Position) -> bool:
        from airflow_provider_cdc.sources.postgres.log import segments as pieces

        return pieces.is_within(position, upper)

    def acknowledge(self, identity: Facts, end: LogEnd) -> None:
        from airflow_provider_cdc.sources.postgres.log import segments as pieces

        pieces.acknowledge(self.settings, PostgresFacts.of(identity), end)

    def of_run(self, identity: Facts, position: Position) -> PostgresSource:
        facts = PostgresFacts.of(identity)
        return PostgresSource(session_setup.of_run(self.settings, facts, Lsn.expect(position)), self.view)

    def check_identity(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection:
            check_identity(connection, PostgresFacts.of(identity), Lsn.expect(position))

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        with session(
            session_setup.of_run(self.settings, PostgresFacts.of(identity), Lsn.expect(position))
        ) as connection:
            return server.relations(connection, traces)

    def check_tables(self, tables: Sequence[Table]) -> None:
        with session(self.settings) as connection:
            # ALTER TYPE blocks no writer, so the log may have rows with new labels before other sessions see them.
            if altering := type_catalog.altering(connection, tables):
                transaction_waits.wait_until_visible(self.settings, connection, _ALTERED_SECONDS, altering)
            schema_difference.check_unchanged(connection, tables)
            if isinstance(self.settings, session_setup.RunSettings):
                check_published(connection, self.settings.server, tables)

    def release(self, run_id: str) -> bool:
        slots.release(self.settings, run_id)
        return True

    def discard(self, identity: Facts) -> None:
        slots.discard(self.settings, PostgresFacts.of(identity))

    def left_by_runs(self) -> list[LeftByRun]:
        with session(self.settings) as connection:
            return run_publication.left_by_runs(connection)

    def kept_objects(self, run_ids: Collection[str]) -> list[KeptObject]:
        with session(self.settings) as connection:
            return slots.kept_objects(self.settings, connection, run_ids)

    def drop_unused(self, one: KeptObject) -> str:
        return slots.drop_unused(self.settings, one)

    @contextmanager
    def share_reads(self, lock: LockPolicy) -> Iterator[PostgresSource]:
        with snapshot.share_view(self.settings, lock) as view:
            yield PostgresSource(self.settings, view)

    def wait_until_visible(self, lock: LockPolicy) -> None:
        with session(self.settings) as connection:
            transaction_waits.wait_until_visible(self.settings, connection, lock.slot_wait_seconds)

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        assert self.view is not None
        return snapshot.bound_view(self.settings, self.view, tables)

    def follow(
        self, start: Position, identity: Facts, tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        from airflow_provider_cdc.sources.postgres.log.tail import open_tail

        return open_tail(self.settings, Lsn.expect(start), PostgresFacts.of(identity), tables)

    @contextmanager
    def one_session(self) -> Iterator[PostgresSource]:
        source = copy(self)
        with keeping() as source._kept:
            yield source

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        with session_of(self._kept, "planning", lambda: session(self.settings)) as connection:
            return chunks.plan_chunks(connection, table, chunk_rows)

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        return chunks.key_range(table, low, high)

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        return chunk_reader.open_reader(self.settings, table, consistency, self.view, self._kept)

    def bound_reads(self) -> UpperBound:
        return snapshot.bound_reads(self.settings)

    def reason_not_rollable(self, table: Table) -> str:
        why = "it was read in a snapshot of its own, and the replication slot begins before this snapshot"
        return why if table.needs_one_position else ""

    def check_continued(self, tables: Sequence[Table]) -> None:
        self.check_tables(tables)
        with session(self.settings) as connection:
            schema_difference.check_unchanged(connection, tables, versions=True)

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
        begin = end_mark.parse_log_end(since)[0] if since else begin
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

    def arrow_schema(self, table: Table) -> pa.Schema:
        return types.arrow_schema(table)

    def column_identities(self, table: Table) -> dict[str, str]:
        return schema.column_identities(table)

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
