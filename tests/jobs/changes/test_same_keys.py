"""Changes of one key are found together, however many there are and however they are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.jobs.changes.net_change_files import same_keys
from airflow_provider_cdc.sources.api.window import DELTA_SCHEMA
from tests.seeds import examples

Row = tuple[int, bytes, int, int, int]

ROWS = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2**31 - 1]),
        st.sampled_from([b"", b"\0", b"\0" * 8, b"\0" * 9, b"a", b"ab", b"abcdefgh", b"abcdefghi"]),
        st.integers(0, 3),
        st.integers(0, 2),
        st.integers(-2, 2),
    ),
    max_size=60,
)


def changes(rows: list[Row]) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [()] * 5
    found = dict(zip(["table", "key", "order", "suborder", "count"], values, strict=True))
    arrays = [pa.array(found.get(field.name, [None] * len(rows)), field.type) for field in DELTA_SCHEMA]
    return pa.table(arrays, schema=DELTA_SCHEMA)


@settings(deadline=None, max_examples=examples(200))
@given(ROWS, st.integers(1, 60))
def test_changes_of_one_key_are_found_together_in_any_pieces(rows: list[Row], piece: int) -> None:
    whole = changes(rows)
    # Slices begin in the middle of their buffers.
    pieces = [whole.slice(at, piece) for at in range(0, len(rows), piece)]
    found = same_keys(pa.concat_tables(pieces) if pieces else whole)

    expected: dict[tuple[int, bytes], list[int]] = {}
    for place, (table, key, *_) in enumerate(rows):
        expected.setdefault((table, key), []).append(place)
    assert found.first.tolist() == [
        min(places, key=lambda place: (rows[place][2:4], place)) for places in expected.values()
    ]
    assert found.last.tolist() == [
        max(places, key=lambda place: (rows[place][2:4], place)) for places in expected.values()
    ]
    assert found.counts.tolist() == [sum(rows[place][4] for place in places) for places in expected.values()]


def test_many_keys_whose_hashes_share_slots_stay_apart() -> None:
    size = 200_000
    numbers = np.arange(size) % 70_000
    rows = changes([(0, b"%d" % number, place, 0, 1) for place, number in enumerate(numbers.tolist())])
    found = same_keys(rows)
    assert found.first.tolist() == list(range(70_000))
    assert (numbers[found.last] == np.arange(70_000)).all()
    assert (found.last >= size - 70_000).all()
    assert int(found.counts.sum()) == size
