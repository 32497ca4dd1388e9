"""Finds XA transactions that were prepared before the window. The log contains the rows of such a transaction only at
its XA PREPARE, not at its commit.

A transaction that commits in the window may have its rows in a file before the window. If that file was purged, it is
unknown which rows the commit changed.
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

    def walk_through(self, settings: ConnectionSettings, goes_on: Callable[[Dump], bool] = lambda dump: True) -> None:
        """Read the file from the start position to the stop position, or up to the last event that the server has
        written.

        :param goes_on: called before more data is received; returns False to stop.
        :raises ExactnessError: the log contains something that makes it impossible to prove exactness.
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
        f"the prepared transaction {xid} is committed here, but the log does not reach back to its XA PREPARE{why}",
        where=f"{place.file}:{place.position}",
        hint="end prepared transactions sooner (XA RECOVER lists them), or keep the log for longer",
    )


def _before(names: Sequence[str], begin: LogPlace) -> Iterator[tuple[str, int | None]]:
    """Yield the files of the log before a place, the last file first. With each file, yield the position to stop at;
    None: the end of the file."""
    first = names.index(begin.file)
    if begin.position > codes.FIRST_POSITION:
        yield begin.file, begin.position
    for number in range(first - 1, -1, -1):
        yield names[number], None
