"""Work in threads while a block runs: writers, samplers, a second read beside the measured one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Background(ABC):
    """Runs ``_work`` in ``threads`` threads while the block runs. Use it as a context manager.

    ``failures`` are the exceptions of the threads. The end of the block raises the first one, unless the block itself
    failed.
    """

    def __init__(self, threads: int = 1) -> None:
        self.failures: list[BaseException] = []
        self._stop = threading.Event()
        """Set when the block ends."""
        self._threads = [threading.Thread(target=self._run, args=(number,), daemon=True) for number in range(threads)]

    @abstractmethod
    def _work(self, number: int) -> None:
        """Execute the work of thread ``number``. This must return soon after ``_stop`` is set."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures and error is None:
            raise self.failures[0]

    def _run(self, number: int) -> None:
        try:
            self._work(number)
        except BaseException as error:
            self.failures.append(error)


class Sampler(Background):
    """Calls ``_sample`` immediately, and then every ``every`` seconds."""

    def __init__(self, every: float = 0.1) -> None:
        super().__init__()
        self._every = every

    @abstractmethod
    def _sample(self) -> None:
        """Measure once."""

    def _work(self, number: int) -> None:
        while True:
            self._sample()
            if self._stop.wait(self._every):
                return
