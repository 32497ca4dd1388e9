"""A source whose log, reads and truth are plain Python, for tests of the jobs.

A `History` is a list of log entries over a few tables. The source reads each chunk as the tables were at a moment
of its choice after the initial position, as on a busy server, and knows what the tables were at that position. ``end``
is the end of the log when the reads are bounded; a source that is ``late`` reads after that.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from airflow_provider_cdc.core.options.run import AS_DECLARED, LockPolicy, TableOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.chunk import Chunk, partition
from airflow_provider_cdc.core.tables.table import Column, Parts, Table, TableName, whole_tables
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import AT_START, ConnectionSettings, ReplicaRead, Runway, Source, Start
from airflow_provider_cdc.sources.api.unrepresentable import OddValue
from airflow_provider_cdc.sources.api.window import (
    CHANGE_SCHEMA,
    DELTA_SCHEMA,
    Committed,
    LogSegment,
    SegmentSummary,
    TrackedTable,
    UpperBound,
)

Row = tuple[Any, ...]
ChangeOf = tuple[int, Row | None, Row | None]
"""Index of the table, the row before, the row after."""

ENUM = pa.dictionary(pa.int16(), pa.string())
SCHEMAS = [
    pa.schema([("id", pa.int64()), ("state", ENUM), ("note", pa.string())]),
    pa.schema(
        [("region", pa.string()), ("number", pa.uint32()), ("amount", pa.decimal128(12, 2)), ("x", pa.float64())]
    ),
    pa.schema([("a", pa.int32()), ("b", pa.string())]),
    pa.schema([("id", pa.int64()), ("always_null", ENUM)]),
]
KEYS = [("id",), ("region", "number"), (), ("id",)]
NAMES = ["shop.orders", "shop.lines", "shop.visits", "shop.empty"]
KEYLESS = 2
SERVER = "00000000-0000-0000-0000-000000000001"


def tables() -> list[Table]:
    return [
        Table(
            TableName.parse(name),
            tuple(Column(column.name, str(column.type), True) for column in schema),
            key,
            "PRIMARY" if key else "",
        )
        for name, schema, key in zip(NAMES, SCHEMAS, KEYS, strict=True)
    ]


@dataclass(frozen=True)
class Entry:
    """``kind`` is ``commit``, ``prepare``, ``decide`` (of an earlier prepare) or ``roll back``."""

    kind: str
    changes: tuple[ChangeOf, ...] = ()
    xid: str = ""


@dataclass
class History:
    entries: list[Entry] = field(default_factory=list)

    def effects(self, position: int) -> Iterator[ChangeOf]:
        """What is visible at a position, in the order in which it became so."""
        prepared: dict[str, tuple[ChangeOf, ...]] = {}
        for entry in self.entries[:position]:
            if entry.kind == "commit":
                yield from entry.changes
            elif entry.kind == "prepare":
                prepared[entry.xid] = entry.changes
            elif entry.kind == "decide":
                yield from prepared.pop(entry.xid)

    def state(self, position: int) -> list[Counter[Row]]:
        """The rows of each table at a position."""
        states: list[Counter[Row]] = [Counter() for _ in NAMES]
        for table, before, after in self.effects(position):
            if before is not None:
                states[table][before] -= 1
            if after is not None:
                states[table][after] += 1
        assert all(count >= 0 for state in states for count in state.values())
        return [+state for state in states]


def key_of(table: int, row: Row) -> Row:
    return row if table == KEYLESS else row[: len(KEYS[table])]


def random_history(rng: random.Random, length: int) -> History:
    """Transactions that insert, update (keys too), delete and insert again; some prepared, decided later or never."""
    history = History()
    rows: list[dict[Row, Row]] = [{} for _ in NAMES]
    visits: Counter[Row] = Counter()
    locked: dict[str, set[tuple[int, Row]]] = {}

    def new_row(table: int) -> Row:
        if table == 0:
            return rng.randrange(40), rng.choice(["new", "paid", None]), rng.choice(["", "ä", None, "x" * 9])
        if table == 1:
            return rng.choice(["n", "N", "s"]), rng.randrange(12), rng.choice([None, "1.50", "-0.25"]), rng.random()
        return rng.choice([None, 1, 2]), rng.choice([None, "p", "q"])

    def change(free: set[tuple[int, Row]]) -> ChangeOf | None:
        table = rng.choice([0, 0, 1, 1, KEYLESS])
        after: Row | None = new_row(table)
        if table == KEYLESS:
            before = rng.choice([*visits.elements(), None]) if rng.random() < 0.5 else None
            if before is not None and rng.random() < 0.5:
                after = None
            if before is not None:
                visits[before] -= 1
            if after is not None:
                visits[after] += 1
            return table, before, after
        before = rng.choice([*rows[table].values(), None]) if rng.random() < 0.7 else None
        if before is not None and rng.random() < 0.4:
            after = None
        elif before is not None and rng.random() < 0.7:
            after = key_of(table, before) + (after or ())[len(KEYS[table]) :]
        touched = {(table, key_of(table, row)) for row in (before, after) if row is not None}
        taken = after is not None and key_of(table, after) in rows[table]
        moves = before is None or after is None or key_of(table, after) != key_of(table, before)
        if touched & set().union(*locked.values()) or (taken and moves):
            return None
        if before is not None:
            del rows[table][key_of(table, before)]
        if after is not None:
            rows[table][key_of(table, after)] = after
        free |= touched
        return table, before, after

    for number in range(length):
        undecided = sorted(locked)
        if undecided and rng.random() < 0.15:
            xid = rng.choice(undecided)
            del locked[xid]
            history.entries.append(Entry("decide", xid=xid))
            continue
        touched: set[tuple[int, Row]] = set()
        changes = [one for _ in range(rng.randrange(1, 5)) if (one := change(touched)) is not None]
        keyed = all(table != KEYLESS for table, _, _ in changes)
        if keyed and changes and rng.random() < 0.15:
            # The state above changes as if it were committed: its keys stay locked until it is, or forever.
            locked[f"x{number}"] = touched
            history.entries.append(Entry("prepare", tuple(changes), f"x{number}"))
        else:
            history.entries.append(Entry("commit", tuple(changes)))
    return history


def image(row: Row) -> bytes:
    return json.dumps(row).encode()


def batch_of(table: int, rows: Sequence[Row]) -> pa.RecordBatch:
    schema = SCHEMAS[table]
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = []
    for values, column in zip(columns, schema, strict=True):
        if pa.types.is_decimal(column.type):
            arrays.append(pa.array(values, pa.string()).cast(column.type))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.record_batch(arrays, schema=schema)


def key_bytes(table: int, row: Row) -> bytes:
    names = KEYS[table] or SCHEMAS[table].names
    encoded: bytes = row_bytes.encode(batch_of(table, [row]), names)[0].as_py()
    return encoded


def at(place: int) -> GtidSet:
    """The position before the log's entry ``place``. These positions have no order."""
    return GtidSet.parse(f"{SERVER}:{place + 1}")


def place_of(position: Position) -> int:
    ((_, _, ((number, _),)),) = GtidSet.expect(position).items()
    return number - 1


def is_beyond(place: int, tracked: TrackedTable) -> bool:
    """Whether a log entry comes after the changes that count."""
    return tracked.upper is not None and place >= place_of(tracked.upper)


class HistorySource(Source):
    kind: ClassVar[str] = "mysql"
    position_key: ClassVar[str] = "initial_gtid_set"

    def __init__(self, history: History, seed: int, segment_length: int = 7) -> None:
        self.history = history
        self.seed = seed
        self.segment_length = segment_length
        self.initial = 0
        self.end = len(history.entries)
        self.late = False

    def preflight(
        self, patterns: Sequence[str], options: TableOptions = AS_DECLARED, parts: Parts = whole_tables
    ) -> list[TablePlan]:
        raise NotImplementedError

    def sample(self, plans: Sequence[TablePlan]) -> list[Problem]:
        return []

    def runway(self) -> Runway:
        return Runway(None, "nothing removes the log", unbounded=True)

    def record_initial(self, plans: Sequence[TablePlan], lock: LockPolicy, run_id: str = "") -> InitialPoint:
        raise NotImplementedError

    def of_run(self, identity: Facts, position: Position) -> HistorySource:
        return self

    def here(self) -> tuple[Facts, Position]:
        return Facts({"server": "history"}), at(0)

    def check_identity(self, identity: Facts, position: Position) -> None:
        assert identity.fields()["server"] == "history"

    def check_tables(self, tables: Sequence[Table]) -> None:
        pass

    def one_session(self) -> AbstractContextManager[HistorySource]:
        return nullcontext(self)

    def plan_chunks(self, table: Table, chunk_rows: int) -> list[Chunk]:
        if table.keyless:
            return partition([])
        rng = random.Random(f"{self.seed} {table.name}")
        values = range(40) if table.key == ("id",) else ["N", "n", "o"]
        return partition([(value,) for value in values if rng.random() < 0.3])

    def key_order(self, table: Table) -> str | None:
        return "id" if table.key == ("id",) else None

    @contextmanager
    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> Iterator[_Reader]:
        yield _Reader(self, table)

    def bound_reads(self) -> UpperBound:
        return UpperBound(at(self.end), LogEnd(str(self.end)))

    def segments(
        self,
        start: Start,
        since: LogEnd,
        until: LogEnd,
        tables: Sequence[Table] = (),
        number: int = 0,
        slots: int = 1,
    ) -> list[LogSegment]:
        assert since == AT_START
        first = place_of(start.position) // self.segment_length
        starts = range(first * self.segment_length, int(until), self.segment_length)
        stops = [min(start + self.segment_length, int(until)) for start in starts]
        return [
            LogSegment(number, f"log.{first + number}", start, stop, bytes=stop - start)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ]

    def check_since(self, identity: Facts, position: Position) -> None:
        self.check_identity(identity, position)

    def place_of(self, position: Position) -> LogEnd:
        return LogEnd(str(place_of(position)))

    def segments_before(self, segment: LogSegment, count: int) -> list[LogSegment]:
        length = self.segment_length
        return [
            LogSegment(segment.number - back, f"log.{start // length}", start, start + length)
            for back in range(count, 0, -1)
            if (start := segment.start - back * length) >= 0
        ]

    @contextmanager
    def read_segment(
        self,
        segment: LogSegment,
        start: Position,
        tables: Sequence[TrackedTable],
        changes: Callable[[pa.RecordBatch], None] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator[_Segment]:
        yield _Segment(self, segment, place_of(start), tables, changes, progress or (lambda read, images: None))

    def arrow_schema(self, table: Table) -> pa.Schema:
        return SCHEMAS[NAMES.index(str(table.name))]

    def decode_images(
        self,
        table: Table,
        images: pa.BinaryArray,
        nulled: dict[str, int] | None = None,
        names: Collection[str] | None = None,
        odd: list[OddValue] | None = None,
    ) -> pa.RecordBatch:
        return batch_of(NAMES.index(str(table.name)), [tuple(json.loads(one)) for one in images.to_pylist()])


class _Reader:
    lock_seconds = 0.001
    replica_read: ReplicaRead | None = None
    nulled: ClassVar[dict[str, int]] = {}
    odd: ClassVar[list[OddValue]] = []

    def __init__(self, source: HistorySource, table: Table) -> None:
        self._source = source
        self._index = NAMES.index(str(table.name))
        self._position = 0
        self.upper: Position | None = None

    def wait_until_durable(self) -> str:
        return ""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        source = self._source
        moment = random.Random(f"{source.seed} {self._index} {chunk.number}")
        position = len(source.history.entries) if source.late else moment.randint(source.initial, source.end)
        if self._index == KEYLESS:
            self.upper = at(position)
        rows = sorted(source.history.state(position)[self._index].elements(), key=repr)
        inside = [
            row
            for row in rows
            if (chunk.lower is None or row[:1] >= chunk.lower) and (chunk.upper is None or row[:1] < chunk.upper)
        ]
        for start in range(0, len(inside), 4):
            yield batch_of(self._index, inside[start : start + 4])


class _Segment:
    def __init__(
        self,
        source: HistorySource,
        segment: LogSegment,
        initial: int,
        tables: Sequence[TrackedTable],
        tell: Callable[[pa.RecordBatch], None] | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self._tell = tell
        self._progress = progress
        self._logged: list[list[Any]] = []
        self.summary = SegmentSummary(segment)
        self._source = source
        self._initial = initial
        self._tables = {one.index: one for one in tables}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        net: dict[tuple[int, bytes, str | None], list[Any]] = {}
        segment = self.summary.segment
        prepared: dict[str, tuple[ChangeOf, ...]] = {}
        rng = random.Random(f"{self._source.seed} {segment.number}")
        for position in range(segment.start, segment.stop or 0):
            self._progress(position - segment.start, self.summary.row_images)
            if rng.random() < 0.2:
                self._tell_logged()
            if rng.random() < 0.1:
                yield from _batches(net)
                net.clear()
                self.summary.parts += 1
            entry = self._source.history.entries[position]
            order = position * 100
            if entry.kind == "prepare":
                prepared[entry.xid] = entry.changes
            elif entry.kind == "decide" and entry.xid in prepared:
                if position >= self._initial:
                    self._add(net, prepared[entry.xid], order, None)
                    self._log(prepared[entry.xid], order, None)
                del prepared[entry.xid]
            elif entry.kind == "decide" and position >= self._initial:
                self.summary.decided[entry.xid] = order
                self.summary.commits[entry.xid] = Committed(order, str(position), position)
            elif entry.kind == "decide":
                self.summary.rolled_back.append(entry.xid)
            elif position >= self._initial:
                self.summary.transactions += 1
                self._add(net, entry.changes, order, None)
                self._log(entry.changes, order, None)
        for xid, changes in prepared.items():
            self.summary.prepared.append(xid)
            self._add(net, changes, 10**9, xid)
            self._log(changes, 10**9, xid)
        self._tell_logged()
        yield from _batches(net)

    def _log(self, changes: Sequence[ChangeOf], order: int, pending: str | None) -> None:
        place = order // 100
        for table, before, after in changes:
            tracked = self._tables.get(table)
            if tracked is None or not tracked.changes or (pending is None and is_beyond(place, tracked)):
                continue
            images = [None if row is None else image(row) for row in (before, after)]
            point = [None, None] if pending else [str(place), place]
            self._logged.append([table, order, *point, *images, pending])

    def _tell_logged(self) -> None:
        """In the order of the log, table by table; what is pending lies apart."""
        rows = sorted(self._logged, key=lambda row: (row[6] or "", row[0]))
        self._logged = []
        if rows and self._tell is not None:
            columns = zip(*rows, strict=True)
            arrays = [pa.array(values, column.type) for values, column in zip(columns, CHANGE_SCHEMA, strict=True)]
            self._tell(pa.record_batch(arrays, schema=CHANGE_SCHEMA))

    def _add(self, net: dict[Any, Any], changes: Sequence[ChangeOf], order: int, pending: str | None) -> None:
        for suborder, (table, before, after) in enumerate(changes):
            if table not in self._tables:
                continue
            self.summary.row_images += (before is not None) + (after is not None)
            if pending is None and is_beyond(order // 100, self._tables[table]):
                continue
            for row, step in ((before, -1), (after, 1)):
                if row is None:
                    continue
                key = table, key_bytes(table, row), pending
                if table == KEYLESS:
                    net.setdefault(key, [order, suborder, image(row), 0, None])[3] += step
                else:
                    old, new = (
                        image(one) if one is not None and key_of(table, one) == key_of(table, row) else None
                        for one in (before, after)
                    )
                    noted = net.setdefault(key, [order, suborder, old, 0, None])
                    if self._tables[table].forward:
                        noted[4] = new


def _batches(net: Mapping[tuple[int, bytes, str | None], list[Any]]) -> Iterator[pa.RecordBatch]:
    rows = [[table, key, *values[:4], pending, values[4]] for (table, key, pending), values in net.items()]
    for start in range(0, len(rows), 5):
        columns = list(zip(*rows[start : start + 5], strict=True))
        yield pa.record_batch(
            [pa.array(values, column.type) for values, column in zip(columns, DELTA_SCHEMA, strict=True)],
            schema=DELTA_SCHEMA,
        )


SETTINGS = ConnectionSettings("mysql", "nowhere.invalid", 1, "nobody")
