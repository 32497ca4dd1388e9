"""Threads that write until they are told to stop."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Self

Write = Callable[[random.Random, threading.Event], None]
"""Writes until the event is set, as the generator decides."""


class Writing:
    """``count`` threads, each with a generator of its own, while the block is open.

    ``failures`` holds what they raised.
    """

    def __init__(self, write: Write, seed: int, count: int) -> None:
        self.failures: list[BaseException] = []
        self._write = write
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed}/{number}"),), daemon=True)
            for number in range(count)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, chance: random.Random) -> None:
        try:
            self._write(chance, self._stop)
        except BaseException as error:
            self.failures.append(error)
