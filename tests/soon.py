"""Waits for conditions that become true later: a server continues to work after it has answered or disconnected."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS = 60.0
"""A generous limit, because the machine may be busy."""


def soon(look: Callable[[], object], wanted: object) -> None:
    """Wait until ``look()`` returns ``wanted``, and fail if it never does."""
    deadline = time.monotonic() + SECONDS
    while (seen := look()) != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert seen == wanted
