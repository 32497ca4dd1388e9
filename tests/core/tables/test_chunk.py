"""Chunks have no gap and no overlap, and are unchanged by a round trip through JSON."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.storage.records import decode, encode
from airflow_provider_cdc.core.tables.chunk import Bound, Chunk, partition

INTEGERS = st.integers(-(10**20), 10**20)
BOUNDS = st.lists(st.tuples(INTEGERS, INTEGERS), unique=True).map(sorted)


def holds(chunk: Chunk, key: Bound) -> bool:
    lower, upper = chunk.bounds
    return (lower is None or lower <= key) and (upper is None or key < upper)


@given(BOUNDS, st.lists(st.tuples(INTEGERS, INTEGERS)))
def test_every_key_lies_in_exactly_one_chunk(bounds: list[Bound], keys: list[Bound]) -> None:
    chunks = partition(bounds)
    for key in [*keys, *bounds]:
        assert sum(holds(chunk, key) for chunk in chunks) == 1
    assert [chunk.number for chunk in chunks] == list(range(len(bounds) + 1))


@given(st.lists(st.tuples(st.integers() | st.text() | st.binary(), st.text())))
def test_a_chunk_survives_json(bounds: list[Bound]) -> None:
    chunks = partition(bounds, range(len(bounds) + 1))
    assert [chunk.bounds for chunk in chunks] == list(pairwise([None, *bounds, None]))
    for chunk in chunks:
        assert decode(Chunk, json.loads(json.dumps(encode(chunk))), "") == chunk


def test_no_bounds_make_one_chunk_of_everything() -> None:
    assert partition([]) == [Chunk(0)]
    assert str(Chunk(0)) == "chunk 0 [-∞ … ∞)"
