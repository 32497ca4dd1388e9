"""How many random histories a test goes through: few in a plain run, more in CI, and as many as wanted on demand."""

from __future__ import annotations

import os
from typing import Any

import pytest


def seeds(variable: str, plain: int, ci: int) -> list[Any]:
    """The seeds of a parametrized test: as many as the environment's `variable` says, from ``CDC_FIRST_SEED`` on (they
    are ``slow`` then), else `ci`, of which all but the first `plain` are ``long``."""
    if wanted := os.environ.get(variable):
        first = int(os.environ.get("CDC_FIRST_SEED", "0"))
        return [pytest.param(seed, marks=pytest.mark.slow) for seed in range(first, first + int(wanted))]
    return [*range(plain), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(plain, ci))]
