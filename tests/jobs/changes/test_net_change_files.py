"""The tasks compose net changes as ``core.net_change`` does, however the window is divided."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.tables import net_change, row_bytes
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.log.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.window import BUCKETS, DELTA_SCHEMA, LogSegment, SegmentSummary
from tests.seeds import examples

KEYED, KEYLESS = 0, 1
Event = tuple[int, bytes, bytes | None, int]

EVENTS = st.lists(
    st.tuples(
        st.sampled_from([KEYED, KEYLESS]), st.binary(max_size=1), st.none() | st.binary(max_size=2), st.integers(-2, 2)
    ),
    max_size=30,
)


def after_of(order: int) -> bytes | None:
    """What the change of an order left."""
    return None if order % 4 == 3 else b"%d" % order


def changes(events: list[tuple[int, Event]]) -> pa.Table:
    rows: list[tuple[Any, ...]] = [
        (table, key, order, order % 3, before, 0, None, after_of(order))
        if table == KEYED
        else (table, key, order, order % 3, key, count, None, None)
        for order, (table, key, before, count) in events
    ]
    columns = list(zip(*rows, strict=True)) or [()] * len(DELTA_SCHEMA)
    arrays = [pa.array(values, column.type) for values, column in zip(columns, DELTA_SCHEMA, strict=True)]
    return pa.table(arrays, schema=DELTA_SCHEMA)


def composed(rows: pa.Table, *, forward: bool) -> pa.Table:
    return net_change_files.compose(
        net_change_files.towards(rows, [KEYLESS], forward=forward), [KEYLESS], forward=forward
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(EVENTS, st.booleans(), st.sampled_from([1, 4, 1 << 30]), st.randoms(use_true_random=False))
def test_composing_is_netting_in_any_order_of_rows(
    events: list[Event], forward: bool, array_bytes: int, rng: Any
) -> None:
    windows = [
        {key: net_change.Change(before, after_of(order))}
        for order, (table, key, before, _) in enumerate(events)
        if table == KEYED
    ]
    keyed = net_change.towards(net_change.net(windows), forward=forward)
    counts: dict[bytes, int] = {}
    for table, key, _, count in events:
        if table == KEYLESS:
            counts[key] = counts.get(key, 0) + (count if forward else -count)

    ordered = list(enumerate(events))
    rng.shuffle(ordered)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net_change_files, "_ARRAY_BYTES", array_bytes)
        found = composed(net_change_files.in_buckets(changes(ordered)), forward=forward)
    assert found.schema == net_change_files.TOWARDS_SCHEMA
    rows = found.to_pylist()

    # A reader of some buckets of a table finds them together.
    assert rows == sorted(rows, key=lambda row: (row["table"], row["bucket"]))
    assert {row["key"]: row["now"] for row in rows if row["table"] == KEYED} == {k: one.now for k, one in keyed.items()}
    # Only a copy has an exact position.
    was = {key: one.was if forward else None for key, one in keyed.items()}
    assert {row["key"]: row["was"] for row in rows if row["table"] == KEYED} == was
    assert all((row["key"], None) == (row["now"], row["was"]) for row in rows if row["table"] == KEYLESS)
    assert {row["key"]: row["count"] for row in rows if row["table"] == KEYLESS} == {
        k: n for k, n in counts.items() if n
    }
    assert len(rows) == len({(row["table"], row["key"]) for row in rows})


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(EVENTS, st.integers(1, 4), st.integers(1, 40), st.booleans(), st.randoms(use_true_random=False))
def test_composing_in_portions_is_composing_at_once(
    events: list[Event], cuts: int, size: int, in_order: bool, rng: Any
) -> None:
    ordered = list(enumerate(events))
    segments = [
        net_change_files.towards(net_change_files.in_buckets(changes(ordered[cut::cuts])), [KEYLESS], forward=True)
        for cut in range(cuts)
    ]
    at_once = net_change_files.compose(pa.concat_tables(segments), [KEYLESS], forward=True)
    if not in_order:
        # As the files of a segment that was netted in parts are.
        segments = [one.take(pa.array(rng.sample(range(one.num_rows), one.num_rows), pa.int64())) for one in segments]
    portions = list(net_change_files.portions(segments, size))
    assert all(portions)
    found = pa.concat_tables(
        net_change_files.compose(one, [KEYLESS], forward=True)
        for one in [*portions, net_change_files.TOWARDS_SCHEMA.empty_table()]
    )
    places = list(zip(found["table"].to_pylist(), found["bucket"].to_pylist(), strict=True))
    assert places == sorted(places)
    # Which of the keys in a bucket comes first does not matter.
    in_any_order = [("table", "ascending"), ("bucket", "ascending"), ("key", "ascending")]
    assert found.sort_by(in_any_order).to_pylist() == at_once.sort_by(in_any_order).to_pylist()
    for one, following in pairwise(portions):
        fewest = len(set(zip(one["table"].to_pylist(), one["bucket"].to_pylist(), strict=True)))
        assert one.num_rows <= size or fewest == 1
        assert one.num_rows + following.num_rows > size or not following.num_rows


@pytest.mark.long
def test_what_is_composed_may_be_more_than_one_array_holds() -> None:
    # All rows of a piece have the same key, and the pieces the same memory.
    piece = changes([(order, (KEYED, b"k", b"x" * 2**20, 0)) for order in range(600)])
    keys = [bytes([number]) for number in range(4)]
    pieces = [piece.set_column(1, DELTA_SCHEMA.field("key"), pa.array([key] * 600)) for key in keys]
    rows = pa.concat_tables([net_change_files.in_buckets(one) for one in pieces])
    assert rows["before"].nbytes > 2**31
    for forward, near, far in (True, "now", "was"), (False, "was", "now"):
        found = composed(rows, forward=forward)
        assert sorted(found["key"].to_pylist()) == keys
        assert found[far].to_pylist() == [b"x" * 2**20] * 4
        assert found[near].to_pylist() == [after_of(599) if forward else None] * 4


def test_the_place_within_one_order_decides_between_two_changes() -> None:
    rows = changes([(7, (KEYED, b"k", b"second", 0)), (6, (KEYED, b"k", b"first", 0))])
    same_order = rows.set_column(2, DELTA_SCHEMA.field("order"), pa.array([5, 5]))
    same_order = net_change_files.in_buckets(same_order)
    assert composed(same_order, forward=True).to_pylist()[0]["was"] == b"first"
    assert composed(same_order, forward=False).to_pylist()[0]["now"] == b"first"


@pytest.mark.parametrize("kind", [net_change_files.NetChangeFiles, SegmentRecord])
def test_changes_whose_images_have_a_direction_are_refused(kind: type[Any]) -> None:
    """An attempt of an earlier version recorded them: ``count`` had the other sign, and ``now`` would be null."""
    counts = {0: net_change_files.Count(3, 2, 1)}
    one = SegmentRecord("plan", 1, (), counts, 0, summary(1)) if kind is SegmentRecord else kind((), counts)
    record = records.encode(one)
    assert records.decode(kind, record, "r.json") == one
    record["counts"] = {"0": {"keys": 3, "befores": 2, "afters": 0}}
    with pytest.raises(ManifestError, match="another version wrote the record") as refused:
        records.decode(kind, record, "r.json")
    assert refused.value.hint == records.OTHER_VERSION


def test_a_key_has_the_same_bucket_on_any_machine_and_keys_spread() -> None:
    keys = pa.array([str(number).encode() for number in range(6400)])
    counts = row_bytes.buckets(keys, BUCKETS)
    assert row_bytes.buckets(pa.array([b"", b"a", b"abc"]), 64).tolist() == [25, 32, 12]
    spread = [int((counts == bucket).sum()) for bucket in range(BUCKETS)]
    assert min(spread) > 40
    assert max(spread) < 200


def summary(number: int, **what: Any) -> SegmentSummary:
    return SegmentSummary(LogSegment(number, f"log.{number}", 0, None), **what)


def test_a_prepared_transaction_counts_at_its_commit_in_a_later_segment() -> None:
    summaries = [
        summary(1, prepared=["a", "b", "c", "d"]),
        summary(2, decided={"a": 200}, rolled_back=["b"]),
        summary(3, decided={"c": 300}),
    ]
    assert net_change_files.match_prepared(summaries[::-1]) == ({(1, "a"): 200, (1, "c"): 300}, {})


def test_an_id_that_is_used_again_is_another_transaction() -> None:
    summaries = [
        summary(1, prepared=["x"]),
        summary(2, decided={"x": 20}, prepared=["x"]),
        summary(3, rolled_back=["x"], prepared=["x"]),
        summary(4, decided={"x": 40}),
    ]
    assert net_change_files.match_prepared(summaries) == ({(1, "x"): 20, (3, "x"): 40}, {})


def test_a_commit_of_what_no_segment_prepared_is_told() -> None:
    assert net_change_files.match_prepared([summary(1), summary(2, decided={"x": 1})]) == ({}, {"x": "log.2"})


def test_rolling_back_what_was_prepared_before_the_window_changes_nothing() -> None:
    assert net_change_files.match_prepared([summary(1, rolled_back=["x"])]) == ({}, {})


def test_settled_changes_are_those_of_committed_transactions_at_their_commit() -> None:
    rows = changes([(number, (KEYED, bytes([number]), b"row", 0)) for number in range(4)])
    rows = rows.set_column(6, DELTA_SCHEMA.field("pending"), pa.array([None, "a", "b", "a"]))
    settled = net_change_files.resolve_pending(rows, 1, {(1, "a"): 99, (2, "b"): 5}).to_pylist()
    assert [(row["key"], row["order"], row["pending"]) for row in settled] == [
        (b"\0", 0, None),
        (b"\1", 99, None),
        (b"\3", 99, None),
    ]
