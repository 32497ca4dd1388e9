"""Checks that the server still has the complete log since the beginning of a run, without a gap.

A GTID set identifies transactions, but not a history. After a reset, or in a restored backup, other transactions get
the same GTIDs. So a run records a place in the log. The log up to this place must not change. From this place on, every
file except the last file must end with the event that the server writes when it closes a file. If this event is
missing, the server crashed, and the crash may have undone transactions that were already read.

The server also marks each of its starts in the log. The server's settings are read twice: at the beginning of the run,
and during this check. So the start options are known only for the last start before each of these reads. Therefore the
server may have been restarted at most once between the two reads.

This module does not use the kernels that read whole log files.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise, product

import pymysql

from airflow_provider_cdc.core.positions.facts import Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import LogGone, PositionError, SourceReplaced, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.dialect import SHOW_BINARY_LOG_STATUS, SHOW_MASTER_STATUS, statement
from airflow_provider_cdc.sources.mysql.server.driver import mapped_errors
from airflow_provider_cdc.sources.mysql.server.log_protocol import CANNOT_READ_LOG, GTIDS_OFF, request_log
from airflow_provider_cdc.sources.mysql.server.session import Connection, connect, query, server_version, value

_HEADER = struct.Struct("<IBIIIH")
assert _HEADER.size == log_protocol.HEADER_BYTES
_CREATED = slice(1 + log_protocol.HEADER_BYTES + 52, 1 + log_protocol.HEADER_BYTES + 56)
"""The place of the creation time in a packet with a FORMAT_DESCRIPTION event."""
_ENCRYPTION_BYTES = 512
"""The size of the header of an encrypted log file."""
_NO_SUCH_FILE = 1220

KEEP_LOGS = "trigger a new run, and make the server keep its logs for longer (binlog_expire_logs_seconds)"
BEGIN_ANEW = "clear the task `lock_and_record` and all tasks after it: the run then starts again"


@dataclass(frozen=True)
class LogPlace:
    """A place in the log, ``binlog.000007:4312@1795298235``.

    ``stamp`` is the time at which the file was created, in seconds by the server's clock. If a file has the same name
    but another stamp, it is a different file. An empty ``stamp`` is unknown.
    """

    file: str
    position: int
    stamp: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.position}" + (f"@{self.stamp}" if self.stamp else "")

    @classmethod
    def parse(cls, text: str) -> LogPlace:
        """Parse the text form.

        :raises PositionError: ``text`` does not have this form.
        """
        file, _, place = text.rpartition(":")
        position, _, stamp = place.partition("@")
        number = file.rpartition(".")[2]
        if not all(part.isdecimal() for part in (number, position, stamp or "0")):
            raise PositionError(f"{text!r} is not a log position", hint="use the form file:position@stamp")
        return cls(file, int(position), stamp)


@dataclass(frozen=True)
class HistoryEvent:
    """An event of the log, as the server sends it."""

    kind: int
    length: int
    end: int
    """The low 32 bits of the position in the file at which the event ends."""
    made_up: bool
    """Whether the server created the event only for the reader (an artificial event). The file does not contain such
    events."""
    when: int
    created: int
    """For a FORMAT_DESCRIPTION event in a file that a server start or a reset created: the creation time of the file.
    Otherwise 0."""
    data: bytes


def log_status_statement(connection: Connection) -> str:
    """Return the statement that shows the end of the log, in the syntax of the server's version."""
    return statement(server_version(connection), SHOW_BINARY_LOG_STATUS, SHOW_MASTER_STATUS)


def log_status(connection: Connection) -> tuple[str, ...]:
    """Return the file and the position of the end of the log, and the schemas of binlog_do_db and binlog_ignore_db,
    separated by commas.

    :raises LogGone: the server has no binary log.
    """
    rows = query(connection, log_status_statement(connection))
    if not rows:
        raise LogGone("the server has no binary log", where="log_bin", hint="start the server with log_bin")
    return tuple(str(field) for field in rows[0])


def log_files(connection: Connection) -> dict[str, int]:
    """Return the files of the log and their sizes, in the order of the log."""
    return {str(name): int(size) for name, size, *_ in query(connection, "SHOW BINARY LOGS")}


def is_purged(settings: ConnectionSettings, place: LogPlace | None) -> bool:
    """Return whether the server has purged the file of ``place``."""
    if place is None:
        return False
    with closing(connect(settings)) as connection:
        numbers = [file_number(name) for name in log_files(connection)]
    return file_number(place.file) < min(numbers, default=0)


def backlog(connection: Connection, begin: LogPlace) -> int:
    """Return the size of the log from ``begin`` to the current end of the log, in bytes."""
    files = log_files(connection)
    after = [size for name, size in files.items() if file_number(name) > file_number(begin.file)]
    return max(0, files.get(begin.file, begin.position) - begin.position) + sum(after)


def end_of_log(settings: ConnectionSettings, connection: Connection) -> LogPlace:
    """Return the current end of the log."""
    file, position, *_ = log_status(connection)
    return LogPlace(file, int(position), stamp_of(settings, file))


def unambiguous_end_of_log(settings: ConnectionSettings, connection: Connection) -> LogPlace:
    """Return the current end of the log. Before that, make sure that no later file can get the same stamp.

    After a reset, the log begins again with a file of the same name. The old and the new file have the same stamp only
    if they were created in the same second. So the function waits until the second in which the current file was
    created is over.

    :raises SourceUnavailable: the file was removed meanwhile.
    """
    place = end_of_log(settings, connection)
    while int(value(connection, "UNIX_TIMESTAMP()")) == int(place.stamp or 0):
        time.sleep(0.1)
    if stamp_of(settings, place.file) != place.stamp or not place.stamp:
        raise SourceUnavailable(
            f"the log file {place.file} was just removed", where=settings.address, hint="the task can be retried"
        )
    return place


def check_place(settings: ConnectionSettings, files: Mapping[str, int], place: LogPlace) -> None:
    """Check that the log still has ``place``, and everything before ``place`` in the same file.

    :raises LogGone: the file was purged, or the end of the file is missing.
    :raises SourceUnavailable: the file was purged after ``files`` was read.
    :raises SourceReplaced: the server's log is not the log to which ``place`` belongs.
    """
    if place.file not in files and min(map(file_number, files), default=0) < file_number(place.file):
        raise other_log(settings, f"the log has no file {place.file} any more")
    if place.file not in files:
        raise LogGone(
            f"the log file {place.file}, which the run still needs, was purged",
            where=settings.address,
            hint=f"{BEGIN_ANEW}; keep the log for longer on the server (binlog_expire_logs_seconds)",
        )
    stamp = stamp_of(settings, place.file) if place.stamp else ""
    if place.stamp and not stamp:
        raise SourceUnavailable(
            f"the log file {place.file} was just removed", where=settings.address, hint="the task can be retried"
        )
    if stamp != place.stamp:
        raise other_log(settings, f"the log file {place.file} is not the one that the run recorded")
    if files[place.file] < place.position:
        raise LogGone(
            f"the log no longer reaches {place}: the server lost the end of its log in a crash, or a backup was "
            "restored",
            where=settings.address,
            hint=BEGIN_ANEW,
        )


def check_continuity(settings: ConnectionSettings, files: Mapping[str, int], begun: LogPlace, starts: int = 0) -> None:
    """Check that, since ``begun``, the server has not crashed and was not started more than once.

    :param starts: the number of starts from the beginning of the run to ``begun``.
    :raises LogGone: the server crashed, or was started more than once.
    :raises SourceReplaced: the log does not have the file to which ``begun`` belongs.
    """
    names = list(files)
    if begun.file not in names:
        raise other_log(settings, f"the log has no file {begun.file} any more")
    for file, following in pairwise(names[names.index(begun.file) :]):
        created = _created_after(settings, file, files[file], following)
        if created is None:
            raise LogGone(
                f"the log file {file} was not closed cleanly: after the run began, the server crashed or a backup was "
                "restored, so transactions that the run has read may have been undone",
                where=settings.address,
                hint=BEGIN_ANEW,
            )
        starts += created > 0
    if starts > 1:
        raise LogGone(
            f"the server was started {starts} times since the run began. The server's options between these starts "
            "are unknown",
            where=settings.address,
            hint=BEGIN_ANEW,
        )


def unclosed(settings: ConnectionSettings, files: Mapping[str, int]) -> str:
    """Return the last of the files that was not closed cleanly, because the server crashed. Empty: there is none.

    :param files: files that follow each other, and their sizes. The last one may be open.
    """
    crashed = (file for file, next_ in pairwise(files) if _created_after(settings, file, files[file], next_) is None)
    return max(crashed, key=file_number, default="")


def other_log(settings: ConnectionSettings, message: str) -> SourceReplaced:
    return SourceReplaced(
        f"{message}: the log was reset, or a backup was restored", where=settings.address, hint="trigger a new run"
    )


def file_number(file: str) -> int:
    return int(file.rpartition(".")[2])


def is_before(one: LogPlace, other: LogPlace) -> bool:
    """Return whether place ``one`` is before place ``other`` in the log. The stamps are ignored."""
    return (file_number(one.file), one.position) < (file_number(other.file), other.position)


def stamp_of(settings: ConnectionSettings, file: str) -> str:
    """Return the creation time of a log file. Empty: the file does not exist."""
    with closing(log_events(settings, file, log_protocol.FIRST_POSITION)) as events:
        return next((str(event.when) for event in events if event.kind == log_protocol.FORMAT_DESCRIPTION), "")


def _created_after(settings: ConnectionSettings, file: str, size: int, following: str) -> int | None:
    """Return `Event.created` of the file ``following``. None: the previous file, ``file``, lacks the event that the
    server writes when it closes a file."""
    rotate = _HEADER.size + 8 + len(following.encode())
    lengths = (rotate + log_protocol.CHECKSUM_BYTES, _HEADER.size + log_protocol.CHECKSUM_BYTES, rotate, _HEADER.size)
    for end, last in product((size, size - _ENCRYPTION_BYTES), lengths):
        if end - last < log_protocol.FIRST_POSITION:
            continue
        with closing(log_events(settings, file, end - last)) as events:
            first_events = [event for _, event in zip(range(6), events, strict=False) if not event.made_up]
        # At the beginning of every dump, the server first sends the file's FORMAT_DESCRIPTION, regardless of the
        # position.
        if len(first_events) < 2:
            continue
        _, last_event, *others = first_events
        ends_file = (last_event.length, last_event.end) == (last, end & log_protocol.LOW_HALF)
        if ends_file and last_event.kind in (log_protocol.STOP, log_protocol.ROTATE):
            return next((event.created for event in others if event.kind == log_protocol.FORMAT_DESCRIPTION), None)
    return None


def log_events(
    settings: ConnectionSettings, file: str, start: int, without: bytes = log_protocol.NO_GTIDS
) -> Generator[HistoryEvent]:
    """Yield the events from ``start`` in ``file`` to the end of the log. If no event begins at ``start``, do not yield
    any event.

    :param file, without: as in `request_log`.
    """
    connection = connect(settings)
    try:
        with mapped_errors(f"{settings.address}, log file {file}"):
            yield from _received(connection, file, start, without)
    finally:
        connection.drop()


def _received(connection: Connection, file: str, start: int, without: bytes) -> Iterator[HistoryEvent]:
    try:
        request_log(connection, file, start, without)
        while len(data := connection.packet().get_all_data()) > _HEADER.size:
            when, kind, _, size, end, flags = _HEADER.unpack_from(data, 1)
            creation_time = data[_CREATED] if kind == log_protocol.FORMAT_DESCRIPTION else b""
            made_up = bool(flags & log_protocol.ARTIFICIAL)
            yield HistoryEvent(kind, size, end, made_up, when, int.from_bytes(creation_time, "little"), data[1:])
    except pymysql.OperationalError as error:
        if error.args[0] != CANNOT_READ_LOG or GTIDS_OFF in error.args[1]:
            raise


def previous_gtids(connection: Connection, file: str) -> GtidSet:
    """Return the transactions logged before this file, as the file's Previous_gtids event lists them.

    :raises LogGone: the file has no Previous_gtids event, or it was purged.
    """
    try:
        # The event is the second event in the file. Without LIMIT, the statement would read all events. The statement
        # fails if it reads an event that is larger than max_allowed_packet, and a compressed transaction may be such an
        # event.
        rows = query(connection, "SHOW BINLOG EVENTS IN %s LIMIT 2", (file,))
    except pymysql.MySQLError as error:
        if error.args[0] != _NO_SUCH_FILE:
            raise
        raise LogGone(f"the log file {file} was purged just now", hint=KEEP_LOGS) from error
    for row in rows:
        if row[2] == "Previous_gtids":
            return GtidSet.parse(row[5])
    raise LogGone(
        f"the log file {file} does not say which transactions came before it",
        hint="log files that were written before gtid_mode=ON cannot be used: trigger a new run",
    )


# Marks of positions in the server's history. A mark consists of a place in the log and of digests of the log at this
# place.
#
# A server begins a new log file at each start, and never appends to an older file. So three checks show that everything
# before the place is unchanged: the file still reaches the place, begins with the same events, and has the same event
# before the place. If all checks succeed, the server continues the history of the mark. After a reset, or in a restored
# backup, at least one of the checks fails. After the file has been purged, the histories cannot be compared.
#
# Another server has other files. So a mark also has the commit times of the last transactions (`server.commit_times`).


_DIGITS = 16
_XID_BYTES = log_protocol.HEADER_BYTES + 8
_NOTHING = "-"


@dataclass(frozen=True)
class LogMark:
    """A mark of a position in the log. Its text form is ``binlog.000007:4312@1795298235 <begin> <last> <commits>``.

    ``begin`` is a digest of the file's PREVIOUS_GTIDS event, which lists the transactions in earlier files. ``last`` is
    a digest of the event that ends at the place. This digest is known only if the event commits an InnoDB transaction,
    because only the length of such events is known. An unknown digest is ``-``. ``commits`` has the commit times of the
    last transactions before the place (`commit_times.last_commits`). It is empty in marks of earlier versions.
    """

    place: LogPlace
    begin: str = _NOTHING
    last: str = _NOTHING
    commits: str = ""

    def __str__(self) -> str:
        return f"{self.place} {self.begin} {self.last}" + (f" {self.commits}" if self.commits else "")

    @classmethod
    def parse(cls, text: str) -> LogMark:
        """Parse the text form.

        :raises PositionError: ``text`` does not have this form.
        """
        rest, _, commits = text.rpartition(" ")
        # Digests have no colons.
        if ":" not in commits:
            rest, commits = text, ""
        place, *digests = rest.rsplit(" ", 2)
        if len(digests) != 2:
            raise PositionError(f"{text!r} is not a log mark", hint="use the form PLACE BEGIN LAST")
        begin, last = digests
        return cls(LogPlace.parse(place), begin, last, commits)


def place_of_present(settings: ConnectionSettings, connection: Connection, begun: LogPlace) -> LogPlace:
    """Return the place in the log of a position that has just been fixed.

    :param begun: a place in the log that was recorded before the position was fixed. The file of the place has a unique
        stamp (`unambiguous_end_of_log`).
    """
    file, position, *_ = log_status(connection)
    return (
        replace(begun, position=int(position)) if file == begun.file else unambiguous_end_of_log(settings, connection)
    )


def mark_of(settings: ConnectionSettings, place: LogPlace, commits: str) -> str:
    """Return the mark of the position at ``place`` in the log.

    :param commits: `LogMark.commits`.
    """
    _, begin = _begin(settings, place.file)
    return str(LogMark(place, begin, _last(settings, place), commits))


def check_mark(settings: ConnectionSettings, files: Mapping[str, int], mark: LogMark) -> None:
    """Check that the server's log is the log to which ``mark`` belongs, and that everything before the mark is still
    there.

    :param files: the files of the log, including the file of the mark.
    :raises SourceReplaced: the server's log is not the log to which ``mark`` belongs.
    :raises LogGone: the end of the log is missing.
    """
    finding = _compared(settings, files, mark)
    if finding.relation is HistoryRelation.UNKNOWN or (
        finding.relation is HistoryRelation.OTHER and _is_cut(files, mark)
    ):
        raise LogGone(finding.why, where=settings.address, hint=BEGIN_ANEW)
    if finding.relation is HistoryRelation.OTHER:
        raise other_log(settings, finding.why)


def relations(settings: ConnectionSettings, connection: Connection, traces: Sequence[Trace]) -> list[Finding]:
    """Implements `Source.relations` for the server of ``connection``."""
    files, findings = log_files(connection), []
    executed = GtidSet.parse(value(connection, "@@global.gtid_executed"))
    for trace in traces:
        finding = _by_mark(settings, files, trace.mark)
        if isinstance(trace.position, GtidSet) and (lost := trace.position - executed):
            why = f"the server no longer has the transactions {str(lost)[:200]}, which the copy contains"
            finding = Finding(HistoryRelation.OTHER, why)
        findings.append(finding)
    return findings


def _by_mark(settings: ConnectionSettings, files: Mapping[str, int], text: str) -> Finding:
    try:
        mark = LogMark.parse(text)
    except PositionError:
        return Finding(HistoryRelation.UNKNOWN, "the copy has no record of the log position at which it was made")
    return _compared(settings, files, mark)


def _compared(settings: ConnectionSettings, files: Mapping[str, int], mark: LogMark) -> Finding:
    place = mark.place
    if place.file not in files:
        base = place.file.rpartition(".")[0]
        numbers = [file_number(name) for name in files if name.rpartition(".")[0] == base]
        # File numbers always increase, and the server purges the oldest files first.
        if numbers and min(numbers) < file_number(place.file):
            return Finding(HistoryRelation.OTHER, f"the log no longer has the file {place.file}, but has earlier files")
        return Finding(
            HistoryRelation.UNKNOWN,
            f"the log file {place.file} was purged. It contained the position at which the copy was made",
        )
    if _is_cut(files, mark):
        return Finding(
            HistoryRelation.OTHER, f"the log file {place.file} no longer reaches position {place.position:,}"
        )
    # Read the beginning of the file last. If this last read finds the file, the file also existed during the other
    # reads.
    last = _last(settings, place) if mark.last != _NOTHING else _NOTHING
    reaches = mark.last != _NOTHING or _reaches(settings, place)
    stamp, begin = _begin(settings, place.file)
    if not stamp:
        return Finding(
            HistoryRelation.UNKNOWN,
            f"the log file {place.file} was purged. It contained the position at which the copy was made",
        )
    if (place.stamp and stamp != place.stamp) or _differ(mark.begin, begin):
        return Finding(HistoryRelation.OTHER, f"the log file {place.file} was replaced after the copy was made")
    if not reaches:
        return Finding(
            HistoryRelation.OTHER, f"the log file {place.file} no longer reaches position {place.position:,}"
        )
    if _differ(mark.last, last):
        return Finding(
            HistoryRelation.OTHER, f"the events before {place} in the log are not the same as when the copy was made"
        )
    return Finding(HistoryRelation.SAME)


def _differ(recorded: str, found: str) -> bool:
    return recorded not in (_NOTHING, found)


def _is_cut(files: Mapping[str, int], mark: LogMark) -> bool:
    return files.get(mark.place.file, mark.place.position) < mark.place.position


def _begin(settings: ConnectionSettings, file: str) -> tuple[str, str]:
    """Return the creation time of a file, as in `LogPlace.stamp`, and the digest of its PREVIOUS_GTIDS event."""
    stamp, begin = "", _NOTHING
    with closing(log_events(settings, file, log_protocol.FIRST_POSITION)) as events:
        for _, event in zip(range(4), events, strict=False):
            if event.kind == log_protocol.FORMAT_DESCRIPTION:
                stamp = str(event.when)
            if event.kind == log_protocol.PREVIOUS_GTIDS:
                begin = _digest(event.data)
                break
    return stamp, begin


def _last(settings: ConnectionSettings, place: LogPlace) -> str:
    """Return the digest of the commit event that ends at ``place``, or `_NOTHING` if no such event ends there."""
    for length in (_XID_BYTES + log_protocol.CHECKSUM_BYTES, _XID_BYTES):
        if place.position - length < log_protocol.FIRST_POSITION:
            continue
        with closing(log_events(settings, place.file, place.position - length)) as events:
            # At the beginning of every dump, the server first sends the file's FORMAT_DESCRIPTION, regardless of the
            # position.
            in_file = [event for _, event in zip(range(4), events, strict=False) if not event.made_up][1:]
        end = place.position & log_protocol.LOW_HALF
        if in_file and (in_file[0].kind, in_file[0].length, in_file[0].end) == (log_protocol.XID, length, end):
            return _digest(in_file[0].data)
    return _NOTHING


def _reaches(settings: ConnectionSettings, place: LogPlace) -> bool:
    """Return whether the file reaches ``place``. For an encrypted file, the size of the file does not show this."""
    with closing(log_events(settings, place.file, place.position)) as events:
        return next(events, None) is not None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
