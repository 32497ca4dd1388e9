"""Overlapping chunks are detected from the rows that were read, whatever was wrong with the bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.jobs.snapshot.parts import Extent, Part, check_key_order
from airflow_provider_cdc.jobs.snapshot.read_part import ReadPart
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql import MysqlSource
from airflow_provider_cdc.sources.mysql.chunking import axes, chunks
from airflow_provider_cdc.sources.mysql.server.session import query, session
from airflow_provider_cdc.sources.mysql.tables.schema import read_tables
from harness.mysql_server import MysqlServer

ONE = Table(TableName("s", "t"), (), ("k",))
TWO = replace(ONE, key=("k", "l"))


@pytest.mark.parametrize(
    "extents",
    [
        [(0, 1, 5), (1, 5, 9)],
        [(0, 1, 5), (1, 4, 4)],
        [(2, 3, 4), (0, 1, 2), (1, 0, 0)],
        [(0, 1, 2), (4, 3, 5), (4, 3, 5)],
        [(0, 1, 1), (0, 1, 1)],
        [(0, "00", "ff"), (1, "fe", "ff")],
    ],
)
def test_chunks_that_overlap(extents: Sequence[Extent]) -> None:
    with pytest.raises(CopyMismatch, match="overlap") as raised:
        check_key_order(ONE, extents)
    assert raised.value.where == "s.t"


def test_chunks_that_do_not() -> None:
    check_key_order(ONE, [])
    check_key_order(ONE, [(3, 7, 9), (0, -5, 2), (1, 3, 6)])
    # The rows of one value of the first column may fill several chunks.
    check_key_order(TWO, [(0, 1, 5), (1, 5, 5), (2, 5, 9)])
    with pytest.raises(CopyMismatch):
        check_key_order(TWO, [(0, 1, 5), (1, 4, 9)])


def test_bounds_that_mean_something_else_where_they_are_read(
    mysql: MysqlServer, schema: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the bounds and the check as they were, times of day were published two and three times."""
    mysql.query(f"CREATE TABLE {schema}.t (k TIME PRIMARY KEY)")
    with mysql.connect(database=schema) as connection:
        query(connection, "SET cte_max_recursion_depth = 86400")
        query(
            connection,
            "INSERT INTO t WITH RECURSIVE c (n) AS (SELECT 0 UNION ALL SELECT n + 7 FROM c WHERE n < 86300) "
            "SELECT SEC_TO_TIME(n) FROM c",
        )
        query(connection, "ANALYZE NO_WRITE_TO_BINLOG TABLE t")

    def untyped(column: Column) -> axes.Axis | None:
        found = axes.axis_of(column)
        assert found is not None
        return replace(found, bound="CAST({} AS TIME(0))")

    monkeypatch.setattr(chunks, "axis_of", untyped)
    monkeypatch.setattr(chunks, "increasing", lambda connection, axes, bounds: range(len(bounds)))
    source = MysqlSource(ConnectionSettings("mysql", mysql.host, mysql.port, "root"))
    with session(source.settings) as connection:
        (table,) = read_tables(connection, [TableName(schema, "t")])
    plan = source.plan_chunks(table, 1000)
    assert len(plan) > 5
    entry = RunTable(table, "watermark", "")
    run = Storage(tmp_path.as_uri())
    read = ReadPart(Staging(run), "plan", source, (entry,), LockPolicy(), 0.0)
    with pytest.raises(CopyMismatch, match="overlap"):
        read(Part(0, 0, tuple(plan), 1))
    # It is also detected if each chunk is read by another task.
    records = [read(Part(chunk.number, 0, (chunk,), 1)) for chunk in plan]
    assert sum(record.rows for record in records) > table.rows * 1.2
    with pytest.raises(CopyMismatch, match="overlap"):
        check_key_order(table, [extent for record in records for extent in record.extents])
    monkeypatch.undo()
    sound = read(Part(0, 0, tuple(source.plan_chunks(table, 1000)), 1))
    assert sound.rows == len(range(0, 86307, 7))
    assert sound.chunks > 5
    assert Chunk(0) not in plan
