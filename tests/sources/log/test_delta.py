"""A segment's net change as batches: bounded, each of one table, and in an order that is the same across segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables import net_change
from airflow_provider_cdc.core.tables.net_change import Change
from airflow_provider_cdc.core.tables.row_bytes import buckets, encode
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.sources.api.window import BUCKETS, DELTA_SCHEMA, TrackedTable
from airflow_provider_cdc.sources.log import delta
from airflow_provider_cdc.sources.log.delta import NetChange, delta_batches, order_base
from airflow_provider_cdc.sources.log.netting import USED, apply_prepared
from tests.seeds import examples
from tests.sources.log.test_netting import KEYED, KEYLESS, TABLES, changed, counted, left, new

COLUMNS = (Column("id", "bytes", nullable=False), Column("note", "bytes", nullable=True))
TRACKED = (
    TrackedTable(7, Table(TableName("shop", "orders"), COLUMNS, ("id",))),
    TrackedTable(9, Table(TableName("shop", "clicks"), COLUMNS), upper=Lsn(1)),
)
"""A keyed and a keyless table, as `new` counts them, at other places in the run's list of tables."""


def image(*values: bytes | None) -> bytes:
    """Each value behind its length; NULL is the length 255."""
    return b"".join(b"\xff" if value is None else bytes([len(value)]) + value for value in values)


def values_of(stored: bytes) -> list[bytes | None]:
    values: list[bytes | None] = []
    while stored:
        size, stored = stored[0], stored[1:]
        values.append(None if size == 255 else stored[:size])
        stored = stored if size == 255 else stored[size:]
    return values


def decode(table: Table, images: pa.BinaryArray) -> pa.RecordBatch:
    """The rows that `image` made."""
    assert not images.null_count
    rows = [values_of(one) for one in images.to_pylist()]
    assert all(len(row) == len(table.columns) for row in rows)
    return pa.record_batch(
        [pa.array([row[index] for row in rows], pa.binary()) for index in range(len(table.columns))],
        [column.name for column in table.columns],
    )


def canonical(*values: bytes | None) -> bytes:
    """``core.row_bytes`` of one row of byte columns."""
    columns = {str(index): pa.array([value], pa.binary()) for index, value in enumerate(values)}
    found: bytes = encode(pa.record_batch(columns), list(columns))[0].as_py()
    return found


def batches(net: NetChange, segment: int = 0, **more: Any) -> list[pa.RecordBatch]:
    found = list(delta_batches(net, TRACKED, segment, decode, **more))
    for batch in found:
        assert batch.schema == DELTA_SCHEMA
        batch.validate(full=True)
    return found


def rows_of(found: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
    """In the order of the log."""
    return sorted((row for batch in found for row in batch.to_pylist()), key=lambda row: row["order"])


@pytest.mark.slow
def test_no_change_is_no_batch() -> None:
    net = new()
    assert batches(net) == []
    counted(net, KEYLESS, image(b"a", None), 1, 1)
    counted(net, KEYLESS, image(b"a", None), -1, 2)
    assert batches(net) == []


@pytest.mark.slow
def test_a_keyed_table_tells_the_row_before_and_whether_there_was_one() -> None:
    net = new()
    changed(net, KEYED, image(b"a"), None, image(b"a", b"was"), 5)
    changed(net, KEYED, None, image(b"b"), b"", 6)
    # A row can be no bytes at all in the log; that is not the same as no row.
    changed(net, KEYED, image(b"c"), None, b"", 7)
    assert rows_of(batches(net, segment=3)) == [
        {
            "table": 7,
            "key": canonical(key),
            "order": order_base(3) + order,
            "suborder": 0,
            "before": before,
            "count": 0,
            "pending": None,
            "after": None,
        }
        for key, before, order in ((b"a", image(b"a", b"was"), 5), (b"b", None, 6), (b"c", b"", 7))
    ]


def test_a_keyless_table_tells_each_row_and_how_often_it_came_and_went() -> None:
    net = new()
    for order, (row, change) in enumerate(
        [((b"a", None), 1), ((b"a", b""), -1), ((b"a", None), 1), ((b"b", b"x"), 1), ((b"b", b"x"), -1)], 1
    ):
        counted(net, KEYLESS, image(*row), change, order)
    (batch,) = batches(net)
    found = [(row["table"], row["key"], row["before"], row["count"], row["suborder"]) for row in batch.to_pylist()]
    assert found == [
        (9, canonical(b"a", None), image(b"a", None), 2, 0),
        (9, canonical(b"a", b""), image(b"a", b""), -1, 0),
    ]


@pytest.mark.slow
def test_each_batch_is_of_one_table_and_at_most_so_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "BATCH_ROWS", 4)
    net = new()
    for number in range(9):
        changed(net, KEYED, image(b"%d" % number), None, image(b"%d" % number, b"x"), number)
        counted(net, KEYLESS, image(b"%d" % number, b"y"), 1, number)
    found = batches(net)
    assert [(batch.num_rows, batch["table"].unique().to_pylist()) for batch in found] == [
        (4, [7]), (4, [7]), (1, [7]), (4, [9]), (4, [9]), (1, [9])
    ]  # fmt: skip
    assert sorted(row["key"] for row in rows_of(found[:3])) == [canonical(b"%d" % number) for number in range(9)]


@given(st.lists(st.integers(0, 200), min_size=1, max_size=30), st.integers(1, 400))
@settings(max_examples=examples(40), deadline=None)
def test_batches_hold_at_most_so_many_bytes_unless_one_row_is_larger(sizes: list[int], limit: int) -> None:
    net = new()
    for number, size in enumerate(sizes):
        changed(net, KEYED, image(b"%d" % number), None, image(b"%d" % number, b"x" * size), number)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "BATCH_BYTES", limit)
        found = batches(net)
    taken = [
        # As in the arena: the image of the key, the image of the row, and a flag that there is a row.
        [len(image(*values_of(row["before"])[:1])) + len(row["before"]) + 1 for row in batch.to_pylist()]
        for batch in found
    ]
    assert sorted(size for batch in taken for size in batch) == sorted(
        2 * len(image(b"%d" % number)) + size + 2 for number, size in enumerate(sizes)
    )
    for batch, following in zip(taken, [*taken[1:], None], strict=True):
        assert sum(batch) <= limit or len(batch) == 1
        assert following is None or sum(batch) + following[0] > limit


@given(st.sets(st.binary(max_size=9)), st.integers(1, 7))
@settings(max_examples=examples(40), deadline=None)
def test_keys_come_in_the_order_of_their_buckets(keys: set[bytes], at_once: int) -> None:
    net = new()
    for order, key in enumerate(keys):
        changed(net, KEYED, image(key), None, image(key, b"was"), order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "BATCH_ROWS", at_once)
        found = batches(net)
    assert {row["key"]: row["before"] for row in rows_of(found)} == {canonical(key): image(key, b"was") for key in keys}
    bucket = [one for batch in found for one in buckets(batch["key"], BUCKETS).tolist()]
    assert bucket == sorted(bucket)


@pytest.mark.parametrize("limit", [1, 150, 10_000])
def test_large_rows_that_were_added_count_in_a_batch_of_what_is_rolled_forward(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "BATCH_BYTES", limit)
    net = new()
    rows = {image(b"%d" % number): image(b"%d" % number, b"x" * 60) for number in range(9)}
    for order, (key, row) in enumerate(rows.items()):
        # Nothing was there before.
        changed(net, KEYED, None, key, b"", order)
        left(net, KEYED, key, row, order)
    tracked = (replace(TRACKED[0], forward=True), TRACKED[1])
    found = list(delta_batches(net, tracked, 0, decode))
    assert [row["after"] for row in rows_of(found)] == list(rows.values())
    assert [row["before"] for row in rows_of(found)] == [None] * len(rows)
    assert [batch.num_rows for batch in found] == {1: [1] * 9, 150: [2, 2, 2, 2, 1], 10_000: [9]}[limit]


def test_what_waits_for_its_commit_is_told_apart_by_transaction_and_table() -> None:
    net = new()
    changed(net, KEYED, image(b"a"), None, image(b"a", b"settled"), 1)
    for transaction, order in ((1, 2), (2, 4)):
        changed(net, KEYED + TABLES * transaction, image(b"a"), None, image(b"a", b"%d" % transaction), order)
        counted(net, KEYLESS + TABLES * transaction, image(b"b", None), 1, order + 1)
    asked: list[tuple[int, TrackedTable]] = []

    def pending(number: int, one: TrackedTable) -> str:
        asked.append((number, one))
        return f"{number}/{one.index}"

    found = batches(net, pending=pending)
    assert [(row["table"], row["pending"], row["order"], row["suborder"]) for row in rows_of(found)] == [
        (7, None, 1, 0),
        # They are placed by their commit, which is not known here; among themselves by where they stand.
        (7, "0/7", 2, 2),
        (9, "0/9", 3, 3),
        (7, "1/7", 4, 4),
        (9, "1/9", 5, 5),
    ]
    assert len(found) == 5
    assert asked == [(0, TRACKED[0]), (0, TRACKED[1]), (1, TRACKED[0]), (1, TRACKED[1])]


def test_a_transaction_that_was_committed_in_the_segment_stands_at_its_commit() -> None:
    net = new()
    start = int(net.state[USED])
    for order in (1, 2):
        changed(net, KEYED + TABLES, image(b"%d" % order), None, image(b"%d" % order, b"old"), order)
    changed(net, KEYED, image(b"0"), None, image(b"0", b"old"), 5)
    apply_prepared(net.arrays, start, int(net.state[USED]), 0, np.ones(2, np.uint8), net.keyless, 9)
    found = {row["key"]: (row["order"], row["suborder"], row["pending"]) for row in rows_of(batches(net))}
    assert found == {canonical(b"0"): (5, 0, None), canonical(b"1"): (9, 1, None), canonical(b"2"): (9, 2, None)}


KEYS = st.sampled_from([b"", b"a", b"b", b"ab"])
STEPS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from([b"x", b"y"]), st.booleans()), max_size=40)


def cut(draw: st.DataObject, length: int) -> list[tuple[int, int]]:
    """Neighbouring ranges that make up ``range(length)``."""
    edges = sorted(draw.draw(st.lists(st.integers(0, length), max_size=4)))
    return list(zip([0, *edges], [*edges, length], strict=True))


@given(STEPS, st.data())
@settings(deadline=None)
def test_segments_cut_anywhere_compose_to_the_net_change_of_the_whole(
    steps: list[tuple[bytes, bytes | None, bool]], data: st.DataObject
) -> None:
    now: dict[bytes, bytes] = {}
    events: list[dict[bytes, Change[bytes]]] = []
    for key, note, _ in steps:
        before = now.pop(key, None)
        after = None if note is None else image(key, note)
        events.append({key: Change(before, after)})
        if after is not None:
            now[key] = after
    found: list[dict[str, Any]] = []
    for segment, (start, stop) in enumerate(cut(data, len(steps))):
        net = new()
        for number, ((key, _, ends_part), event) in enumerate(
            zip(steps[start:stop], events[start:stop], strict=True), 1
        ):
            change = event[key]
            if change.before is not None:
                changed(net, KEYED, image(key), None, change.before, number)
            elif change.after is not None:
                changed(net, KEYED, None, image(key), b"", number)
            if ends_part:
                # As a reader does when memory is full: the segment continues, and so do its order numbers.
                found += rows_of(batches(net, segment))
                net.clear()
        found += rows_of(batches(net, segment))
    first: dict[bytes, dict[str, Any]] = {}
    for row in data.draw(st.permutations(found)):
        known = first.setdefault(row["key"], row)
        if (row["order"], row["suborder"]) < (known["order"], known["suborder"]):
            first[row["key"]] = row
    # A delete of what is not there is no event.
    expected = {
        canonical(key): change.before
        for key, change in net_change.net(
            {key: change for key, change in event.items() if change != Change(None, None)} for event in events
        ).items()
    }
    assert {key: row["before"] for key, row in first.items()} == expected


@given(st.lists(st.tuples(KEYS, st.sampled_from([1, -1]), st.booleans()), max_size=40), st.data())
@settings(deadline=None)
def test_counts_of_segments_cut_anywhere_add_up_to_those_of_the_whole(
    steps: list[tuple[bytes, int, bool]], data: st.DataObject
) -> None:
    found: list[dict[str, Any]] = []
    for segment, (start, stop) in enumerate(cut(data, len(steps))):
        net = new()
        for number, (key, change, ends_part) in enumerate(steps[start:stop], 1):
            counted(net, KEYLESS, image(key, None), change, number)
            if ends_part:
                found += rows_of(batches(net, segment))
                net.clear()
        found += rows_of(batches(net, segment))
    totals: dict[bytes, int] = {}
    for row in found:
        totals[row["key"]] = totals.get(row["key"], 0) + row["count"]
    changes = [(None, key) if change > 0 else (key, None) for key, change, _ in steps]
    assert {key: total for key, total in totals.items() if total} == {
        canonical(key, None): count for key, count in net_change.net_counts(changes).items()
    }


def test_orders_of_a_later_segment_are_greater_however_many_changes_the_earlier_one_has() -> None:
    most = (1 << 40) - 1
    for segment in (0, 1, 10_000):
        assert order_base(segment) + most < order_base(segment + 1)
    # Orders are stored in 64 bits; MySQL numbers its files up to 2**31, but no run reads that many.
    assert order_base((1 << 23) - 1) + most < 1 << 63
