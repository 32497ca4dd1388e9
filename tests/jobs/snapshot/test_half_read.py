"""All rows of a keyless table are of one exact position: parts that were read at another one are read again. Ranges of
values are the exception: each may be of a position of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.jobs.snapshot.read_part import drop_half_read, files_by_table

TABLES = [
    RunTable(Table(TableName("s", "keyed"), (), ("id",)), "exported", ""),
    RunTable(Table(TableName("s", "keyless"), ()), "exported", ""),
    RunTable(Table(TableName("s", "ranges"), ()), "exported", ""),
]
RANGES = [ValueRange("at", None, 5), ValueRange("at", 5, 9), ValueRange("at", 9, None)]
PARTS = [
    Part(number, number % 3, (Chunk(number, within=RANGES[number // 3] if number % 3 == 2 else None),), 1)
    for number in range(9)
]


def records(uppers: dict[int, str]) -> dict[int, Any]:
    return {number: SimpleNamespace(upper=upper, files=(), odd=()) for number, upper in uppers.items()}


def kept(uppers: dict[int, str]) -> list[int]:
    done = records(uppers)
    drop_half_read(TABLES, PARTS, done)
    return sorted(done)


def test_a_keyed_table_keeps_every_part_that_was_read() -> None:
    assert kept({0: "0/A", 3: "0/B"}) == [0, 3]


def test_a_keyless_table_that_was_not_read_whole_is_read_anew() -> None:
    assert kept({0: "0/A", 1: "0/A", 4: "0/A"}) == [0]


def test_a_keyless_table_that_was_read_at_two_positions_is_read_anew() -> None:
    assert kept({1: "0/A", 4: "0/B", 7: "0/A"}) == []


def test_a_keyless_table_that_was_read_whole_at_one_position_is_kept() -> None:
    assert kept({1: "0/A", 4: "0/A", 7: "0/A"}) == [1, 4, 7]


def test_ranges_of_a_keyless_table_are_kept_one_by_one_with_their_positions() -> None:
    assert kept({2: "0/A", 8: "0/B"}) == [2, 8]
    files = files_by_table(TABLES, PARTS, records({2: "0/A", 5: "0/B", 8: "0/A"}))["s.ranges"]
    assert files.upper == ""
    assert [(unit.within, unit.upper) for unit in files.units] == list(zip(RANGES, ["0/A", "0/B", "0/A"], strict=True))
    whole = files_by_table(TABLES, PARTS, records({2: "0/A", 5: "0/A", 8: "0/A"}))["s.ranges"]
    assert (whole.upper, whole.units) == ("0/A", ())
