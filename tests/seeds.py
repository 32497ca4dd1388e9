"""How many of a test's cases are run: some in every run, more in CI, and as many as wanted on demand."""

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
    return some(*range(ci), plain=plain)


def some(*cases: Any, plain: int = 1) -> list[Any]:
    """The cases of a parametrized test, of which all but the first `plain` are ``long``."""
    more = [case if isinstance(case, tuple) else (case,) for case in cases[plain:]]
    return [*cases[:plain], *(pytest.param(*case, marks=pytest.mark.long) for case in more)]
