"""The readers of a step, if a limit applies to them. A reader is a Python worker of Spark. Workers note in small files
that they read or want to read; the driver chooses who may."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from airflow_provider_cdc.core.control.effective import READERS
from airflow_provider_cdc.core.storage.folder import Storage

ALIVE_SECONDS = 20.0
"""A reader that has not renewed its note for this number of seconds is no longer there."""
IDLE_SECONDS = 10.0
"""A reader between two Spark tasks keeps its turn for this number of seconds, unless another reader waits for it."""


class Readers:
    """Chooses the readers that may read."""

    def __init__(self, folder: Storage, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._seen: dict[str, tuple[datetime, float]] = {}
        self._left: dict[str, float] = {}
        self._chosen: tuple[str, ...] = ()
        self._begun = False
        self.active = 0
        """The number of chosen readers that read."""

    def forget(self) -> None:
        """Forget all readers. Those that are still there note again that they want to read."""
        self._begun = False

    def chosen(self, most: int) -> tuple[str, ...]:
        """Return the names of the readers that may read now.

        A reader that was chosen stays chosen as long as it is alive, so that it finishes its part.

        :param most: the maximum number of readers; 0: all.
        :raises CdcError, OSError: the store failed.
        """
        now = self._clock()
        if not self._begun:
            # Readers of an earlier try are gone, or read for nothing.
            self._folder.delete_folder(READERS)
            self._seen, self._left, self._chosen, self._begun = {}, {}, (), True
        present = self._folder.times(READERS)
        # Compare the time of a note only with its earlier time, because the store has another clock.
        for name, written in present.items():
            if name not in self._seen or self._seen[name][0] != written:
                self._seen[name] = written, now
        for name in self._seen.keys() - present.keys():
            del self._seen[name]
            self._left[name] = now
        alive = {name for name, (_, since) in self._seen.items() if now - since <= ALIVE_SECONDS}
        idle = {name for name, since in self._left.items() if now - since <= IDLE_SECONDS} - alive
        reading = [name for name in self._chosen if name in alive]
        reading += sorted(alive - set(reading))
        self.active = min(len(reading), most or len(reading))
        reading += [name for name in self._chosen if name in idle]
        self._chosen = tuple(reading[: most or None])
        return tuple(name.rpartition("/")[2].removesuffix(".json") for name in self._chosen)
