"""The model of the engine finds nothing wrong, and finds each dropped condition."""

from __future__ import annotations

import pytest

from tests.models.engine_model import CONDITIONS, search
from tests.seeds import SOAK_SEED, seeds

WORLDS = 60 if SOAK_SEED is None else 6000
DROPS = {"A0": 5, "C2": 5, "C5": 9, "R1": 5, "R9": 2, "R15": 8, "R18": 14, "E1": 3}
"""Conditions whose counterexamples come early, each with the number of worlds that are enough to find one."""


@pytest.mark.parametrize("seed", seeds(0))
def test_no_copy_of_random_worlds_differs_from_the_truth(seed: int) -> None:
    counts, error = search(WORLDS, seed * 100_000, True)
    assert error is None, f"seed {seed}, world {counts['worlds']}"
    assert counts["published"] > WORLDS / 2


@pytest.mark.parametrize("condition", DROPS)
def test_a_dropped_condition_has_a_counterexample(condition: str) -> None:
    assert condition in CONDITIONS
    _, error = search(DROPS[condition], 0, True, condition)
    assert error is not None
