"""A MySQL server as the jobs and operators use it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import ClassVar

import pyarrow as pa

from airflow_provider_cdc.core.checks import Moment
from airflow_provider_cdc.core.options.run import AS_DECLARED, LockPolicy, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.facts import Facts, Finding, Trace
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Era, Evolution, Parts, Table, TableName, whole_tables
from airflow_provider_cdc.errors import LogGone, Problem
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import NeededLog, SegmentReader, Start, Waiting
from airflow_provider_cdc.sources.api.planning import Reach, Runway
from airflow_provider_cdc.sources.api.reading import ChunkReader
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable, UpperBound
from airflow_provider_cdc.sources.mysql.chunking import axes, chunks, sample
from airflow_provider_cdc.sources.mysql.log.replaced import WatchedTables
from airflow_provider_cdc.sources.mysql.server import log_history, server
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.session import RunSettings, session, value
from airflow_provider_cdc.sources.mysql.steps import preflight, snapshot
from airflow_provider_cdc.sources.mysql.steps.carried_reads import CarriesReads, KeepsTables
from airflow_provider_cdc.sources.mysql.steps.check_identity import check_identity
from airflow_provider_cdc.sources.mysql.tables import schema, types
from airflow_provider_cdc.sources.mysql.tables.identity import look_replaced
from airflow_provider_cdc.sources.session import Kept, keeping, session_of


class MysqlSource(CarriesReads, KeepsTables, Source):
    """`Source` for MySQL. The methods call functions of other modules.

    The methods import the decoders of rows and logs only when they are needed. The kernels of the decoders take a
    second to load, and are not used by the steps that only check, plan and record.

    :param facts: what the run recorded about the server on which it began. None: any server may answer. `of_run`
        returns a source with facts.
    """

    kind: ClassVar[str] = "mysql"
    position_key: ClassVar[str] = "initial_gtid_set"
    load_signals: ClassVar[frozenset[str]] = server.SIGNALS

    def __init__(self, settings: ConnectionSettings, facts: MysqlFacts | None = None) -> None:
        self.settings = settings
        self._facts = facts
        self._kept: Kept | None = None
        self._watched = None if facts is None else WatchedTables(facts)

    def __repr__(self) -> str:
        return f"MysqlSource({self.settings.address})"

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        return preflight.preflight(self.settings, patterns, options, parts)

    def check_server(self) -> list[Problem]:
        return preflight.check_server(self.settings)

    def tables_of(self, plans: Sequence[TablePlan]) -> list[Table]:
        with session(self.settings) as connection:
            return [*snapshot.tables_of(connection, plans)]

    def comparable_texts(self, table: Table) -> dict[str, str]:
        return types.comparable_texts(table)

    def pushed_condition(self, table: Table) -> str:
        from airflow_provider_cdc.sources.mysql.chunking import pushed_conditions

        return pushed_conditions.pushed_condition(table)

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        return sample.sample(self.settings, plans)

    def here(self) -> tuple[Facts, GtidSet]:
        with session(self.settings) as connection:
            executed = snapshot.executed(connection)
            return server.identity(self.settings, connection).recorded(), executed

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        return snapshot.record_initial(self.settings, plans, lock)

    def check_past(self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions) -> None:
        from airflow_provider_cdc.sources.mysql.steps import past

        past.check_past(self.settings, as_of, plans)

    def record_past(
        self, as_of: AsOf, plans: Sequence[TablePlan], options: StepOptions, run_id: str = ""
    ) -> InitialPoint:
        from airflow_provider_cdc.sources.mysql.steps import past

        return past.record_past(self.settings, as_of, plans)

    def has_reached(self, target: AsOf) -> Reach:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import has_reached

        return has_reached(self.settings, target)

    def backlog(self, initial: Position, identity: Facts) -> int:
        with session(self.settings) as connection:
            return log_history.backlog(connection, MysqlFacts.of(identity).place)

    def load(self, signals: Sequence[str]) -> Mapping[str, float]:
        return server.load(self.settings, signals)

    def close_idle(self) -> None:
        if self._kept is not None:
            self._kept.close()

    def runway(self) -> Runway:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import runway

        return runway(self.settings)

    def needed_log(self, identity: Facts, since: Sequence[Facts]) -> NeededLog:
        from airflow_provider_cdc.sources.mysql.steps.check_identity import needed_log

        return needed_log(self.settings, MysqlFacts.of(identity), [*map(MysqlFacts.of, since)])

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
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        facts = MysqlFacts.of(identity)
        return roll_forward.refusals_since(self.settings, facts, GtidSet.expect(position), tables, to, evolutions)

    def check_replaced(self, identity: Facts, tables: Sequence[Table], until: Facts, now: Sequence[Table]) -> None:
        with session(self.settings) as connection:
            # Table identities can be compared only on the same server. When copies are rolled forward, `check_since`
            # checks that the server is the same.
            if value(connection, "@@global.server_uuid") == identity.server:
                hint = "clear the task `preflight` and all tasks after it"
                if look_replaced(connection, tables, {}):
                    from airflow_provider_cdc.sources.mysql.log import replaced

                    begin, end = (MysqlFacts.of(one).place for one in (identity, until))
                    replaced.check_not_replaced(self.settings, connection, begin, tables, hint, {}, end, now)

    def check_since(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection:
            check_identity(
                self.settings, connection, MysqlFacts.of(identity), GtidSet.expect(position), Moment.ROLL_FORWARD
            )

    def reason_not_rollable(self, table: Table) -> str:
        from airflow_provider_cdc.sources.mysql.steps import roll_forward

        return roll_forward.reason_not_logged(table)

    def check_continued(self, tables: Sequence[Table]) -> None:
        # The log has the rows of all partitions under the name of the table.
        self.check_tables(tables)

    def of_run(self, identity: Facts, position: Position) -> MysqlSource:
        facts = MysqlFacts.of(identity)
        return MysqlSource(RunSettings.of(self.settings, facts, GtidSet.expect(position)), facts)

    def check_identity(self, identity: Facts, position: Position) -> None:
        with session(self.settings) as connection:
            check_identity(self.settings, connection, MysqlFacts.of(identity), GtidSet.expect(position))

    def relations(self, identity: Facts, position: Position, traces: Sequence[Trace]) -> list[Finding]:
        here = RunSettings.of(self.settings, MysqlFacts.of(identity), GtidSet.expect(position))
        with session(here) as connection:
            return log_history.relations(here, connection, traces)

    def check_tables(self, tables: Sequence[Table]) -> None:
        # This check finds DDL early. The log also shows all logged DDL, but the log is read only later.
        with session(self.settings) as connection:
            schema.check_unchanged(connection, tables)
            if self._watched is not None:
                self._watched.check(self.settings, connection, tables)

    def note_tables(self, end: LogEnd, tables: Sequence[Table]) -> str:
        assert self._watched is not None
        with session(self.settings) as connection:
            return self._watched.note(self.settings, connection, end, tables)

    @contextmanager
    def one_session(self) -> Iterator[MysqlSource]:
        source = copy(self)
        with keeping() as source._kept:
            yield source

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        with session_of(self._kept, "planning", lambda: session(self.settings)) as connection:
            return chunks.plan_readable(connection, table, chunk_rows)

    def key_range(self, table: Table, low: int | None, high: int | None) -> list[Chunk]:
        return chunks.key_range(table, low, high)

    def key_order(self, table: Table) -> str | None:
        return axes.key_order(table)

    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        return snapshot.open_reader(self.settings, table, consistency, lock, self._kept)

    def bound_reads(self) -> UpperBound:
        bound = snapshot.bound_reads(self.settings)
        facts = self._facts
        if facts is not None and bound.incarnation != facts.started:
            assert isinstance(self.settings, RunSettings)
            # Make this check before rows are read again, because the reads would be useless if the server has crashed.
            try:
                with session(self.settings) as connection:
                    check_identity(self.settings, connection, facts, self.settings.position)
            except LogGone:
                # This source does not know the pieces of the log that were recorded since the step began. The next step
                # checks the server from the end of these pieces on.
                if not (facts.may_move and log_history.is_purged(self.settings, facts.begun)):
                    raise
        return bound

    def segments(
        self,
        start: Start,
        since: LogEnd,
        until: LogEnd,
        tables: Sequence[Table] = (),
        number: int = 0,
        slots: int = 1,
    ) -> list[LogSegment]:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces
        from airflow_provider_cdc.sources.mysql.log.segments import cut, log_segments

        facts = MysqlFacts.of(start.facts)
        if since:
            return pieces.segments_from(self.settings, since, until, facts, number, slots)
        begin, end = GtidSet.expect(start.position), log_history.LogPlace.parse(until)
        return cut(log_segments(self.settings, begin, end, facts.begun, slots), tables)

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        from airflow_provider_cdc.sources.mysql.log.segments import segments_before

        return segments_before(self.settings, segment, count)

    def check_writes(self, summaries: Sequence[SegmentSummary]) -> None:
        from airflow_provider_cdc.sources.mysql.log import statement_writes

        statement_writes.check_writes(self.settings, summaries)

    def waiting(self, initial: Position, identity: Facts, place: LogEnd) -> Waiting:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces

        return pieces.waiting(self.settings, MysqlFacts.of(identity), place)

    def check_joined(self, start: LogEnd, end: LogEnd, initial: Position, identity: Facts) -> None:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces

        pieces.check_joined(self.settings, end, MysqlFacts.of(identity))

    def incarnation_at(self, identity: Facts) -> str:
        return MysqlFacts.of(identity).started or ""

    def place_of(self, position: Position) -> LogEnd:
        from airflow_provider_cdc.sources.mysql.log.prefixes import prefix_of

        return LogEnd(str(prefix_of(self.settings, GtidSet.expect(position)).place))

    def is_before(self, one: LogEnd, other: LogEnd) -> bool:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces

        return pieces.place_is_before(one, other)

    def is_within(self, position: str, upper: Position) -> bool:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces

        return pieces.is_within(position, upper)

    def prepared_now(self) -> set[str] | None:
        from airflow_provider_cdc.sources.mysql.log import segments as pieces

        return pieces.prepared_now(self.settings)

    def read_segment(
        self,
        segment: LogSegment,
        start: Position,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> AbstractContextManager[SegmentReader]:
        from airflow_provider_cdc.sources.mysql.log.segments import open_segment

        return open_segment(self.settings, segment, GtidSet.expect(start), tables, changes, progress)

    def arrow_schema(self, table: Table) -> pa.Schema:
        return types.arrow_schema(table)

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        from airflow_provider_cdc.sources.mysql.decode.images import new_columns

        return new_columns(table, era)

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
