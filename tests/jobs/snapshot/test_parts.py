"""Each chunk is read by exactly one part, and no core waits for a large part that started late."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.chunk import Chunk, partition
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.jobs.snapshot.parts import SMALLEST_PART_BYTES, bundle, plan_parts

MIB = 2**20


def entry(name: str, size: int, *, rows: int = 0, key: tuple[str, ...] = ("id",)) -> RunTable:
    return RunTable(Table(TableName("s", name), (), key, rows=rows, bytes=size), "watermark", "")


def chunks(rows: list[int]) -> list[Chunk]:
    return partition([(number,) for number in range(1, len(rows))], rows)


TABLES = st.lists(
    st.tuples(st.integers(0, 2**34), st.lists(st.integers(0, 10**6), min_size=1, max_size=40), st.booleans()),
    min_size=1,
    max_size=5,
)


@given(TABLES, st.integers(1, 64))
def test_every_chunk_is_in_exactly_one_part(tables: list[tuple[int, list[int], bool]], slots: int) -> None:
    entries = [
        entry(str(at), size, rows=sum(rows), key=() if keyless else ("id",))
        for at, (size, rows, keyless) in enumerate(tables)
    ]
    cut = [chunks(rows) for _, rows, _ in tables]
    parts = plan_parts(entries, cut, slots)
    planned = [(part.table, chunk.number) for part in parts for chunk in part.chunks]
    assert sorted(planned) == [(at, chunk.number) for at, own in enumerate(cut) for chunk in own]
    assert [part.number for part in parts] == list(range(len(parts)))
    assert [part.weight for part in parts] == sorted((part.weight for part in parts), reverse=True)
    for at, (_, _, keyless) in enumerate(tables):
        if keyless:
            assert sum(part.table == at for part in parts) == 1


def test_one_huge_table_is_cut_so_that_every_core_has_several_parts() -> None:
    tables = [entry("small", 30 * MIB, rows=300_000), entry("huge", 1000 * MIB, rows=10_000_000)]
    parts = plan_parts(tables, [chunks([100_000] * 3), chunks([100_000] * 100)], slots=4)
    assert sum(part.table == 1 for part in parts) >= 4 * 3
    assert max(part.weight for part in parts) <= FILE_BYTES


def test_a_small_table_is_not_cut_to_pieces() -> None:
    parts = plan_parts([entry("small", 4 * MIB, rows=100_000)], [chunks([1000] * 100)], slots=64)
    assert len(parts) == 1
    assert SMALLEST_PART_BYTES > 4 * MIB


def test_a_keyless_table_is_cut_only_where_many_sessions_share_one_position() -> None:
    table = entry("keyless", 1000 * MIB, rows=10_000_000, key=()).table
    parts = {
        consistency: plan_parts([RunTable(table, consistency, "")], [chunks([100_000] * 100)], slots=4)
        for consistency in ("lock", "exported")
    }
    assert len(parts["lock"]) == 1
    assert len(parts["exported"]) > 8


def test_no_estimates_at_all_still_give_parts() -> None:
    parts = plan_parts([entry("unknown", 0), entry("keyless", 0, key=())], [chunks([0, 0, 0]), chunks([0])], slots=2)
    assert sum(len(part.chunks) for part in parts) == 4


@given(
    st.lists(st.tuples(st.integers(1, 2 * SMALLEST_PART_BYTES), st.booleans()), min_size=1, max_size=300),
    st.integers(1, 16),
)
def test_only_small_parts_share_a_task_and_none_with_one_that_may_wait_for_a_lock(
    made: list[tuple[int, bool]], slots: int
) -> None:
    tables = [
        RunTable(entry(str(at), size, key=() if keyless else ("id",)).table, "lock" if keyless else "watermark", "")
        for at, (size, keyless) in enumerate(made)
    ]
    parts = plan_parts(tables, [chunks([0]) for _ in tables], slots)
    sizes = bundle(parts, tables, slots)
    assert sum(sizes) == len(parts)
    ahead = iter(parts)
    for size in sizes:
        together = [next(ahead) for _ in range(size)]
        assert together
        if size > 1:
            assert sum(part.weight for part in together) <= SMALLEST_PART_BYTES
            assert all(tables[part.table].consistency == "watermark" for part in together)


def test_hundreds_of_tiny_tables_are_few_tasks_and_still_enough_for_all_cores() -> None:
    tables = [entry(str(at), 16 * 1024) for at in range(500)]
    parts = plan_parts(tables, [chunks([2]) for _ in tables], slots=4)
    assert 8 <= len(bundle(parts, tables, slots=4)) <= 20


def test_tables_that_count_as_a_whole_are_read_last_and_one_by_one() -> None:
    wholes = [replace(entry(name, 500 * MIB, rows=10, key=()), consistency="exported") for name in ("one", "two")]
    ranges = [replace(chunk, within=ValueRange("at")) for chunk in chunks([1] * 10)]
    entries = [wholes[0], entry("keyed", 50 * MIB, rows=10), wholes[1], replace(wholes[0], reason="in ranges")]
    parts = plan_parts(entries, [chunks([1] * 10), chunks([1] * 10), chunks([1] * 10), ranges], slots=2)
    assert [table for table, _ in groupby(part.table for part in parts)][-3:] == [1, 0, 2]


def test_a_range_of_values_is_in_one_part_with_all_of_its_partitions() -> None:
    ranges = [ValueRange("at", number or None, number + 1 if number < 5 else None) for number in range(6)]
    cut = [Chunk(number, rows=10**5, within=ranges[number // 3]) for number in range(18)]
    table = replace(entry("events", 2000 * MIB, rows=18 * 10**5, key=()), consistency="exported")
    parts = plan_parts([table], [cut], slots=2)
    assert len(parts) > 1
    for part in parts:
        assert len(part.chunks) % 3 == 0
        assert part.within == ValueRange("at", part.chunks[0].within.least, part.chunks[-1].within.beyond)  # type: ignore[union-attr]


def test_ranges_of_values_share_one_lock_and_parts_of_a_keyed_table_do_not() -> None:
    keyed = replace(entry("keyed", 2000 * MIB, rows=10**6), consistency="lock")
    divided = replace(entry("divided", 2000 * MIB, rows=10**6, key=()), consistency="lock")
    ranges = [Chunk(number, rows=10**5, within=ValueRange("at", number, number + 1)) for number in range(10)]
    parts = plan_parts([keyed, divided], [chunks([10**5] * 10), ranges], slots=2)
    sizes = bundle(parts, [keyed, divided], slots=2)
    of_ranges = sum(part.table == 1 for part in parts)
    assert of_ranges > 1
    assert sizes == [of_ranges, *[1] * (len(parts) - of_ranges)]
    # So do tables whose parents must not change before the read: a second lock would come later.
    parent = entry("parent", MIB).table
    child = replace(divided, table=replace(divided.table, cascades_from=(parent,)))
    uneven = [replace(chunk, rows=10**5 * (1 + chunk.number % 3)) for chunk in ranges]
    parts = plan_parts([keyed, child, child], [chunks([10**5] * 10), uneven, uneven], slots=2)
    assert [table for table, _ in groupby(part.table for part in parts)] == [1, 2, 0]
    sizes = bundle(parts, [keyed, child, child], slots=2)
    assert sizes[:2] == [sum(part.table == table for part in parts) for table in (1, 2)]
