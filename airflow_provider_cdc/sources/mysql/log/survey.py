"""Surveys a part of the log: reads several files at a time, goes on after each statement that would stop a run, and
returns facts. The callers decide what the facts mean for their tables.

The log of one day of a busy server can be many gigabytes, so the survey reports how much of the log it has read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import dataclass, field
from typing import TypeAlias

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import CdcError, ExactnessError, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, SegmentSummary, TrackedTable
from airflow_provider_cdc.sources.mysql.log import refusals, walk_state
from airflow_provider_cdc.sources.mysql.log.dump import Dump
from airflow_provider_cdc.sources.mysql.log.segments import SegmentEras, cut
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import ColumnChanges, column_changes
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, Meaning, meaning
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import names_of
from airflow_provider_cdc.sources.mysql.log.walker import LogWalker
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.driver import has_no_room
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    check_place,
    end_of_log,
    file_number,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.session import session
from airflow_provider_cdc.sources.mysql.tables.cascades import relies_on_log

# Finds XA transactions that were prepared before the window. The log contains the rows of such a transaction only at
# its XA PREPARE, not at its commit.
#
# A transaction that commits in the window may have its rows in a file before the window. If that file was purged, it is
# unknown which rows the commit changed.


class PreparedWalker(LogWalker):
    """A walker that also records commits of transactions that were not prepared earlier in its file. ``commits`` maps
    the id of such a transaction to the place of its commit. ``prepared`` contains the ids of the transactions that are
    still undecided at the end of the file. ``is_through`` is true once the stop position, or the end of the file, is
    reached.
    """

    def __init__(
        self,
        file: str,
        start: int,
        stop: int | None,
        initial: GtidSet,
        tracked: Sequence[TrackedTable] = (),
    ) -> None:
        self.summary = SegmentSummary(LogSegment(0, file, start, stop))
        super().__init__(file, start, stop, initial, tracked, self.summary)
        self.commits: dict[str, LogPlace] = {}
        self.is_through = False

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
            while not (done := self.run(dump.data, dump.end)):
                dump.at = int(self.state[walk_state.AT])
                if not continues(dump) or not dump.fill():
                    break
                self.state[walk_state.AT] = 0
            self.is_through = done
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
            walker = PreparedWalker(file, log_protocol.FIRST_POSITION, stop, initial)
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
    if begin.position > log_protocol.FIRST_POSITION:
        yield begin.file, begin.position
    for number in range(first - 1, -1, -1):
        yield names[number], None


# The facts, and the walker that collects them.


HARMLESS = (Effect.HARMLESS, Effect.ELSEWHERE)
"""Effects of statements at which the log's reader goes on."""
_AS_TEXT = (Effect.ROW_CHANGE, Effect.NOT_UNDERSTOOD)
"""Effects of statements that may concern every table. A session may log each of its row changes as such a statement."""
MOST_AS_TEXT = 100
"""How many of these statements of a file are kept and judged for each table. Of the others, only the last is kept."""
_NAMES_TABLES = frozenset(["ALTER TABLE", "CREATE INDEX", "DROP INDEX", "DROP TABLE", "OPTIMIZE TABLE"])
"""Kinds of statements that name every table that they affect."""


@dataclass(frozen=True)
class LoggedStatement:
    """A logged statement that changes or may change tables, or only their identities.

    It lies between the places ``begins`` and ``ends``; ``where`` is its place for messages, and ``when`` the second in
    which it started. ``meaning`` is its effect on all tables together, and ``error`` the one with which the log's
    reader stops there (None: it goes on). ``on`` has the effect on each single table; it lacks tables whose rows and
    identities do not change. ``columns`` are the changes of columns, if that is all that it does.
    """

    begins: LogPlace
    ends: LogPlace
    where: str
    when: int
    meaning: Meaning
    error: CdcError | None = None
    columns: ColumnChanges | None = None
    on: Mapping[TableName, Meaning] = field(default_factory=dict)

    def identity_effect(self, table: TableName) -> IdentityEffect:
        """Return the effect on the identity of one of the tables in ``on``."""
        found = self.on[table]
        if found.effect in HARMLESS and found.identity is not None:
            return found.identity
        # Changes of columns do not explain that the table was truncated or replaced.
        return self.columns.identity if self.columns and self.columns.table == table else IdentityEffect.ANY


@dataclass(frozen=True)
class BadRows:
    """Row images that a run cannot use: what the kernel returned (`walk_state`), the table, the place, and the error
    with which the log's reader stops there."""

    code: int
    table: TableName
    place: LogPlace
    where: str
    error: CdcError


class SurveyWalker(PreparedWalker):
    """Collects the facts of one segment.

    :param rows: whether to look at the rows of the tables, too.
    """

    def __init__(self, segment: LogSegment, initial: GtidSet, tables: Sequence[Table], *, rows: bool) -> None:
        tracked = [TrackedTable(index, table, looked_at=True) for index, table in enumerate(tables)]
        if rows:
            tracked = SegmentEras(segment, tracked).tracked
        super().__init__(segment.name, segment.start, segment.stop, initial, tracked if rows else ())
        if not rows:
            self._names = names_of(tables)
        # Statements are judged for each table, too, because `meaning` reports only one table of a statement.
        self._each = {one.table.name: names_of([one.table]) for one in tracked}
        self._indexes = {one.table.name: one.index for one in tracked}
        self._statements: list[LoggedStatement] = []
        self._as_text: list[LoggedStatement] = []
        self._rows: dict[tuple[int, TableName], list[BadRows]] = {}

    @property
    def statements(self) -> list[LoggedStatement]:
        """The statements in the order of the log. Of those that may concern every table, only the first ones, and the
        last one."""
        return sorted([*self._statements, *self._as_text], key=lambda one: one.begins.position)

    @property
    def bad_rows(self) -> list[BadRows]:
        """Of each table and code, the first and the last event."""
        return [rows for found in self._rows.values() for rows in found]

    def _check(self, statement: Statement) -> None:
        found = meaning(statement, self._names)
        columns = column_changes(statement, self._names) if found.effect is Effect.TOUCHES else None
        if columns is None:
            self._remember(found)
        # The log may have thousands of statements, such as OPTIMIZE TABLE, that affect none of the tables.
        if found.effect in HARMLESS and found.identity is None:
            return
        is_text = found.effect in _AS_TEXT
        one = LoggedStatement(
            self._place(),
            self._place(self.event_bytes),
            self.where,
            self.when,
            found,
            refusals.of_statement(found, self._parents, self.where),
            columns,
            {} if is_text and len(self._as_text) > MOST_AS_TEXT else self._on_each(statement, found),
        )
        if is_text:
            self._as_text[MOST_AS_TEXT:] = [one]
        else:
            self._statements.append(one)

    def _on_each(self, statement: Statement, found: Meaning) -> dict[TableName, Meaning]:
        text = statement.text.lower()
        names_all = found.statement in _NAMES_TABLES and found.effect in (Effect.HARMLESS, Effect.TOUCHES)
        each = {}
        for name, names in self._each.items():
            # Search the text only for a plain name. For any other name, the server may treat different spellings as
            # equal, or the statement may write the name in another form.
            plain = text.isascii() and name.name.isascii() and name.name.replace("_", "a").isalnum()
            if plain and names_all and name.name.lower() not in text:
                continue
            one = meaning(statement, names)
            if one.effect not in HARMLESS or one.identity is not None:
                each[name] = one
        return each

    def _bad_rows(self, code: int, table: TableName) -> None:
        error = refusals.bad_rows(code, table, self.where)
        self._rows.setdefault((code, table), [])[1:] = [BadRows(code, table, self._place(), self.where, error)]
        if code == walk_state.NOT_WHOLE and table in self._indexes:
            # It would take long to stop at each row. If a later one matters, the caller surveys the log from here on.
            self._layouts.tables.words[walk_state.TABLE_WORDS * self._indexes[table] + walk_state.LOOKED_AT] = 2

    def _place(self, behind: int = 0) -> LogPlace:
        return LogPlace(self.summary.segment.name, self.position + behind)


@dataclass
class LogFacts:
    """What `survey` found in a part of the log, in the order of the log.

    ``summaries`` are those of all files that were read to their end. ``stopped`` is the error at which the survey had
    to stop, and its place. ``lost`` are errors and places of commits whose rows the log does not have
    (`LongPrepared`). ``ends_early`` is the place at which the server had no more events, if this is before the end of
    the part. A server may report an end of its log that it does not send yet.
    """

    statements: list[LoggedStatement] = field(default_factory=list)
    bad_rows: list[BadRows] = field(default_factory=list)
    summaries: list[SegmentSummary] = field(default_factory=list)
    stopped: tuple[ExactnessError, LogPlace] | None = None
    lost: list[tuple[ExactnessError, LogPlace]] = field(default_factory=list)
    ends_early: str = ""


def survey(
    settings: ConnectionSettings,
    begin: LogPlace,
    initial: GtidSet,
    tables: Sequence[Table],
    *,
    end: LogPlace | None = None,
    rows: bool = False,
    is_enough: Callable[[LogFacts], bool] = lambda facts: False,
) -> LogFacts:
    """Return what the log has from ``begin`` on. The survey goes on after statements and rows at which a run would
    stop.

    :param initial: transactions in this set are ignored.
    :param end: where the part ends; None: at the present end of the log.
    :param rows: whether to look at the rows of the tables, with the columns that the tables have at each place
        (`Table.eras`), and at transactions that were prepared before ``begin``.
    :param is_enough: is called after each file; true ends the survey.
    :raises SchemaChanged: the log does not have the end of an era.
    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        # Read the end of the log before the list of files, so that the list includes the file in which the log ends.
        end, files = end or end_of_log(settings, connection), log_files(connection)
        check_place(settings, files, begin)
    segments = stretches(files, begin, end)
    if rows:
        segments = cut(segments, tables)
    facts, prepared = LogFacts(), LongPrepared()
    files_ahead = _FilesAhead(settings, files, segments, lambda one: SurveyWalker(one, initial, tables, rows=rows))
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="log-survey") as pool, closing(files_ahead):
        for walker, error in files_ahead.in_order(pool):
            facts.statements += walker.statements
            facts.bad_rows += walker.bad_rows
            if error is not None:
                facts.stopped = error, LogPlace(walker.summary.segment.name, walker.position)
                return facts
            facts.summaries.append(walker.summary)
            if not walker.is_through:
                facts.ends_early = facts.ends_early or walker.where
            prepared.add(walker)
            if is_enough(facts):
                return facts
    if rows:
        facts.lost = prepared.without_rows(settings, list(files), begin, initial)
    return facts


# Reads several files at a time.


FILES_AT_ONCE = 4
EVERY_SECONDS = 5.0
ENDING_SECONDS = (0.1, 0.4, 1.0, 2.0, 4.0)
"""The server counts a closed session as a connection until it notices that the session ended. So if the server rejects
a login for lack of free connections, the login is tried again after each of these pauses."""
_MIB = 2**20

_log = logging.getLogger(__name__)

_Walk: TypeAlias = Future[tuple[SurveyWalker, ExactnessError | None]]


def refused(facts: LogFacts, tables: Sequence[Table], carries: bool) -> dict[TableName, str]:
    """Return the tables at whose statements or rows a run would stop, each with the first reason in the log."""
    known = {era.begins for table in tables for era in table.eras}
    found: list[tuple[LogPlace, TableName, str]] = []
    for one in facts.statements:
        if str(one.begins) in known or (carries and one.columns is not None) or one.error is None:
            continue
        # Other statements than those that touch certain tables may concern all of them.
        touches = one.meaning.effect is Effect.TOUCHES
        on = one.on if touches else dict.fromkeys((table.name for table in tables), one.meaning)
        found += [
            (one.begins, name, f"{effect.described} ({one.where})")
            for name, effect in on.items()
            if effect.effect not in HARMLESS
        ]
    for row in facts.bad_rows:
        if carries and row.code == walk_state.SHAPE:
            continue
        # Do not check whether a prepared transaction counts. If it does not count, a table is read in full without
        # need, which is always correct.
        unlogged = row.code == walk_state.OTHERS_CASCADES
        found += [
            (row.place, table.name, f"{row.error.message} ({row.where})")
            for table in tables
            if (relies_on_log(table) if unlogged else table.name == row.table)
        ]
    reasons: dict[TableName, str] = {}
    for _, name, why in sorted(found, key=lambda one: (file_number(one[0].file), one[0].position)):
        reasons.setdefault(name, f"since the copy: {why}")
    return reasons


def stretches(files: Mapping[str, int], begin: LogPlace, end: LogPlace) -> list[LogSegment]:
    """Return the log between two places, as one segment per file. The list is empty if ``end`` is not after ``begin``.

    :param files: the files and sizes, as from `log_files`; they include the files of both places.
    """
    names = list(files)
    segments = [
        LogSegment(
            number,
            name,
            begin.position if name == begin.file else log_protocol.FIRST_POSITION,
            end.position if name == end.file else None,
        )
        for number, name in enumerate(names[names.index(begin.file) : names.index(end.file) + 1])
    ]
    return [segment for segment in segments if segment.stop is None or segment.start < segment.stop]


class _FilesAhead:
    """Reads the segments in several threads. `close` ends the reading."""

    def __init__(
        self,
        settings: ConnectionSettings,
        files: Mapping[str, int],
        segments: Sequence[LogSegment],
        walker_of: Callable[[LogSegment], SurveyWalker],
    ) -> None:
        self._left = threading.Event()
        self._settings = settings
        self._segments = segments
        self._walker_of = walker_of
        self._total = sum((segment.stop or files[segment.name]) - segment.start for segment in segments)
        # Each thread has its own counter, because a shared counter would need a lock.
        self._bytes = [0] * len(segments)
        self._dumps: dict[int, Dump] = {}
        self._logged_at = time.monotonic()

    def close(self) -> None:
        """Stop the threads, including threads that wait for a server that no longer responds."""
        self._left.set()
        for dump in list(self._dumps.values()):
            dump.abandon()

    def in_order(self, pool: ThreadPoolExecutor) -> Iterator[tuple[SurveyWalker, ExactnessError | None]]:
        """Yield the walker of each segment, in order, and the error at which it stopped, or None.

        :raises CdcError: the log of a segment could not be read. This error is not an `ExactnessError`.
        """
        at_once = FILES_AT_ONCE
        walks: dict[int, _Walk] = {}
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

    def _walk(self, number: int) -> tuple[SurveyWalker, ExactnessError | None]:
        walker = self._walker_of(self._segments[number])

        def continues(dump: Dump) -> bool:
            self._bytes[number] = dump.bytes
            # Store the dump before checking _left. This ensures that either `close` finds the dump in _dumps, or this
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

    def _awaited(self, walk: _Walk) -> BaseException | None:
        """Wait until the walk is over. Return the error if the log could not be read, else None."""
        while not wait([walk], max(0.0, self._logged_at + EVERY_SECONDS - time.monotonic())).done:
            self._log_progress()
        return walk.exception()

    def _log_progress(self) -> None:
        self._logged_at = time.monotonic()
        done = sum(self._bytes)
        _log.info(
            "Checking the log from %s on for anything that would stop a run: %s of %s MiB (%d %%)",
            self._segments[0].name,
            f"{done // _MIB:,}",
            f"{self._total // _MIB:,}",
            min(100, 100 * done // max(1, self._total)),
        )
