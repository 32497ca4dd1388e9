"""Nights of MySQL tables whose schema changes, without Spark: the copy's rows come from the server itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy, StepOptions
from airflow_provider_cdc.core.run.manifest import InitialPoint
from airflow_provider_cdc.core.tables.table import Evolution, Table, TableName
from airflow_provider_cdc.sources.api.source import AT_START, Start
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.mysql.source import MysqlSource
from harness.mysql_server import MysqlServer
from harness.pipeline import settings_of

Row = tuple[Any, ...]


@dataclass
class Night:
    """A copy of some tables of one schema, and what is done after it."""

    server: MysqlServer
    schema: str
    source: MysqlSource
    point: InitialPoint

    def do(self, *statements: str) -> None:
        with self.server.connect(database=self.schema) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def asked(self, evolutions: dict[TableName, Evolution] | None) -> dict[str, str]:
        point = self.point
        refused = self.source.refusals_since(
            point.identity, point.position, point.tables, None, StepOptions(), evolutions=evolutions
        )
        return {table.name: why for table, why in refused.items()}

    def rows(self, table: Table) -> list[Row]:
        with self.server.connect(database=self.schema) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table.name.name}")
            return [tuple(row) for row in cursor.fetchall()]


def started(server: MysqlServer, schema: str, *statements: str, tables: str = "*") -> Night:
    """Make tables, and begin a night from a copy of them."""
    with server.connect(database=schema) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    source = MysqlSource(settings_of(server))
    plans = source.preflight([f"{schema}.{tables}"])
    return Night(server, schema, source, source.record_initial(plans, LockPolicy()))


def after_the_night(
    night: Night, tables: list[Table], bases: Mapping[TableName, list[Row]]
) -> dict[TableName, Counter[Row]]:
    """Return the rows of the copies with the window's net change, without any code that rolls copies forward."""
    source, (_, end) = night.source, night.source.here()
    counts: dict[TableName, Counter[Row]] = {}
    for table in tables:
        era = table.eras[0]
        new = source.new_columns(table, era)
        constants = {name: values[0].as_py() for name, values in zip(new.schema.names, new.columns, strict=True)}
        places = {column.name: place for place, column in enumerate(era.columns)}
        counts[table.name] = Counter(
            tuple(row[places[one.was]] if one.was else constants[one.name] for one in era.fields)
            for row in bases[table.name]
        )
    start, identity = night.point.position, night.point.identity
    tracked = [TrackedTable(index, table, end, forward=True) for index, table in enumerate(tables)]
    segments = source.segments(Start(start, identity), AT_START, source.place_of(end), tables)
    assert len(segments) >= sum(len(table.eras) for table in tables)
    for segment in segments:
        with source.read_segment(segment, start, tracked) as reader:
            for batch in reader:
                table = tables[batch["table"][0].as_py()]
                befores, afters = (decoded(source, table, batch[name]) for name in ("before", "after"))
                for before, after, count in zip(befores, afters, batch["count"].to_pylist(), strict=True):
                    if before is not None:
                        counts[table.name][before] += count if table.keyless else -1
                    if after is not None:
                        counts[table.name][after] += 1
    assert min(min(rows.values()) for rows in counts.values()) >= 0, counts
    return {name: +rows for name, rows in counts.items()}


def decoded(source: MysqlSource, table: Table, images: pa.BinaryArray) -> list[Row | None]:
    rows = iter(source.decode_images(table, images.drop_null()).to_pylist())
    return [tuple(next(rows).values()) if there else None for there in images.is_valid().to_pylist()]
