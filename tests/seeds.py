"""Which cases of a test `dev/test` runs, and which only `dev/soak` runs."""

from __future__ import annotations

import os
import zlib
from typing import Any

import pytest

SOAK_SEED = int(os.environ["CDC_SOAK_SEED"]) if "CDC_SOAK_SEED" in os.environ else None
"""The seed of the work that `dev/soak` runs; None: this is no soak."""


def seeds(*fixed: int) -> list[Any]:
    """The seeds of a parametrized test: that of `dev/soak`, else the ``fixed`` ones.

    Without any, the test is ``long``.
    """
    if SOAK_SEED is not None:
        return [SOAK_SEED]
    return [*fixed] or [pytest.param(0, marks=pytest.mark.long)]


def some(*cases: Any, plain: int = 1) -> list[Any]:
    """The cases of a parametrized test, of which all but the first ``plain`` are ``long``."""
    more = [case if isinstance(case, tuple) else (case,) for case in cases[plain:]]
    return [*cases[:plain], *(pytest.param(*case, marks=pytest.mark.long) for case in more)]


def examples(plain: int) -> int:
    """The number of examples of a property: ``plain``, or ten times that in `dev/soak`."""
    return plain if SOAK_SEED is None else 10 * plain


def chain_length(plain: int) -> int:
    """The length of a chain of nights: ``plain``, or two more in `dev/soak`."""
    return plain if SOAK_SEED is None else plain + 2


def in_part(test: str, part: str) -> bool:
    """Return whether a test, given by its ID, belongs to a part such as ``2/4``, the second of four parts of about the
    same size. Each test belongs to one part."""
    number, _, parts = part.partition("/")
    return zlib.crc32(test.encode()) % int(parts) == int(number) - 1
