"""Threads that write until they are told to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from harness.background import Background

Write = Callable[[random.Random, threading.Event], None]
"""Writes until the event is set, as the generator decides."""


class Writing(Background):
    """``count`` threads, each with a generator of its own, while the block is open."""

    def __init__(self, write: Write, seed: int, count: int) -> None:
        super().__init__(count)
        self._write = write
        self._seed = seed

    def _work(self, number: int) -> None:
        self._write(random.Random(f"{self._seed}/{number}"), self._stop)
