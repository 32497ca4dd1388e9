"""Reads a part of the log in advance, several files at a time, and reports the progress.

The log of one day of a busy server can be many gigabytes, so preflight reports how much of the log it has read.
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
"""The server counts a closed session as a connection until it notices that the session ended. So if the server rejects
a login for lack of free connections, the login is tried again after each of these pauses."""
_MIB = 2**20

_log = logging.getLogger(__name__)

Walker = TypeVar("Walker", bound=PreparedWalker)

_Walk: TypeAlias = Future[tuple[Walker, ExactnessError | None]]


def stretches(files: Mapping[str, int], begin: LogPlace, end: LogPlace) -> list[LogSegment]:
    """Return the log between two places, as one segment per file. The list is empty if ``end`` is not after ``begin``.

    :param files: the files and sizes, as from `log_files`; they include the files of both places.
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
    """Open an iterator over the segments, in order. For each segment, it returns the walker and the error at which the
    walker stopped, or None.

    Leaving the ``with`` block early stops the reading.

    :raises CdcError: the log of a segment could not be read. This error is not an `ExactnessError`.
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
        # Each thread has its own counter, because a shared counter would need a lock.
        self._bytes = [0] * len(segments)
        self._dumps: dict[int, Dump] = {}
        self._said = time.monotonic()

    def leave(self) -> None:
        """Stop the threads, including threads that wait for a server that no longer responds."""
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
                # The server may not have enough free connections for several sessions. Read one file at a time from now
                # on.
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
            # Store the dump before checking _left. This ensures that either `leave` finds the dump in _dumps, or this
            # thread finds that _left is set.
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
        """Wait until the walk is over. Return the error if the log could not be read, else None."""
        while not wait([walk], max(0.0, self._said + EVERY_SECONDS - time.monotonic())).done:
            self._say()
        return walk.exception()

    def _say(self) -> None:
        self._said = time.monotonic()
        done = sum(self._bytes)
        _log.info(
            "Checking the log from %s on for anything that would stop a run: %s of %s MiB (%d %%)",
            self._segments[0].name,
            f"{done // _MIB:,}",
            f"{self._total // _MIB:,}",
            min(100, 100 * done // max(1, self._total)),
        )
