"""A run as the jobs make it, without Spark and without a lake: only the contract of its source."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy, TableOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import AT_START, Source, Start
from airflow_provider_cdc.sources.api.window import DELTA_SCHEMA, TrackedTable
from tests.contract.databases import Database

RUN_ID = "20260101T000000Z-00000000"
LOCK = LockPolicy()

Anything = TypeVar("Anything")


def sent(value: Anything) -> Anything:
    """What an executor gets of what the driver has."""
    copy: Anything = pickle.loads(pickle.dumps(value))
    return copy


def written(value: Any) -> Any:
    """What a later step finds in the manifest."""
    return json.loads(json.dumps(value))


def row_keys(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> list[bytes]:
    """``core.row_bytes`` of some columns, row by row."""
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    return [one for batch in batches for one in row_bytes.encode(batch, columns).to_pylist()]


@dataclass
class Window:
    """The net changes of all segments, composed. ``changes`` are the rows as they came.

    ``before`` has for each touched key of a keyed table the bytes of the whole row, and ``counts`` for each row of a
    keyless table how many there are more than before: those that are null or zero are there, too.
    """

    changes: list[dict[str, Any]]
    before: dict[str, dict[bytes, bytes | None]]
    counts: dict[str, Counter[bytes]]


class Begun:
    """A run on some tables, up to its initial position, and what follows."""

    def __init__(
        self,
        database: Database,
        *tables: str,
        consistency: str = "auto",
        unrepresentable: str = "error",
        run_id: str = RUN_ID,
    ) -> None:
        self.source: Source = open_source(database.settings)
        patterns = [str(database.name(table)) for table in tables]
        plans = self.source.preflight(patterns, TableOptions(consistency, unrepresentable))
        self.plans = {plan.table.name: decode(TablePlan, written(encode(plan)), "") for plan in plans}
        point = self.source.record_initial(list(self.plans.values()), LOCK, run_id)
        for left in point.superseded:
            self.source.discard(left)
        self.run_id = run_id
        self.position = point.position
        self.identity = Facts.parse(written(encode(point.identity)))
        self.tables = {table.name.name: decode(Table, written(encode(table)), "") for table in point.tables}

    def release(self) -> None:
        """What the last step does."""
        self.source.release(self.run_id)

    def read_all(self, chunk_rows: int = 100_000) -> dict[str, pa.Table]:
        """All rows of all tables, each at the consistency that is planned for it."""
        with self.source.shared_reads({plan.consistency for plan in self.plans.values()}, LOCK) as shared:
            return {
                name: read_chunks(
                    shared, table, self.plans[name].consistency, self.source.plan_chunks(table, chunk_rows)
                )
                for name, table in self.tables.items()
            }

    def log_end(self) -> LogEnd:
        return self.source.bound_reads().log_end

    def window(self, uppers: Position | None = None, source: Source | None = None) -> Window:
        """The net change from the initial position to now.

        :param uppers: where the keyless tables were read; None: now.
        """
        bound = self.source.bound_reads()
        self.source.check_tables(list(self.tables.values()))
        return self.window_to(bound.log_end, uppers or bound.upper)

    def window_to(self, log_end: LogEnd, uppers: Position) -> Window:
        """The net change from the initial position to an end of the log."""
        self.source.check_identity(self.identity, self.position)
        tracked = self.tracked(uppers)
        segments = self.source.segments(Start(self.position, self.identity), AT_START, log_end)
        assert [segment.number for segment in segments] == list(range(len(segments)))
        changes: list[dict[str, Any]] = []
        for segment in segments:
            with sent(self.source).read_segment(sent(segment), self.position, sent(tracked)) as reader:
                batches = list(reader)
            assert all(batch.schema.equals(DELTA_SCHEMA) for batch in batches)
            rows = [row for batch in batches for row in batch.to_pylist()]
            touched = Counter((row["table"], row["key"], row["pending"]) for row in rows)
            assert set(touched.values()) <= {1}, "a key has two net changes in one segment"
            changes += rows
        return self._composed(changes)

    def tracked(self, uppers: Position) -> list[TrackedTable]:
        tables = enumerate(self.tables.values())
        return [TrackedTable(index, table, uppers if table.keyless else None) for index, table in tables]

    def _composed(self, changes: list[dict[str, Any]]) -> Window:
        window = Window(changes, {}, {})
        assert all(row["pending"] is None for row in changes)
        in_order = sorted(changes, key=lambda row: (row["order"], row["suborder"]))
        for index, (name, table) in enumerate(self.tables.items()):
            own = [row for row in in_order if row["table"] == index]
            images = [row["before"] for row in own]
            rows = iter(self.decoded(name, [image for image in images if image is not None]))
            befores = [None if image is None else next(rows) for image in images]
            if table.keyless:
                counts = window.counts[name] = Counter()
                for row, before in zip(own, befores, strict=True):
                    assert row["key"] == before, "the key of a keyless row is the row"
                    counts[row["key"]] += row["count"]
            else:
                first = window.before[name] = {}
                for row, before in zip(own, befores, strict=True):
                    assert row["count"] == 0
                    first.setdefault(row["key"], before)
        return window

    def decoded(self, name: str, images: list[bytes]) -> list[bytes]:
        """The bytes of the rows that images are of."""
        table = self.tables[name]
        batch = self.source.decode_images(table, pa.array(images, pa.binary()))
        assert batch.schema.equals(self.source.arrow_schema(table))
        return row_keys(batch, batch.schema.names)


def read_chunks(source: Source, table: Table, consistency: str, chunks: Sequence[Chunk]) -> pa.Table:
    """What a task reads."""
    schema = source.arrow_schema(table)
    with sent(source).reader(sent(table), consistency, LOCK) as reader:
        batches = [batch for chunk in chunks for batch in reader.read(sent(chunk))]
    assert all(batch.schema.equals(schema) for batch in batches)
    return pa.Table.from_batches(batches, schema)


Begin = Callable[..., Begun]
"""The fixture ``begin``: makes runs on tables of the test's database."""
