"""Counts in messages have the right number: "1 table", never "1 tables"."""

from __future__ import annotations

import pytest

from airflow_provider_cdc.counted import format_count


@pytest.mark.parametrize(
    ("number", "words", "told"),
    [
        (0, ("table",), "0 tables"),
        (1, ("table",), "1 table"),
        (2, ("table",), "2 tables"),
        (1_234_567, ("row image",), "1,234,567 row images"),
        (1, ("older copy", "older copies"), "1 older copy"),
        (3, ("older copy", "older copies"), "3 older copies"),
        (-1, ("row",), "-1 rows"),
    ],
)
def test_a_number_has_its_noun(number: int, words: tuple[str, ...], told: str) -> None:
    assert format_count(number, *words) == told
