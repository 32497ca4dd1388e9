"""The hash table behind a net change, compared with plain Python while it grows and moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import Bytes, Int64s, copy_bytes, kernel
from airflow_provider_cdc.sources.log import delta
from airflow_provider_cdc.sources.log.delta import NetChange
from airflow_provider_cdc.sources.log.netting import (
    COUNT,
    HEADER,
    LENGTHS,
    NO_ROW,
    ORDER,
    SUBORDER,
    USED,
    Net,
    apply_prepared,
    count,
    has_room,
    hash_key,
    key_place,
    leave,
    touch,
)
from tests.seeds import examples

KEYED, KEYLESS = 0, 1
"""The tables of the tests."""
TABLES = 2
NONE: Int64s = np.empty(0, np.int64)
WORDS = 2 * HEADER + 40


@kernel
def _change(net: Net, group: int, data: Bytes, keys: Int64s, row: int, row_bytes: int, order: int) -> bool:
    """``keys``: where the key before and the key after begin and end in ``data``; -1 if there is none."""
    if not has_room(net, 2, WORDS):
        return False
    if keys[0] >= 0:
        copy_bytes(net.bytes, key_place(net.state), data, keys[0], keys[1] - keys[0])
        touch(net, group, keys[1] - keys[0], data, row, row_bytes, order)
    if keys[2] >= 0:
        copy_bytes(net.bytes, key_place(net.state), data, keys[2], keys[3] - keys[2])
        touch(net, group, keys[3] - keys[2], data, 0, NO_ROW, order)
    return True


@kernel
def _leave(net: Net, group: int, data: Bytes, key_bytes: int, row_bytes: int, order: int) -> bool:
    if not has_room(net, 2, WORDS):
        return False
    copy_bytes(net.bytes, key_place(net.state), data, 0, key_bytes)
    touch(net, group, key_bytes, data, 0, NO_ROW, order)
    copy_bytes(net.bytes, key_place(net.state), data, 0, key_bytes)
    leave(net, group, key_bytes, data, key_bytes, row_bytes, order)
    return True


@kernel
def _count(net: Net, group: int, data: Bytes, size: int, change: int, order: int) -> bool:
    if not has_room(net, 1, WORDS):
        return False
    copy_bytes(net.bytes, key_place(net.state), data, 0, size)
    count(net, group, size, change, order)
    return True


def new() -> NetChange:
    return NetChange(np.array([0, 1], np.uint8))


def changed(net: NetChange, group: int, before: bytes | None, after: bytes | None, row: bytes, order: int) -> None:
    data = np.frombuffer((before or b"") + (after or b"") + row + b"!", np.uint8).copy()
    first, second = len(before or b""), len(before or b"") + len(after or b"")
    keys = np.array([0 if before is not None else -1, first, first if after is not None else -1, second], np.int64)
    while not _change(net.arrays, group, data, keys, second, len(row), order):
        net.reserve(2, WORDS, NONE)


def counted(net: NetChange, group: int, row: bytes, change: int, order: int) -> None:
    data = np.frombuffer(row + b"!", np.uint8).copy()
    while not _count(net.arrays, group, data, len(row), change, order):
        net.reserve(1, WORDS, NONE)


def left(net: NetChange, group: int, key: bytes, row: bytes | None, order: int) -> None:
    data = np.frombuffer(key + (row or b"") + b"!", np.uint8).copy()
    while not _leave(net.arrays, group, data, len(key), NO_ROW if row is None else len(row), order):
        net.reserve(2, WORDS, NONE)


def last_rows(net: NetChange) -> dict[tuple[int, bytes], bytes | None]:
    """By group and key: the row after the last change."""
    found = {}
    records, groups = net.records()
    for record, last, group in zip(records.tolist(), net.last_rows(records).tolist(), groups.tolist(), strict=True):
        key_bytes = int(net.arena[record + LENGTHS]) >> 32
        row_bytes = (int(net.arena[last + LENGTHS]) & 0xFFFFFFFF) - 1
        at = 8 * (record + HEADER)
        row_at = 8 * (last + HEADER) + (key_bytes + 7) // 8 * 8
        row = net.bytes[row_at : row_at + row_bytes].tobytes() if row_bytes >= 0 else None
        found[group, net.bytes[at : at + key_bytes].tobytes()] = row
    return found


def contents(net: NetChange) -> dict[tuple[int, bytes], tuple[bytes | None, int, int]]:
    """By group and key: the row before, the order, and the suborder or the count."""
    found = {}
    records, groups = net.records()
    for record, group in zip(records.tolist(), groups.tolist(), strict=True):
        lengths = int(net.arena[record + LENGTHS])
        key_bytes, row_bytes = lengths >> 32, (lengths & 0xFFFFFFFF) - 1
        at = 8 * (record + HEADER)
        row_at = at + (key_bytes + 7) // 8 * 8
        key = net.bytes[at : at + key_bytes].tobytes()
        row = net.bytes[row_at : row_at + row_bytes].tobytes() if row_bytes >= 0 else None
        found[group, key] = (row, int(net.arena[record + ORDER]), int(net.arena[record + COUNT]))
    assert list(groups) == sorted(groups)
    return found


KEYS = st.one_of(st.binary(max_size=3), st.sampled_from([b"12345678", b"123456789", b"x" * 40]))
CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.one_of(st.none(), KEYS), st.one_of(st.none(), KEYS), st.binary(max_size=30)),
    max_size=60,
)


@given(CHANGES)
def test_of_each_key_the_first_change_stays(
    changes: list[tuple[int, bytes | None, bytes | None, bytes]],
) -> None:
    net = new()
    expected: dict[tuple[int, bytes], tuple[bytes | None, int, int]] = {}
    for order, (transaction, before, after, row) in enumerate(changes, 1):
        group = KEYED + TABLES * transaction
        changed(net, group, before, after, row, order)
        if before is not None:
            expected.setdefault((group, before), (row, order, 0))
        if after is not None:
            expected.setdefault((group, after), (None, order, 0))
    assert contents(net) == expected


@given(st.lists(st.tuples(st.integers(0, 2), KEYS, st.one_of(st.none(), st.binary(min_size=1, max_size=30)))))
def test_of_each_key_the_last_row_stays(changes: list[tuple[int, bytes, bytes | None]]) -> None:
    net = new()
    expected = {}
    for order, (transaction, key, row) in enumerate(changes, 1):
        left(net, KEYED + TABLES * transaction, key, row, order)
        expected[KEYED + TABLES * transaction, key] = row
    assert last_rows(net) == expected
    net.reserve(2, WORDS, NONE)
    assert last_rows(net) == expected


def test_it_grows_where_addresses_are_as_scarce_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "_USUAL_WORDS", 1 << 58)
    net = new()
    for number in range(3000):
        changed(net, KEYED, b"%d" % number, None, b"x" * 200, number)
    assert net.used_bytes > 8 * delta._FIRST_WORDS
    assert len(net.records()[0]) == 3000


def test_last_rows_survive_while_it_grows() -> None:
    net = new()
    for order in range(30_000):
        left(net, KEYED, (order % 7_000).to_bytes(4, "big"), b"row" * (order % 9 + 1), order)
    found = last_rows(net)
    assert found == {
        (KEYED, key.to_bytes(4, "big")): b"row" * (max(range(key, 30_000, 7_000)) % 9 + 1) for key in range(7_000)
    }


@given(
    st.dictionaries(KEYS, st.binary(min_size=1, max_size=9), max_size=5),
    st.dictionaries(KEYS, st.one_of(st.none(), st.binary(min_size=1, max_size=9)), max_size=5),
    st.dictionaries(KEYS, st.binary(min_size=1, max_size=9), max_size=5),
    st.booleans(),
)
def test_what_a_prepared_transaction_left_counts_at_its_commit(
    before: dict[bytes, bytes], prepared: dict[bytes, bytes | None], after: dict[bytes, bytes], counts: bool
) -> None:
    net = new()
    for key, row in before.items():
        left(net, KEYED, key, row, 1)
    start = int(net.state[USED])
    for key, last in prepared.items():
        left(net, KEYED + TABLES, key, b"first", 2)
        left(net, KEYED + TABLES, key, last, 3)
    stop = int(net.state[USED])
    # Other transactions that change these keys meanwhile have to wait.
    others = {key: row for key, row in after.items() if key not in prepared}
    for key, row in others.items():
        left(net, KEYED, key, row, 4)
    apply_prepared(net.arrays, start, stop, 0, np.array([counts, 0], np.uint8), net.keyless, 5)
    for key, row in after.items():
        left(net, KEYED, key, row, 6)
    expected = {**before, **others, **(prepared if counts else {}), **after}
    assert last_rows(net) == {(KEYED, key): row for key, row in expected.items()}


@given(st.lists(st.tuples(KEYS, st.sampled_from([1, -1])), max_size=80))
def test_rows_without_a_key_are_counted_and_those_that_cancel_out_are_gone(changes: list[tuple[bytes, int]]) -> None:
    net = new()
    counts: dict[bytes, int] = {}
    for order, (row, change) in enumerate(changes, 1):
        counted(net, KEYLESS, row, change, order)
        counts[row] = counts.get(row, 0) + change
    assert {row: found[2] for (_, row), found in contents(net).items()} == {row: n for row, n in counts.items() if n}


def test_nothing_is_lost_while_it_grows_and_marks_follow_their_records() -> None:
    net = new()
    marks: Int64s = np.empty(0, np.int64)
    for order in range(20_000):
        if order == 5_000:
            marks = np.array([net.state[USED]], np.int64)
        counted(net, KEYLESS, b"comes and goes", 1 if order % 2 else -1, order)
        changed(net, KEYED, order.to_bytes(4, "big"), None, b"row %d" % order, order)
        if order == 10_000:
            net.reserve(2, WORDS, marks)
    found = contents(net)
    assert len(found) == 20_000
    assert all(found[KEYED, order.to_bytes(4, "big")] == (b"row %d" % order, order, 0) for order in range(20_000))
    assert net.arena[marks[0] + ORDER] >= 5_000
    net.clear()
    assert contents(net) == {}


@given(st.data())
@settings(max_examples=examples(50))
def test_what_a_prepared_transaction_did_counts_at_its_commit_and_only_where_it_counts(data: st.DataObject) -> None:
    net = new()
    before, after = data.draw(st.sets(st.binary(min_size=1, max_size=1))), data.draw(st.sets(KEYS, max_size=9))
    for key in before:
        changed(net, KEYED, key, None, b"settled", 1)
        counted(net, KEYLESS, key, 1, 1)
    start = int(net.state[USED])
    for order, key in enumerate(sorted(after), 2):
        changed(net, KEYED + TABLES, key, None, b"prepared", order)
        counted(net, KEYLESS + TABLES, key, -1, order)
    counts = np.array([data.draw(st.booleans()), data.draw(st.booleans())], np.uint8)
    apply_prepared(net.arrays, start, int(net.state[USED]), 0, counts, net.keyless, 100)
    found = contents(net)
    keyed = {key: value for (group, key), value in found.items() if group == KEYED}
    keyless = {key: value[2] for (group, key), value in found.items() if group == KEYLESS}
    assert len(found) == len(keyed) + len(keyless)
    orders = {key: order for order, key in enumerate(sorted(after), 2)}
    late = {key: (b"prepared", 100, orders[key]) for key in after - before} if counts[KEYED] else {}
    assert SUBORDER == COUNT
    assert keyed == dict.fromkeys(before, (b"settled", 1, 0)) | late
    total = {key: (key in before) - (bool(counts[KEYLESS]) and key in after) for key in before | after}
    assert keyless == {key: n for key, n in total.items() if n}


@kernel
def _hashed(data: Bytes, size: int, group: int) -> int:
    return hash_key(data, 0, size, group)


@kernel
def _hashed_where_all_is_known(data: Bytes) -> tuple[int, int, int]:
    return hash_key(data, 0, 5, 0), hash_key(data, 0, 8, 1), hash_key(data, 0, 13, 2)


@pytest.mark.slow
def test_a_key_has_one_hash_wherever_that_is_compiled_into() -> None:
    """LLVM takes it that no signed product overflows: where it knew group and size, all keys had the same hash."""
    for number in range(100):
        data = np.frombuffer(number.to_bytes(16, "little"), np.uint8)
        assert _hashed_where_all_is_known(data) == tuple(
            _hashed(data, size, group) for size, group in ((5, 0), (8, 1), (13, 2))
        )
