"""All rows of a keyless table are of one exact position: parts that were read at another one are read again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.jobs.snapshot.parts import Part
from airflow_provider_cdc.jobs.snapshot.step import _drop_half_read

KEYED = RunTable(Table(TableName("s", "keyed"), (), ("id",)), "exported", "")
KEYLESS = RunTable(Table(TableName("s", "keyless"), ()), "exported", "")
PARTS = [Part(number, number % 2, (Chunk(number),), 1) for number in range(6)]
STEP: Any = SimpleNamespace(tables=[KEYED, KEYLESS])


def kept(uppers: dict[int, str]) -> list[int]:
    records: dict[int, Any] = {number: SimpleNamespace(upper=upper) for number, upper in uppers.items()}
    _drop_half_read(STEP, PARTS, records)
    return sorted(records)


def test_a_keyed_table_keeps_every_part_that_was_read() -> None:
    assert kept({0: "0/A", 2: "0/B"}) == [0, 2]


def test_a_keyless_table_that_was_not_read_whole_is_read_anew() -> None:
    assert kept({0: "0/A", 1: "0/A", 3: "0/A"}) == [0]


def test_a_keyless_table_that_was_read_at_two_positions_is_read_anew() -> None:
    assert kept({1: "0/A", 3: "0/B", 5: "0/A"}) == []


def test_a_keyless_table_that_was_read_whole_at_one_position_is_kept() -> None:
    assert kept({1: "0/A", 3: "0/A", 5: "0/A"}) == [1, 3, 5]
