"""An LSN must mean the same byte of the log to this package and to the server, in every spelling."""

from __future__ import annotations

import contextlib
import dataclasses
import pickle
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import PositionError

values = st.integers(0, 2**64 - 1)


@given(values)
def test_text_and_back_is_the_same_position(value: int) -> None:
    lsn = Lsn(value)
    assert int(lsn) == value
    assert Lsn.parse(str(lsn)) == lsn
    assert Lsn.parse(f"{value >> 32:08x}/{value & 0xFFFFFFFF:08x}") == lsn


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("0/0", 0, "0/0"),
        ("16/B374D848", 0x16B374D848, "16/B374D848"),
        ("16/b374d848", 0x16B374D848, "16/B374D848"),
        # The low half is a number of its own, not the digits that follow the high half.
        ("1/A", 0x10000000A, "1/A"),
        ("1/0000000A", 0x10000000A, "1/A"),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1, "FFFFFFFF/FFFFFFFF"),
    ],
)
def test_known_positions(text: str, value: int, canonical: str) -> None:
    assert int(Lsn.parse(text)) == value
    assert str(Lsn.parse(text)) == canonical


def test_order_is_that_of_the_log_and_not_of_the_text() -> None:
    in_log_order = [Lsn.parse(text) for text in ("0/9", "0/10", "9/0", "9/A", "10/0", "10/FFFFFFFF", "11/0")]
    assert sorted(in_log_order, key=str) != sorted(in_log_order) == in_log_order
    assert all(earlier < later and later - earlier > 0 for earlier, later in pairwise(in_log_order))


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Lsn(1).value = 2  # type: ignore[misc]


@given(values, values)
def test_difference_is_a_number_of_bytes(one: int, other: int) -> None:
    assert Lsn(one) - Lsn(other) == one - other
    assert (Lsn(one) <= Lsn(other)) == (one <= other)


@given(values)
def test_equal_positions_are_one_key_and_survive_pickling(value: int) -> None:
    assert {Lsn(value), Lsn.parse(str(Lsn(value))), pickle.loads(pickle.dumps(Lsn(value)))} == {Lsn(value)}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "0",
        "0/",
        "/0",
        "0/0/0",
        " 0/0",
        "0/0\n",
        "G/0",
        "-1/0",
        "0x1/0",
        "000000001/0",
        "0/000000001",
        "٣/0",
    ],
)
def test_what_no_server_prints_is_refused(text: str) -> None:
    with pytest.raises(PositionError, match="Hint"):
        Lsn.parse(text)


@pytest.mark.slow
@given(st.text())
def test_garbage_raises_nothing_but_a_position_error(text: str) -> None:
    with contextlib.suppress(PositionError):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, 2**64])
def test_values_outside_64_bits_are_refused(value: int) -> None:
    with pytest.raises(PositionError):
        Lsn(value)
