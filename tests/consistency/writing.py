"""Threads that write until they are stopped."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from harness.background import Background
from tests.seeds import SOAK_SEED

PATIENCE = 120.0
"""Seconds, far more than any write takes."""

PAUSE = 0.03 if SOAK_SEED is None else 0.002
"""Up to so many seconds are between two transactions of a writer. Writers that hardly pause take the processors from
the run, which therefore reads a longer log: only dev/soak does that."""

Write = Callable[[random.Random, threading.Event], None]
"""Writes until the event is set, as the generator decides."""


class _Asked(threading.Event):
    """Counts how often it was asked whether it is set: each writer asks before each of its transactions."""

    times = 0

    def is_set(self) -> bool:
        self.times += 1
        return super().is_set()


class Writing(Background):
    """``count`` threads, each with its own random generator, which run until the block ends."""

    def __init__(self, write: Write, seed: int, count: int) -> None:
        super().__init__(count)
        self._count = count
        self._write = write
        self._seed = seed
        self._stop = self._asked = _Asked()

    def wait_for_more(self, transactions: int) -> None:
        """Wait until the writers have done so many more transactions, and some have been rolled back; however slow the
        machine is."""
        wanted, deadline = self._asked.times + self._count + transactions, time.monotonic() + PATIENCE
        while self._asked.times < wanted and not self.failures:
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.01)

    def _work(self, number: int) -> None:
        self._write(random.Random(f"{self._seed}/{number}"), self._stop)
