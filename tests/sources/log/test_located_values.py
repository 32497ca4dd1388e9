"""Located values that are copied one after the other have the same bytes, and no bytes beyond them are read."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, bytes_of
from airflow_provider_cdc.sources.log.netting import OVERRUN, Located, copy_values
from tests.sources.guarded import guarded

VALUES = st.lists(st.one_of(st.none(), st.binary(max_size=40), st.sampled_from([b"x" * 16, b"y" * 17, b"z" * 33])))


@given(VALUES)
def test_values_come_out_whole_and_nothing_after_the_last_one_is_read(values: list[bytes | None]) -> None:
    starts: Int32s = np.array([-1 if value is None else 0 for value in values], np.int32)
    lengths: Int32s = np.array([len(value or b"") for value in values], np.int32)
    data = b"".join(value for value in values if value is not None)
    starts[starts == 0] = (np.cumsum(lengths) - lengths)[starts == 0]
    offsets: Int32s = np.empty(len(values) + 1, np.int32)
    out: Bytes = np.full(len(data) + OVERRUN, 255, np.uint8)
    with guarded(data) as memory:
        copy_values(bytes_of(memory), starts, lengths, len(values), offsets, out)
    assert out[: len(data)].tobytes() == data
    assert offsets.tolist() == [0, *np.cumsum(lengths).tolist()]


@given(st.lists(st.booleans(), max_size=70))
def test_validity_is_that_of_the_values(present: list[bool]) -> None:
    rows = len(present)
    starts: Int32s = np.full((1, rows + 3), 5, np.int32)
    starts[0, :rows] = [7 if one else -1 for one in present]
    nulls: Int64s = np.array([present.count(False)], np.int64)
    located = Located(np.zeros(9, np.uint8), starts, starts, nulls, np.zeros(1, np.int64), rows)
    validity = located.validity(0)
    if all(present):
        assert validity is None
        return
    array = pa.Array.from_buffers(pa.int8(), rows, [validity, pa.py_buffer(bytes(rows))])
    assert array.is_valid().to_pylist() == present
