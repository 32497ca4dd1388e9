"""The digest of rows: its definition, and that it depends on the rows only."""

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_cdc.core.digest.digest import Digest, digest
from tests.core.digest import recompute

BIG = "9" * 36 + ".99"
KINDS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [-128, 127, 0, -1, None]),
    (pa.int64(), [-(2**63), 2**63 - 1, 0, -1, None]),
    (pa.uint16(), [0, 65535, None]),
    (pa.uint64(), [0, 2**63 - 1, 2**63, 2**64 - 1, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float32(), [0.0, -0.0, 1.5, float("inf"), float("nan"), None]),
    (pa.float64(), [0.0, -0.0, 0.1, float("-inf"), float("nan"), None]),
    (
        pa.decimal128(38, 2),
        [Decimal(BIG), Decimal("-" + BIG), Decimal("0.00"), Decimal("-0.01"), None],
    ),
    (
        pa.decimal256(76, 0),
        [Decimal(10**76 - 1), -Decimal(10**40), Decimal(2**63), Decimal(-(2**63)), Decimal(5), None],
    ),
    (pa.string(), ["", "a", "1234567", "12345678", "123456789", "ä" * 99, "\0", "\0\0", None]),
    (pa.binary(), [b"", b"\0", b"\0" * 8, b"\xff" * 17, None]),
    (pa.date32(), [-1, 0, 19000, None]),
    (pa.timestamp("us"), [-1, 0, 2**60, None]),
    (pa.timestamp("us", "UTC"), [-1, 0, 2**60, None]),
    (pa.duration("us"), [-1, 0, 2**60, None]),
    (pa.time64("us"), [0, 86_399_999_999, None]),
    (pa.list_(pa.float32()), [[], [1.0], [1.0, None], [None], None]),
    (pa.list_(pa.list_(pa.string())), [[], [["a"], []], [["a", ""]], [None], None]),
    (pa.null(), [None]),
]


def some_rows(chance: random.Random, count: int) -> pa.Table:
    columns = {}
    for at, (kind, values) in enumerate(KINDS):
        if chance.random() < 0.8:
            some = values if chance.random() < 0.8 else [one for one in values if one is not None] or values
            columns[f"c{at}"] = pa.array([chance.choice(some) for _ in range(count)], kind)
    return pa.table(columns)


def laid_out_again(chance: random.Random, rows: pa.Table) -> pa.Table:
    """Return the same rows in another order, with other columns' order, chunks, slices, widths and encodings."""
    order = list(range(rows.num_rows))
    chance.shuffle(order)
    rows = rows.take(order).combine_chunks()
    columns = {}
    for name in chance.sample(rows.column_names, rows.num_columns):
        column = rows[name].combine_chunks()
        kind = column.type
        padded = pa.concat_arrays([column, column, column])
        column = padded.slice(len(column), len(column))
        if pa.types.is_string(kind):
            column = chance.choice([column, column.cast(pa.large_string()), column.dictionary_encode()])
        elif kind == pa.binary():
            column = column.cast(chance.choice([pa.binary(), pa.large_binary()]))
        elif pa.types.is_signed_integer(kind):
            column = chance.choice([column.cast(pa.int64()), column.cast(pa.decimal128(20, 0))])
        elif kind == pa.uint64():
            column = column.cast(chance.choice([pa.uint64(), pa.decimal128(20, 0)]))
        elif kind == pa.float32():
            column = column.cast(chance.choice([pa.float32(), pa.float64()]))
        elif kind == pa.decimal128(38, 2):
            column = column.cast(chance.choice([kind, pa.decimal256(40, 2)]))
        elif pa.types.is_duration(kind) or pa.types.is_time(kind):
            column = column.cast(chance.choice([kind, pa.int64()]))
        columns[name] = column
    whole = pa.table(columns)
    cut = chance.randint(0, rows.num_rows)
    return pa.concat_tables([whole.slice(0, cut), whole.slice(cut)])


@pytest.mark.parametrize("seed", range(20))
def test_definition_and_layout(seed: int) -> None:
    """The definition, written again in plain Python, gives the same digest; the layout in Arrow changes nothing."""
    chance = random.Random(seed)
    rows = some_rows(chance, chance.choice([1, 7, 64]))
    found = digest(rows)
    assert (found.rows, found.hex) == recompute.digest(rows)
    assert digest(laid_out_again(chance, rows)) == found


def rows_of(*rows: tuple[object, ...], names: str = "ab") -> pa.Table:
    return pa.table({name: pa.array([row[at] for row in rows]) for at, name in enumerate(names)})


@pytest.mark.parametrize(
    ("rows", "others"),
    [
        pytest.param(rows_of((1, 10), (2, 20)), rows_of((1, 20), (2, 10)), id="values exchanged between rows"),
        pytest.param(rows_of(("12", None)), rows_of(("1", "2")), id="joined text"),
        pytest.param(rows_of(("12", "")), rows_of(("12", None)), id="null and empty text"),
        pytest.param(rows_of((0, 1)), rows_of((None, 1)), id="null and zero"),
        pytest.param(rows_of((1, 2)), rows_of((2, 1)), id="swapped columns"),
        pytest.param(rows_of((1, 2)), rows_of((1, 2), names="ac"), id="renamed column"),
        pytest.param(rows_of((1, 2), (3, 4)), rows_of((3, 4), (3, 4)), id="lost and doubled row"),
        pytest.param(rows_of((5, 5), (5, 5), (1, 2)), rows_of((1, 2)), id="two equal rows lost"),
        pytest.param(rows_of((5, 5), (5, 5)), rows_of((6, 6), (6, 6)), id="two equal rows changed"),
        pytest.param(rows_of((1, 1), (2, 2)), rows_of((3, 1), (0, 2)), id="a shift in two rows"),
        pytest.param(rows_of(("a\0", "")), rows_of(("a", "")), id="text with a zero"),
        pytest.param(rows_of(([1], [2, 3])), rows_of(([1, 2], [3])), id="elements of another list"),
        pytest.param(rows_of(([[1], [2]], 1)), rows_of(([[1, 2], []], 1)), id="elements of an inner list"),
        pytest.param(rows_of((0.0, 1)), rows_of((-0.0, 1)), id="negative zero"),
    ],
)
def test_other_rows(rows: pa.Table, others: pa.Table) -> None:
    assert digest(rows).sum != digest(others).sum


@pytest.mark.slow
def test_one_bit_changes_half_of_the_bits() -> None:
    """Each of the 128 bits of a row's hash changes in about half of the cases in which one bit of a value changes."""
    chance = random.Random(1)
    changed, count = np.zeros(128), 3000
    for at in range(count):
        value = chance.getrandbits(chance.randint(0, 63))
        one, other = (digest(rows_of((some, 7))).sum for some in (value, value ^ 1 << at % 63))
        changed += [(one ^ other) >> bit & 1 for bit in range(128)]
    assert 0.45 < (changed / count).min() < (changed / count).max() < 0.55


def test_sums_and_differences() -> None:
    """The digest of rows that are added and removed is the sum and the difference of digests."""
    rows = some_rows(random.Random(3), 40)
    first, second = digest(rows.slice(0, 13)), digest(rows.slice(13))
    assert first + second == digest(rows)
    assert digest(rows) - first == second
    assert Digest() - first + first == Digest()
    assert Digest.of(second.rows, second.hex) == second


def test_blocks() -> None:
    rows = rows_of(*((at, str(at)) for at in range(70_000)))
    assert digest(rows) == digest(rows.slice(0, 40_001)) + digest(rows.slice(40_001))


def test_undefined_type() -> None:
    with pytest.raises(TypeError, match="struct"):
        digest(pa.table({"a": [{"b": 1}]}))
