"""Nights of PostgreSQL tables whose schema changes, without Spark: the copy's rows come from the server itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import InitialPoint, TablePlan
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.planning.point import record_point
from tests.sources.postgres.standing import RUN_ID, Kept

Row = tuple[Any, ...]


@dataclass
class Night:
    """A copy of some tables, and what is done after it."""

    kept: Kept
    point: InitialPoint

    def do(self, *statements: str) -> None:
        self.kept.run(*statements)

    def asked(self, evolutions: dict[TableName, Evolution] | None, to: str = "") -> dict[str, str]:
        point, wanted = self.point, Lsn.parse(to) if to else None
        refused = self.kept.source.refusals_since(
            point.identity, point.position, point.tables, wanted, self.kept.options, evolutions=evolutions
        )
        return {table.name: why for table, why in refused.items()}

    def rows(self, table: Table) -> list[Row]:
        names = ", ".join(f'"{column.name}"' for column in table.columns)
        sql = f'SELECT {names} FROM "{table.name.name}"'
        return [tuple(map(plain, row)) for row in self.kept.server.query(sql, database=self.kept.database)]

    def plans(self, evolutions: Mapping[TableName, Evolution]) -> list[TablePlan]:
        """Those of the next night."""
        names = [name.name for name in evolutions]
        return [
            replace(plan, base="before", base_position=str(self.point.position), evolution=evolutions[plan.table])
            for plan in self.kept.plans(*names)
        ]

    def next(self, evolutions: Mapping[TableName, Evolution]) -> InitialPoint:
        """Fix the position of the next night."""
        self.kept.keep(*(name.name for name in evolutions))
        return record_point(self.kept.source, self.kept.options, self.plans(evolutions), RUN_ID)


def started(kept: Kept, tables: Sequence[str], *statements: str) -> Night:
    """Make tables, and begin a night from a copy of them."""
    kept.run(*statements, *(f"ALTER TABLE {table} REPLICA IDENTITY FULL" for table in tables))
    kept.keep(*tables)
    point = kept.source.record_initial(kept.plans(*tables), kept.options.lock, RUN_ID)
    kept.source.release(RUN_ID)
    kept.give_up(48, {str(table.name): point.position for table in point.tables})
    return Night(kept, point)


def after_the_night(
    night: Night, point: InitialPoint, tables: Sequence[Table], bases: Mapping[TableName, list[Row]]
) -> dict[TableName, Counter[Row]]:
    """Return the rows of the copies with the window's net change, without any code that rolls copies forward."""
    source, start, end = night.kept.source, night.point.position, point.position
    counts: dict[TableName, Counter[Row]] = {}
    for table in tables:
        counts[table.name] = Counter(map(tuple, bases[table.name]))
        if table.eras:
            (era,) = table.eras
            new = source.new_columns(table, era)
            constants = {
                name: plain(values[0].as_py()) for name, values in zip(new.schema.names, new.columns, strict=True)
            }
            places = {column.name: place for place, column in enumerate(era.columns)}
            counts[table.name] = Counter(
                tuple(row[places[one.was]] if one.was else constants[one.name] for one in era.fields)
                for row in bases[table.name]
            )
    tracked = [TrackedTable(index, table, end, forward=True) for index, table in enumerate(tables)]
    of_copies = Start(start, night.point.identity, kept_by=point.identity)
    for segment in source.segments(of_copies, AT_START, source.place_of(end), tables):
        with source.read_segment(segment, start, tracked) as reader:
            for batch in reader:
                table = tables[batch["table"][0].as_py()]
                befores, afters = (decoded(night, table, batch[name]) for name in ("before", "after"))
                for before, after, count in zip(befores, afters, batch["count"].to_pylist(), strict=True):
                    if before is not None:
                        counts[table.name][before] += count if table.keyless else -1
                    if after is not None:
                        counts[table.name][after] += 1
    assert min((min(rows.values()) for rows in counts.values() if rows), default=0) >= 0, counts
    return {name: +rows for name, rows in counts.items()}


def decoded(night: Night, table: Table, images: pa.BinaryArray) -> list[Row | None]:
    rows = iter(night.kept.source.decode_images(table, images.drop_null()).to_pylist())
    return [tuple(map(plain, next(rows).values())) if there else None for there in images.is_valid().to_pylist()]


def plain(value: Any) -> Any:
    """A value that equals itself. The driver and the copy have the same one, also for an array of numbers."""
    if isinstance(value, list):
        return f"{{{','.join('NULL' if one is None else str(one) for one in value)}}}"
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, datetime) and value.tzinfo:
        return value.astimezone(UTC)
    return "NaN" if value != value else value
