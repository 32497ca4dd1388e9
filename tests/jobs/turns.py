"""Two concurrent tries of a run, in one process: a seed decides which of them may access the lake next."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.sinks import parquet

TOUCHES = (
    "write_json",
    "create_json",
    "read_json",
    "exists",
    "files",
    "delete_file",
    "delete_folder",
    "make_folder",
    "move_to",
)
"""The ways to read or change the lake that tries take turns at."""
PATIENCE = 280
"""Seconds in which all tries have ended, however slow the machine is."""


class Turns:
    """Runs tries in threads of which one is awake at a time.

    :param pause: how likely it is that a try that was awake sleeps for long: until all others are done, or sleep.
    """

    def __init__(self, seed: int, pause: float = 0.02) -> None:
        self._random = random.Random(seed)
        self._pause = pause
        self._turn = threading.Condition()
        self._ready: list[int] = []
        self._asleep: list[int] = []
        self._awake = -1

    def run(self, tries: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each of them returned or raised."""
        outcomes: list[Any] = [None] * len(tries)
        self._ready = list(range(len(tries)))

        def work(number: int) -> None:
            threading.current_thread().name = f"try-{number}"
            self._wait(number)
            try:
                outcomes[number] = tries[number]()
            except Exception as error:
                outcomes[number] = error
            finally:
                with self._turn:
                    self._next()

        threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(tries))]
        for thread in threads:
            thread.start()
        with self._turn:
            self._next()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the tries wait for each other"
        return outcomes

    def touch(self) -> None:
        """Before a try touches the lake: another one may be awake first."""
        name = threading.current_thread().name
        if not name.startswith("try-"):
            return
        number = int(name.removeprefix("try-"))
        with self._turn:
            (self._asleep if self._random.random() < self._pause else self._ready).append(number)
            self._next()
        self._wait(number)

    def _next(self) -> None:
        if not self._ready:
            self._ready, self._asleep = self._asleep, []
        self._awake = self._ready.pop(self._random.randrange(len(self._ready))) if self._ready else -1
        self._turn.notify_all()

    def _wait(self, number: int) -> None:
        with self._turn:
            assert self._turn.wait_for(lambda: self._awake == number, PATIENCE)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have all touches of the lake taken in turns."""
        for name in TOUCHES:
            if hasattr(Storage, name):
                self._patch(monkeypatch, name)
        # A try that waits for the lock of a head lets the try that holds it go on.
        clock = SimpleNamespace(sleep=lambda seconds: self.touch(), monotonic=time.monotonic)
        monkeypatch.setattr(parquet, "time", clock)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        original = getattr(Storage, name)

        def replacement(*arguments: Any, **named: Any) -> Any:
            self.touch()
            return original(*arguments, **named)

        monkeypatch.setattr(Storage, name, replacement)
