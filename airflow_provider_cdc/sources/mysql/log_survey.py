"""Looking through a stretch of the log before any work: several of its files at a time, with a word now and then.

A day of a busy server is many gigabytes of log, and whoever waits for preflight wants to know that it gets somewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import islice
from typing import Generic, TypeVar

from airflow_provider_cdc.errors import ExactnessError
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.history import LogPlace
from airflow_provider_cdc.sources.mysql.log import codes
from airflow_provider_cdc.sources.mysql.long_prepared import PreparedWalker
from airflow_provider_cdc.sources.window import LogSegment

FILES_AT_ONCE = 4
EVERY_SECONDS = 5.0
_MIB = 2**20

_log = logging.getLogger(__name__)

Walker = TypeVar("Walker", bound=PreparedWalker)


def stretches(files: Mapping[str, int], begin: LogPlace, end: LogPlace) -> list[LogSegment]:
    """The log between two places, file by file; nothing if ``end`` is not behind ``begin``.

    :param files: as `log_files` gives them; both places are in one of them.
    """
    names = list(files)
    found = [
        LogSegment(
            number,
            name,
            begin.position if name == begin.file else codes.FIRST_POSITION,
            end.position if name == end.file else None,
        )
        for number, name in enumerate(names[names.index(begin.file) : names.index(end.file) + 1])
    ]
    return [one for one in found if one.stop is None or one.start < one.stop]


@contextmanager
def looked_through(
    settings: ConnectionSettings,
    files: Mapping[str, int],
    segments: Sequence[LogSegment],
    walker_of: Callable[[LogSegment], Walker],
) -> Iterator[Iterator[tuple[Walker, ExactnessError | None]]]:
    """The walkers of ``segments`` in their order, each once it went through its segment or stopped, and for what.

    Whoever has seen enough leaves the block: nothing more is read then.

    :raises CdcError: of other kinds, where the log of a segment could not be read.
    """
    look = _Look(settings, files, segments, walker_of)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="log-survey") as pool:
        try:
            yield look.in_order(pool)
        finally:
            look.left.set()


class _Look(Generic[Walker]):
    def __init__(
        self,
        settings: ConnectionSettings,
        files: Mapping[str, int],
        segments: Sequence[LogSegment],
        walker_of: Callable[[LogSegment], Walker],
    ) -> None:
        self.left = threading.Event()
        self._settings = settings
        self._segments = segments
        self._walker_of = walker_of
        self._total = sum((one.stop or files[one.name]) - one.start for one in segments)
        # Each thread counts for itself: a sum of several would need a lock.
        self._bytes = [0] * len(segments)
        self._said = time.monotonic()

    def in_order(self, pool: ThreadPoolExecutor) -> Iterator[tuple[Walker, ExactnessError | None]]:
        ahead = iter(range(len(self._segments)))
        running = deque(pool.submit(self._walk, number) for number in islice(ahead, FILES_AT_ONCE))
        while running:
            yield self._awaited(running.popleft())
            running.extend(pool.submit(self._walk, number) for number in islice(ahead, 1))

    def _walk(self, number: int) -> tuple[Walker, ExactnessError | None]:
        walker = self._walker_of(self._segments[number])

        def received(size: int) -> bool:
            self._bytes[number] = size
            return not self.left.is_set()

        try:
            walker.walk_through(self._settings, received)
        except ExactnessError as error:
            return walker, error
        return walker, None

    def _awaited(self, walk: Future[tuple[Walker, ExactnessError | None]]) -> tuple[Walker, ExactnessError | None]:
        while not wait([walk], max(0.0, self._said + EVERY_SECONDS - time.monotonic())).done:
            self._say()
        return walk.result()

    def _say(self) -> None:
        self._said = time.monotonic()
        done = sum(self._bytes)
        _log.info(
            "Looking through the log for what would be in the way, from %s on: %s of %s MiB (%d %%)",
            self._segments[0].name,
            f"{done // _MIB:,}",
            f"{self._total // _MIB:,}",
            min(100, 100 * done // max(1, self._total)),
        )
