"""Finds prefixes of the log: the prefix at a given time, and the prefix with exactly the transactions of a GTID set.

The position at a given time is the longest prefix of the log without a later commit. The prefix is final if the log was
read up to a later commit, or up to a place that was the end of the log after the time (docs/design/as-of.md). Commit
times may decrease from one transaction to the next, so the prefix ends before the first transaction that was committed
after the given time.

If a GTID set contains a transaction but omits an earlier transaction, this server was never in that state. The rows
that the later transaction wrote cannot be separated from the effects of the earlier transaction. So only the
transactions of a prefix can be a position.

The file in which the prefix ends is found by bisection over the time of the first commit in each file. The time in the
header of a file cannot be used. It is the time of the session that began the file, and a session can change its time
with SET timestamp. On a replica, the header has the time of the replica's source. From the found file on, only the GTID
events are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from airflow_provider_cdc.core.kernels import Bytes, Int64s
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import DecodeError, LogGone, SourceReplaced, UnknownEvent
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.log import commits
from airflow_provider_cdc.sources.mysql.log.commits import TSID_BYTES, set_arrays, tsid_parts
from airflow_provider_cdc.sources.mysql.log.dump import TABLES, Dump
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace, log_files, previous_gtids, stamp_of
from airflow_provider_cdc.sources.mysql.server.session import Connection, session, value

_RUNS = 4096
_SLACK_MICROSECONDS = 2_000_000
"""The maximum expected clock correction. If the clock was set back by more, some times occurred twice and are
ambiguous. The result is still a valid position."""
NO_LIMIT = 2**62
"""A time, in microseconds since 1970, that is later than all commits."""
_KEEP_LOGS = "make the server keep its logs for longer (binlog_expire_logs_seconds)"


@dataclass(frozen=True)
class Prefix:
    """A prefix of the log.

    :param position: the transactions of the prefix, including those that were purged from the log.
    :param place: the place in the log at which the prefix ends.
    :param latest: the latest commit time in the part of the log that was read; None: nothing was read.
    :param following: the commit time of the first transaction after the prefix; None: the log has no transaction after
        the prefix yet.
    """

    position: GtidSet
    place: LogPlace
    latest: datetime | None
    following: datetime | None


def prefix_at(settings: ConnectionSettings, when: datetime) -> Prefix:
    """Return the longest prefix of the log without a commit after ``when``.

    The prefix is final if ``following`` is not None. Otherwise, it ends at the end of the log that the server has sent,
    and the next commits may still belong to it.

    :raises LogGone: the log begins after ``when``.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        files, unlogged = _files(connection)
        limit = round(when.timestamp() * 1_000_000)
        counts: dict[int, int] = {}

        def begins(index: int) -> int:
            """Return the commit time of the first transaction in this file or the files after it."""
            at = index
            while at not in counts:
                first = NO_LIMIT if at == len(files) else _first_commit(settings, files[at])
                if first is None:
                    at += 1
                else:
                    counts[at] = first
            counts[index] = counts[at]
            return counts[index]

        # Commits before the beginning of the log are unknown, and so are their times.
        if begins(0) == NO_LIMIT:
            raise LogGone(
                "the log holds no transaction, so the times of commits are not known",
                where=settings.address,
                hint=f"commit a transaction on the server, request a time after this commit, and {_KEEP_LOGS}",
            )
        if begins(0) > limit:
            first = _time(begins(0))
            raise LogGone(
                f"the first commit in the log was at {_text(first)}, after {_text(when)}",
                where=settings.address,
                hint=f"request {first + timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ} or later, and {_KEEP_LOGS}",
            )
        low, high = 0, len(files)
        while high - low > 1:
            middle = (low + high) // 2
            if begins(middle) + _SLACK_MICROSECONDS <= limit:
                low = middle
            else:
                high = middle
        before = previous_gtids(connection, files[low])
    prefix = _read(settings, files[low:], before, limit=limit)
    return replace(prefix, position=prefix.position | unlogged)


def prefix_of(settings: ConnectionSettings, wanted: GtidSet) -> Prefix:
    """Return the prefix of the log with exactly the transactions ``wanted``.

    :raises SourceReplaced: no prefix has exactly these transactions. The error names the missing transactions.
    :raises LogGone: the log no longer reaches back far enough.
    :raises UnknownEvent: a transaction in the log has no GTID.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        files, unlogged = _files(connection)
        low, high = -1, len(files)
        while high - low > 1:
            middle = (low + high) // 2
            if previous_gtids(connection, files[middle]) <= wanted:
                low = middle
            else:
                high = middle
        if low < 0:
            raise LogGone(
                f"the oldest log file, {files[0]}, begins after the position that was requested",
                where=settings.address,
                hint=f"request a later position, and {_KEEP_LOGS}",
            )
        before = previous_gtids(connection, files[low])
    prefix = _read(settings, files[low:], before, within=wanted)
    prefix = replace(prefix, position=prefix.position | (unlogged & wanted))
    if missing := wanted - prefix.position:
        raise SourceReplaced(
            f"gtid_executed of the server never had exactly this value: in the log, the transactions {missing} come "
            f"after transactions that are not in the GTID set, or the transactions {missing} are not in the log",
            where=f"{settings.address}, {prefix.place}",
            hint="give a time, or a value that gtid_executed once had on this server. At this place in the log, "
            f"gtid_executed was {prefix.position}",
        )
    return prefix


def latest_commit(settings: ConnectionSettings, place: LogPlace) -> datetime:
    """Return the latest commit time of the transactions in the file of ``place``, up to the transaction at
    ``place``."""
    scan = _Scan(settings, place.file, NO_LIMIT, None, end=place.position + 1)
    scan.run()
    return _time(int(scan.state[commits.LATEST]))


def _files(connection: Connection) -> tuple[list[str], GtidSet]:
    """Return the files of the log, and the transactions that were never in a log file. Such transactions exist if
    gtid_purged was set, for example when a backup was restored. The log has no changes of these transactions, so they
    belong to every position."""
    # Read gtid_purged before the list of files. Then the set cannot include transactions that the server purges between
    # the two reads. Such transactions were in a log file.
    purged = GtidSet.parse(value(connection, "@@global.gtid_purged"))
    files = list(log_files(connection))
    while True:
        try:
            return files, purged - previous_gtids(connection, files[0])
        except LogGone:
            # The server usually purges its oldest file when it begins a new file.
            if (current_files := list(log_files(connection)))[0] == files[0]:
                raise
            files = current_files


def _first_commit(settings: ConnectionSettings, file: str) -> int | None:
    """Return the commit time of the first transaction in a file, in microseconds since 1970. None: the file has no
    transaction.

    The result is 0 if the server does not send the file: the file was purged, or it is from before gtid_mode=ON. In
    both cases, the file precedes all files that can be read.
    """
    scan = _Scan(settings, file, 0, None)
    try:
        return int(scan.state[commits.NEXT]) if scan.run() else None
    except LogGone:
        return 0


def _read(
    settings: ConnectionSettings,
    files: Sequence[str],
    before: GtidSet,
    *,
    limit: int = -1,
    within: GtidSet | None = None,
) -> Prefix:
    """Read the log up to the first transaction that was committed after ``limit``, or that is not in ``within``."""
    position = before
    latest = 0
    for file in files:
        scan = _Scan(settings, file, limit, within)
        stopped = scan.run()
        position = position | scan.passed
        latest = max(latest, int(scan.state[commits.LATEST]))
        if stopped or file == files[-1]:
            place = LogPlace(file, int(scan.state[commits.POSITION]), stamp_of(settings, file))
            following = _time(int(scan.state[commits.NEXT])) if stopped else None
            return Prefix(position, place, _time(latest) if latest else None, following)
    raise AssertionError("a log has a file")


class _Scan:
    """Reads the GTID events of one file, up to the end of the data that the server has written so far."""

    def __init__(
        self, settings: ConnectionSettings, file: str, limit: int, within: GtidSet | None, end: int = -1
    ) -> None:
        self._settings = settings
        self._file = file
        self._sets = set_arrays([within or GtidSet()])
        self._tsid: Bytes = np.zeros(TSID_BYTES, np.uint8)
        self._runs: Int64s = np.zeros(_RUNS * commits.RUN_WORDS, np.int64)
        self.state: Int64s = np.zeros(commits.STATE_WORDS, np.int64)
        self.state[commits.POSITION] = log_protocol.FIRST_POSITION
        self.state[commits.LIMIT] = limit
        self.state[commits.END] = end
        self.passed = GtidSet()

    def run(self) -> bool:
        """Scan the file. Return True if the scan stopped before a transaction, False if it reached the end of the file
        or the end of the data."""
        dump = Dump(self._settings, self._file, log_protocol.FIRST_POSITION)
        try:
            while True:
                code = self._step(dump)
                if code == commits.NO_ROOM:
                    self._drain()
                elif code == commits.MORE:
                    dump.at = int(self.state[commits.AT])
                    if not dump.fill():
                        break
                    self.state[commits.AT] = 0
                else:
                    break
        finally:
            dump.close()
        self._drain()
        if code == commits.DAMAGED:
            raise DecodeError(
                "the log is damaged", where=self._where, hint="verify it with mysqlbinlog --verify-binlog-checksum"
            )
        if code == commits.NAMELESS:
            raise UnknownEvent(
                "a transaction has no GTID", where=self._where, hint="request a time after gtid_mode was set to ON"
            )
        return code == commits.FOUND

    def _step(self, dump: Dump) -> int:
        return int(commits.read_commits(dump.data, dump.end, self.state, self._tsid, self._runs, TABLES, self._sets))

    def _drain(self) -> None:
        """Add the transactions of the runs to ``passed``, and empty the runs."""
        count = int(self.state[commits.RUNS])
        words = commits.RUN_WORDS
        parts = []
        for run in self._runs[: count * words].reshape(count, words):
            uuid, tag = tsid_parts(run[:-2].tobytes())
            parts.append(f"{uuid.hex()}{':' + tag if tag else ''}:{run[-2]}-{run[-1]}")
        self.passed = self.passed | GtidSet.parse(",".join(parts))
        self.state[commits.RUNS] = 0

    @property
    def _where(self) -> str:
        return f"{self._settings.address}, {self._file}:{self.state[commits.POSITION]}"


def _time(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


def _text(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
