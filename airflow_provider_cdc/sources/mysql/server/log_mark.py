"""Marks of positions in the server's history. A mark consists of a place in the log and of digests of the log at this
place.

A server begins a new log file at each start, and never appends to an older file. So three checks show that everything
before the place is unchanged: the file still reaches the place, begins with the same events, and has the same event
before the place. If all checks succeed, the server continues the history of the mark. After a reset, or in a restored
backup, at least one of the checks fails. After the file has been purged, the histories cannot be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from airflow_provider_cdc.core.positions.facts import Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import LogGone, PositionError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.log_history import (
    BEGIN_ANEW,
    LogPlace,
    file_number,
    log_events,
    log_files,
    log_status,
    other_log,
    settled_end_of_log,
)
from airflow_provider_cdc.sources.mysql.server.session import Connection, value

_DIGITS = 16
_XID_BYTES = log_protocol.HEADER_BYTES + 8
_NOTHING = "-"


@dataclass(frozen=True)
class LogMark:
    """A mark of a position in the log. Its text form is ``binlog.000007:4312@1795298235 <begin> <last>``.

    ``begin`` is a digest of the file's PREVIOUS_GTIDS event, which lists the transactions in earlier files. ``last`` is
    a digest of the event that ends at the place. This digest is known only if the event commits an InnoDB transaction,
    because only the length of such events is known. An unknown digest is ``-``.
    """

    place: LogPlace
    begin: str = _NOTHING
    last: str = _NOTHING

    def __str__(self) -> str:
        return f"{self.place} {self.begin} {self.last}"

    @classmethod
    def parse(cls, text: str) -> LogMark:
        """Parse the text form.

        :raises PositionError: ``text`` does not have this form.
        """
        place, *digests = text.rsplit(" ", 2)
        if len(digests) != 2:
            raise PositionError(f"{text!r} is not a log mark", hint="use the form PLACE BEGIN LAST")
        return cls(LogPlace.parse(place), *digests)


def mark_of_present(settings: ConnectionSettings, connection: Connection, begun: LogPlace) -> str:
    """Return the mark of a position that has just been fixed.

    :param begun: a place in the log that was recorded before the position was fixed. The file of the place has a unique
        stamp (`settled_end_of_log`).
    """
    file, position, *_ = log_status(connection)
    here = replace(begun, position=int(position)) if file == begun.file else settled_end_of_log(settings, connection)
    return mark_of(settings, here)


def mark_of(settings: ConnectionSettings, place: LogPlace) -> str:
    """Return the mark of the position at ``place`` in the log."""
    _, begin = _begin(settings, place.file)
    return str(LogMark(place, begin, _last(settings, place)))


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
