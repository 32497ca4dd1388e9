"""Two rows must have equal bytes exactly if they are bit-equal. Everything else relies on this."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.kernels import digest
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.row_bytes import encode
from tests.seeds import examples

ZEROS = st.sampled_from([0.0, -0.0])
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-3, 3)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-3, 3)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint8(), st.integers(0, 255)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float32(), ZEROS | st.floats(width=32)),
    (pa.float64(), ZEROS | st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(38, 4), st.integers(-(10**37), 10**37).map(lambda n: Decimal(n).scaleb(-4))),
    (pa.string(), st.text(max_size=4)),
    (pa.binary(), st.binary(max_size=4)),
    (pa.large_string(), st.text(max_size=4)),
    (pa.large_binary(), st.binary(max_size=4)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.integers(0, 9).map(lambda n: n)),
    (pa.timestamp("us"), st.integers(0, 9)),
    (pa.timestamp("us", "UTC"), st.integers(0, 9)),
    (pa.duration("us"), st.integers(-9, 9)),
    (pa.list_(pa.float32()), st.lists(st.none() | st.floats(width=32), max_size=3)),
    (pa.list_(pa.field("element", pa.float32(), False)), st.lists(st.floats(width=32), max_size=3)),
    (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    (pa.list_(pa.bool_()), st.lists(st.none() | st.booleans(), max_size=3)),
    (pa.list_(pa.decimal128(5, 2)), st.lists(st.none() | st.decimals(-9, 9, places=2), max_size=3)),
    (pa.dictionary(pa.int16(), pa.string()), st.sampled_from(["", "a", "b", "ab"])),
]


def identity(kind: pa.DataType, value: Any) -> Any:
    """What must be equal exactly if two stored values are bit-equal."""
    if isinstance(value, float):
        return struct.pack("<f" if kind == pa.float32() else "<d", value)
    if isinstance(value, list):
        return tuple(identity(kind.value_type, element) for element in value)
    return value


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[tuple[Any, ...]]]:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(st.none() | values for _, values in kinds)), max_size=12))
    columns = {f"c{index}": pa.array([row[index] for row in rows], kind) for index, (kind, _) in enumerate(kinds)}
    identities = [tuple(identity(kind, value) for (kind, _), value in zip(kinds, row, strict=True)) for row in rows]
    return pa.record_batch(columns), identities


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(batches())
def test_rows_have_equal_bytes_exactly_if_they_are_bit_equal(
    case: tuple[pa.RecordBatch, list[tuple[Any, ...]]],
) -> None:
    batch, identities = case
    encoded = encode(batch, batch.schema.names)
    assert encoded.null_count == 0
    encoded.validate(full=True)
    for one, one_identity in zip(encoded.to_pylist(), identities, strict=True):
        for other, other_identity in zip(encoded.to_pylist(), identities, strict=True):
            assert (one == other) == (one_identity == other_identity)


@settings(deadline=None, max_examples=examples(60))
@given(batches(), st.data())
def test_a_slice_has_the_bytes_of_its_rows(
    case: tuple[pa.RecordBatch, list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    batch, _ = case
    start = data.draw(st.integers(0, batch.num_rows))
    part = batch.slice(start, data.draw(st.integers(0, batch.num_rows)))
    assert (
        encode(part, part.schema.names).to_pylist()
        == (encode(batch, batch.schema.names).to_pylist()[start : start + part.num_rows])
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([("a", "bc")], [("ab", "c")]),
        ([(None, "a")], [("", "a")]),
        ([("a", None)], [("a", "")]),
        ([("\0", "")], [("", "\0")]),
    ],
)
def test_neighbouring_strings_do_not_run_together(one: list[Any], other: list[Any]) -> None:
    def bytes_of(rows: list[Any]) -> list[bytes]:
        columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate("xy")}
        encoded: list[bytes] = encode(pa.record_batch(columns), ["x", "y"]).to_pylist()
        return encoded

    assert bytes_of(one) != bytes_of(other)


def test_the_order_of_a_dictionary_is_irrelevant_and_so_is_the_type_of_its_index() -> None:
    one = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 2], pa.int16()), ["a", "b", "c"])
    other = pa.DictionaryArray.from_arrays(pa.array([2, 0, None, 1], pa.int32()), ["b", "c", "a"])
    plain = pa.array(["a", "b", None, "c"])
    results = [encode(pa.record_batch({"e": array}), ["e"]) for array in (one, other, plain)]
    assert results[0] == results[1] == results[2]


def test_only_the_columns_asked_for_count_and_in_the_order_asked_for() -> None:
    batch = pa.record_batch({"a": pa.array([1, 1]), "b": pa.array(["x", "y"]), "c": pa.array([2, 2])})
    keys = encode(batch, ["a", "c"]).to_pylist()
    assert keys[0] == keys[1] == b"\1" + struct.pack("<q", 1) + b"\1" + struct.pack("<q", 2)
    assert encode(batch, ["c", "a"]).to_pylist()[0] != keys[0]


def test_the_layout_is_the_documented_one() -> None:
    batch = pa.record_batch(
        {"s": pa.array(["é", None]), "b": pa.array([True, False]), "d": pa.array([-1, 7], pa.int32())}
    )
    assert encode(batch, ["s", "b", "d"]).to_pylist() == [
        b"\1\2\0\0\0\xc3\xa9\1\1\1\xff\xff\xff\xff",
        b"\0\1\0\1\7\0\0\0",
    ]


def test_no_rows_and_no_columns() -> None:
    batch = pa.record_batch({"s": pa.array([], pa.string()), "n": pa.array([], pa.int64())})
    assert encode(batch, ["s", "n"]).to_pylist() == []
    assert encode(pa.record_batch({"n": pa.array([1, 2])}), []).to_pylist() == [b"", b""]


def test_a_type_without_canonical_bytes_is_refused() -> None:
    for value in ({"a": 1}, [{"a": 1}]):
        with pytest.raises(TypeError, match="struct"):
            encode(pa.record_batch({"l": pa.array([value])}), ["l"])


def test_machine_code_of_other_sources_is_not_run() -> None:
    """It is kept under a name that changes with everything that is compiled into it."""
    kernel: Any = row_bytes._append_fixed
    assert kernel.py_func.__qualname__.endswith(digest(row_bytes.__name__))
