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

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.log import events, walk_state
from airflow_provider_cdc.sources.mysql.log.stream.dump import Dump
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server.driver import has_no_room
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace

# Finds XA transactions that were prepared before the window. The log contains the rows of such a transaction only at
# its XA PREPARE, not at its commit.
#
# A transaction that commits in the window may have its rows in a file before the window. If that file was purged, it is
# unknown which rows the commit changed.


class PreparedWalker(LogWalker):
    """A walker that also records commits of transactions that were not prepared earlier in its file. ``commits`` maps
    the id of such a transaction to the place of its commit. ``prepared`` contains the ids of the transactions that are
    still undecided at the end of the file.
    """

    def __init__(
        self,
        file: str,
        start: int,
        stop: int | None,
        initial: GtidSet,
        tracked: Sequence[TrackedTable] = (),
        watched: Sequence[Table] = (),
    ) -> None:
        self.summary = SegmentSummary(LogSegment(0, file, start, stop))
        super().__init__(file, start, stop, initial, tracked, self.summary, watched)
        self.commits: dict[str, LogPlace] = {}

    @property
    def prepared(self) -> set[str]:
        return set(self.xa.undecided)

    def walk_through(self, settings: ConnectionSettings, continues: Callable[[Dump], bool] = lambda dump: True) -> None:
        """Read the file from the start position to the stop position, or up to the last event that the server has
        written.

        :param continues: called before more data is received; returns False to stop.
        :raises ExactnessError: the log contains something that makes it impossible to prove exactness.
        """
        segment = self.summary.segment
        dump = Dump(settings, segment.name, segment.start)
        try:
            while not self.run(dump.data, dump.end):
                dump.at = int(self.state[walk_state.AT])
                if not continues(dump) or not dump.fill():
                    break
                self.state[walk_state.AT] = 0
        finally:
            dump.close()

    def _decide(self, xid: str, commit: bool) -> None:
        is_undecided = xid in self.xa.undecided
        super()._decide(xid, commit)
        if not is_undecided and xid in self.summary.decided:
            self.commits[xid] = LogPlace(self.summary.segment.name, self.position)


class LongPrepared:
    """Transactions that are committed, but not prepared, in a part of the log. Call `add` for each file of this part,
    in log order."""

    def __init__(self) -> None:
        self._prepared: set[str] = set()
        self._commits: dict[str, LogPlace] = {}

    def add(self, walker: PreparedWalker) -> None:
        self._commits |= {xid: place for xid, place in walker.commits.items() if xid not in self._prepared}
        self._prepared -= {*walker.summary.decided, *walker.summary.rolled_back}
        self._prepared |= walker.prepared

    def without_rows(
        self, settings: ConnectionSettings, names: Sequence[str], begin: LogPlace, initial: GtidSet
    ) -> list[tuple[ExactnessError, LogPlace]]:
        """Find the transactions that are not prepared in any earlier file either. For each of these transactions,
        return an error and the place of the commit.

        The copy needs the earlier files only for these transactions. So if an earlier file cannot be read or parsed,
        this method does not raise that error. It returns all transactions that it has not found by then.

        :param names: the files of the log. The server may purge the first ones at any time.
        :param begin: the place where the part of the log begins.
        :param initial: the position at ``begin``.
        """
        open_commits = dict(self._commits)
        for file, stop in _before(names, begin):
            if not open_commits:
                break
            walker = PreparedWalker(file, events.FIRST_POSITION, stop, initial)
            try:
                walker.walk_through(settings)
            except ExactnessError as error:
                why = f" ({error.where}: {error.message})"
                return [(_lost(xid, place, why), place) for xid, place in open_commits.items()]
            for xid in walker.prepared:
                open_commits.pop(xid, None)
        return [(_lost(xid, place), place) for xid, place in open_commits.items()]


def _lost(xid: str, place: LogPlace, why: str = "") -> ExactnessError:
    return ExactnessError(
        f"the prepared transaction {xid} is committed here, but the log does not reach back to its XA PREPARE{why}",
        where=f"{place.file}:{place.position}",
        hint="end prepared transactions sooner (XA RECOVER lists them), or keep the log for longer",
    )


def _before(names: Sequence[str], begin: LogPlace) -> Iterator[tuple[str, int | None]]:
    """Yield the files of the log before a place, the last file first. With each file, yield the position to stop at;
    None: the end of the file."""
    first = names.index(begin.file)
    if begin.position > events.FIRST_POSITION:
        yield begin.file, begin.position
    for number in range(first - 1, -1, -1):
        yield names[number], None


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
            begin.position if name == begin.file else events.FIRST_POSITION,
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

        def continues(dump: Dump) -> bool:
            self._bytes[number] = dump.bytes
            # Store the dump before checking _left. This ensures that either `leave` finds the dump in _dumps, or this
            # thread finds that _left is set.
            self._dumps[number] = dump
            return not self._left.is_set()

        try:
            walker.walk_through(self._settings, continues)
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
