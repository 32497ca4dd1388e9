"""Transactions that were prepared long ago: the log has their rows where they were prepared, and only there.

A commit in the window counts with rows that may lie in a file from before it. If that file was purged, nobody can tell
any more what the commit changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.log import codes, walk_state
from airflow_provider_cdc.sources.mysql.log.stream.dump import Dump
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace


class PreparedWalker(LogWalker):
    """A walker that also notes ``commits`` of transactions which its file does not prepare before them: where each of
    them is, by the transaction's id. ``prepared`` are those that it leaves undecided.
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

    def walk_through(self, settings: ConnectionSettings, goes_on: Callable[[Dump], bool] = lambda dump: True) -> None:
        """Read the whole stretch of the file, or as much of it as is there.

        :param goes_on: is asked before more is received; False ends it.
        :raises ExactnessError: something that the proof does not allow for.
        """
        segment = self.summary.segment
        dump = Dump(settings, segment.name, segment.start)
        try:
            while not self.run(dump.data, dump.end):
                dump.at = int(self.state[walk_state.AT])
                if not goes_on(dump) or not dump.fill():
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
    """The transactions that a stretch of the log commits and does not prepare. Tell it of each file, in log order."""

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
        """Those of them that no file before the stretch prepares: what is wrong, and where it was committed.

        Files from before the stretch are nothing that the copy rests on otherwise: one that cannot be read any more, or
        not understood, is the end of what is known.

        :param names: the log's files. The server may purge the first of them at any time.
        :param begin: where the stretch begins.
        :param initial: the position there.
        """
        open_commits = dict(self._commits)
        for file, stop in _before(names, begin):
            if not open_commits:
                break
            walker = PreparedWalker(file, codes.FIRST_POSITION, stop, initial)
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
        f"the prepared transaction {xid} is committed here, and the log does not reach back to where it was "
        f"prepared{why}",
        where=f"{place.file}:{place.position}",
        hint="let prepared transactions end sooner (XA RECOVER lists them), or keep the log for longer",
    )


def _before(names: Sequence[str], begin: LogPlace) -> Iterator[tuple[str, int | None]]:
    """What lies before a place in the log, file by file, the last one first: each up to a position, or to its end."""
    first = names.index(begin.file)
    if begin.position > codes.FIRST_POSITION:
        yield begin.file, begin.position
    for number in range(first - 1, -1, -1):
        yield names[number], None
