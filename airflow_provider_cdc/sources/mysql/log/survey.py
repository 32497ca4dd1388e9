"""Looking through a stretch of the log before any work: several of its files at a time, with a word now and then.

A day of a busy server is many gigabytes of log, and whoever waits for preflight wants to know that it gets somewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Generic, TypeAlias, TypeVar

from airflow_provider_cdc.errors import ExactnessError, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log import codes
from airflow_provider_cdc.sources.mysql.log.long_prepared import PreparedWalker
from airflow_provider_cdc.sources.mysql.log.stream.dump import Dump
from airflow_provider_cdc.sources.mysql.server.driver_errors import has_no_room
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace

FILES_AT_ONCE = 4
EVERY_SECONDS = 5.0
ENDING_SECONDS = (0.1, 0.4, 1.0, 2.0, 4.0)
"""Sessions of ours that have ended count until the server has noticed it: one that it refuses is tried again so often,
after pauses of so many seconds."""
_MIB = 2**20

_log = logging.getLogger(__name__)

Walker = TypeVar("Walker", bound=PreparedWalker)

_Walk: TypeAlias = Future[tuple[Walker, ExactnessError | None]]


def stretches(files: Mapping[str, int], begin: LogPlace, end: LogPlace) -> list[LogSegment]:
    """The log between two places, file by file; nothing if ``end`` is not behind ``begin``.

    :param files: as `log_files` gives them; both places are in one of them.
    """
    names = list(files)
    segments = [
        LogSegment(
            number,
            name,
            begin.position if name == begin.file else codes.FIRST_POSITION,
            end.position if name == end.file else None,
        )
        for number, name in enumerate(names[names.index(begin.file) : names.index(end.file) + 1])
    ]
    return [segment for segment in segments if segment.stop is None or segment.start < segment.stop]


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
            look.leave()


class _Look(Generic[Walker]):
    def __init__(
        self,
        settings: ConnectionSettings,
        files: Mapping[str, int],
        segments: Sequence[LogSegment],
        walker_of: Callable[[LogSegment], Walker],
    ) -> None:
        self._left = threading.Event()
        self._settings = settings
        self._segments = segments
        self._walker_of = walker_of
        self._total = sum((segment.stop or files[segment.name]) - segment.start for segment in segments)
        # Each thread counts for itself: a sum of several would need a lock.
        self._bytes = [0] * len(segments)
        self._dumps: dict[int, Dump] = {}
        self._said = time.monotonic()

    def leave(self) -> None:
        """Let the threads end, also those that wait for a server which says nothing any more."""
        self._left.set()
        for dump in list(self._dumps.values()):
            dump.abandon()

    def in_order(self, pool: ThreadPoolExecutor) -> Iterator[tuple[Walker, ExactnessError | None]]:
        at_once = FILES_AT_ONCE
        walks: dict[int, _Walk[Walker]] = {}
        for number in range(len(self._segments)):
            for ahead in range(number, min(number + at_once, len(self._segments))):
                if ahead not in walks:
                    walks[ahead] = pool.submit(self._walk, ahead)
            walk = walks.pop(number)
            if isinstance(self._awaited(walk), SourceUnavailable) and at_once > 1:
                # The server may have no sessions to spare for several: from now on, one after the other.
                at_once = 1
                walks = {ahead: other for ahead, other in walks.items() if self._awaited(other) is None}
                walk = pool.submit(self._walk, number)
            for pause in ENDING_SECONDS if at_once == 1 else ():
                if not has_no_room(self._awaited(walk)):
                    break
                time.sleep(pause)
                walk = pool.submit(self._walk, number)
            self._awaited(walk)
            yield walk.result()

    def _walk(self, number: int) -> tuple[Walker, ExactnessError | None]:
        walker = self._walker_of(self._segments[number])

        def goes_on(dump: Dump) -> bool:
            self._bytes[number] = dump.bytes
            # In this order: `leave` either sees it or was seen.
            self._dumps[number] = dump
            return not self._left.is_set()

        try:
            walker.walk_through(self._settings, goes_on)
        except ExactnessError as error:
            return walker, error
        finally:
            self._dumps.pop(number, None)
        return walker, None

    def _awaited(self, walk: _Walk[Walker]) -> BaseException | None:
        """Why it could not be gone through, once it is over."""
        while not wait([walk], max(0.0, self._said + EVERY_SECONDS - time.monotonic())).done:
            self._say()
        return walk.exception()

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
