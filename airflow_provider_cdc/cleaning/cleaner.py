"""Finds everything that ended runs left behind for one target, and removes it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import pyarrow as pa

from airflow_provider_cdc.cleaning.findings import (
    PLACED,
    RUN,
    WORK_FILES,
    CleaningReport,
    KnownRuns,
    Leftover,
    Removal,
    Rules,
)
from airflow_provider_cdc.cleaning.leftover_files import SinkOf, StrayFiles, Verifications, temporary_files
from airflow_provider_cdc.cleaning.server_objects import IsOfTarget, ServerObjects, leftovers_on_server
from airflow_provider_cdc.core.copies.head import is_newer
from airflow_provider_cdc.core.copies.removal import MARKS, has_marks, mark
from airflow_provider_cdc.core.copies.retention import (
    LIFELESS,
    copy_of,
    is_stuck,
    made_by,
    remove_folder,
    remove_remains,
    tables_of,
)
from airflow_provider_cdc.core.liveness import FILE as DAG_RUN
from airflow_provider_cdc.core.liveness import StateOf, no_airflow
from airflow_provider_cdc.core.positions import kinds
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT
from airflow_provider_cdc.core.run.run import WORK_FOLDERS, Run, is_published
from airflow_provider_cdc.core.storage.folder import Storage, clock_of, entries, folder_times, total
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, ConfigurationError, ManifestError
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sources.api.source import Source

# The folders of runs that ended, and the files that such a run left elsewhere in the lake.
#
# Before a file of an unpublished run is removed, the end of the run is recorded in its ledger. After that, no try of
# the run can publish anything, however late it resumes: it stops with an error. A run that has its commit cannot be
# ended like this, so its copies are removed only if no reader can ever be led to them.


# Copies that a committed run did not place completely.
#
# No table of a run is announced before all files of all tables are in place. So if a file is missing, readers were
# never led to one of the copies. Usually the run can still be completed: clear its task `consolidate`. The copies are
# garbage only if they can never be the latest ones, because newer copies of all tables exist.


_COMPLETE = "clear the task `consolidate`, which completes the publication"


@dataclass(frozen=True)
class Placed:
    """The copies of a committed run: whether they can be removed, why, and the size of the files in place."""

    removable: bool
    why: str
    bytes: int = 0


def half_placed(run: Run, sink: Sink) -> Placed:
    """Return whether the copies of a committed, unpublished run can be removed."""
    try:
        size = sum(total(entries(folder)) for table in tables_of(run) for folder in sink.folders(run.run_id, table))
        if is_stuck(run, sink):
            return Placed(True, "a file of the previous copy, which the run needs, is gone", size)
        if run.manifest.lake_format != LAKE_FORMAT:
            return Placed(False, f"the run has its commit, so a task may still publish its copies: {_COMPLETE}")
        newest = [(table, sink.head(table)) for table in tables_of(run)]
        behind = [
            table
            for table, head in newest
            if head is None or head.run_id == run.run_id or not is_newer(head, copy_of(run, table))
        ]
    except ManifestError as error:
        return Placed(False, f"a record cannot be read: {error.message}")
    if behind:
        return Placed(False, f"the run has its commit, and {behind[0]} has no newer copy: {_COMPLETE}")
    if not _missing(run, sink):
        return Placed(False, f"the run has its commit, and all files of its copies are in place: {_COMPLETE}")
    return Placed(True, "its copies are not complete, and newer copies of all tables exist", size)


def remove_half_placed(run: Run, sink: Sink, by: str) -> str:
    """Remove the copies of a run that `half_placed` calls removable. Return why they stay; empty: they were removed."""
    for table in tables_of(run):
        mark(run, table, by)
    # A task that resumes now can place no file any more. So if a file is missing, it stays missing.
    run.clean()
    placed = half_placed(run, sink)
    if not placed.removable:
        return placed.why
    for one in (made_by(run, table) for table in tables_of(run)):
        sink.remove(run.run_id, one.table, one.files, one.feed)
    return ""


def _missing(run: Run, sink: Sink) -> list[str]:
    """Return the files that a run wrote for its copies, and that are not in place."""
    decision = decision_of(run)
    names = {str(entry.table.name): entry.table.copy_name for entry in run.manifest.tables}
    return [
        file.base_name
        for name, files in decision.files.items()
        for present in [{*sink.copy_folder(run.run_id, names[name]).files()}]
        for file in files
        if file.base_name not in present
    ]


_WITHOUT_MANIFEST = {
    *WORK_FOLDERS,
    *("commit", "control", "done", "errors", "ledger", "remote", "steps", MARKS),
    *("progress.json", "published.json", "timeline.json", "report.html", "report.md", DAG_RUN),
}
"""What a task that resumes after the removal of its run may write into the run's folder."""


class RunFolders:
    """The folders of the known runs, and what belongs to them."""

    def __init__(self, known: KnownRuns, server: ServerObjects, strays: StrayFiles, sink_of: SinkOf, by: str) -> None:
        self._known = known
        self._server = server
        self._strays = strays
        self._sink_of = sink_of
        self._by = by

    def leftovers(self) -> Iterator[Removal | Leftover]:
        """Yield what the runs left behind, and the runs that stay although they are not published."""
        for name, why in sorted(self._known.unreadable.items()):
            folder = self._known.scratch.folder(name)
            size = total(entries(folder, recursive=True))
            yield Leftover(RUN, folder.uri, name, size, f"its records cannot be read: {why}")
        for name in self._known.without_manifest:
            yield from self._without_manifest(name)
        for run_id, run in sorted(self._known.runs.items()):
            foreign = self._known.foreign(run)
            if foreign:
                yield Leftover(RUN, run.folder.uri, run_id, 0, foreign)
            elif is_published(run):
                yield from self._published(run)
            else:
                yield self._unpublished(run)

    def _published(self, run: Run) -> Iterator[Removal]:
        files = [file for name in WORK_FOLDERS for file in entries(run.folder, name, recursive=True)]
        if files and self._known.is_settled(run):
            why = "the run is published, and all files of its copies are in place"
            found = Leftover(WORK_FILES, run.folder.uri, run.run_id, total(files), why)
            yield Removal(found, partial(_remove_work_files, run))

    def _unpublished(self, run: Run) -> Removal | Leftover:
        size = total(entries(run.folder, recursive=True))
        size += sum(file.bytes for _, file in self._strays.of_run(run.run_id))
        doubt = self._doubt(run)
        if doubt:
            return Leftover(RUN, run.folder.uri, run.run_id, size, doubt)
        why = self._known.verdict(run).why
        if not run.committed:
            return Removal(Leftover(RUN, run.folder.uri, run.run_id, size, why), partial(self._remove, run))
        placed = half_placed(run, self._sink_of(run.manifest))
        if not placed.removable:
            return Leftover(RUN, run.folder.uri, run.run_id, size, placed.why)
        found = Leftover(PLACED, run.folder.uri, run.run_id, size + placed.bytes, f"{why}; {placed.why}")
        return Removal(found, partial(self._remove_placed, run))

    def _doubt(self, run: Run) -> str:
        """Return why an unpublished run may not have ended; empty: it has ended."""
        verdict = self._known.verdict(run)
        if not verdict.ended:
            return verdict.why
        if kinds.has(run.manifest.kind, "slots") and self._server.problem:
            return f"{verdict.why}, but {self._server.problem}"
        if user := self._server.user_of(run.run_id):
            return f"{verdict.why}, but {user}"
        unread = [str(table) for _, table in _iceberg_tables(run) if table in self._strays.problems]
        return f"the tables {', '.join(unread)} could not be read" if unread else ""

    def _again(self, run: Run) -> tuple[Run | None, str]:
        """Read a run again. Return it, or else why it stays."""
        try:
            now = Run.load(run.folder)
        except ManifestError:
            # Another cleaner is at work on it, or the run starts again at this moment.
            return None, "it changed meanwhile"
        if now.digest != run.digest or now.committed != run.committed or is_published(now):
            return None, "it changed meanwhile"
        doubt = self._doubt(now)
        return (None, doubt) if doubt else (now, "")

    def _remove(self, run: Run) -> str:
        now, why = self._again(run)
        if now is None:
            return why
        state = now.end(f"cleaned up by {self._by}")
        if state.ended is None:
            return "a task of the run committed meanwhile" if state.commit is not None else "it changed meanwhile"
        return self._finish(now)

    def _remove_placed(self, run: Run) -> str:
        now, why = self._again(run)
        if now is None:
            return why
        why = remove_half_placed(now, self._sink_of(now.manifest), self._by)
        return why or self._finish(now)

    def _finish(self, run: Run) -> str:
        """Remove what is left of a run that can publish nothing any more. Return why something stays."""
        for table, file in self._strays.of_run(run.run_id):
            self._strays.delete(table, [file.name])
        if self._server.of_run(run.run_id) and (why := self._server.drop_all(run.run_id)):
            # The folder says whose slot it is, so it stays until the slot is gone.
            return why
        remove_folder(run, self._by)
        return ""

    def _without_manifest(self, name: str) -> Iterator[Removal | Leftover]:
        folder = self._known.scratch.folder(name)
        files = entries(folder, recursive=True)
        size, days = total(files), format_count(LIFELESS.days, "day")
        # Object stores have no times of folders. Some of them list empty folders for a while.
        times = [file.written for file in files] or folder_times(folder)
        strange = sorted({*folder.files(), *folder.folders()} - _WITHOUT_MANIFEST)
        if has_marks(folder):
            proof, why = "its removal had begun, and was interrupted", ""
        elif strange:
            proof, why = "", f"it has no manifest, and it is unknown what wrote {strange[0]}"
        elif any(self._known.rules.now - written < LIFELESS for written in times):
            proof, why = "", f"it has no manifest, and was written to in the last {days}"
        else:
            proof, why = f"no task can publish without a manifest, and nothing was written for {days}", ""
        if proof and times:
            found = Leftover(RUN, folder.uri, name, size, proof)
            yield Removal(found, partial(_remove_remains, folder))
        elif files:
            yield Leftover(RUN, folder.uri, name, size, why)


def _iceberg_tables(run: Run) -> list[tuple[str, object]]:
    return [(str(entry.table.name), entry.table.copy_name) for entry in run.manifest.tables if entry.place is not None]


def _remove_work_files(run: Run) -> str:
    run.clean()
    return ""


def _remove_remains(folder: Storage) -> str:
    # A run with this id may have started again meanwhile.
    if Run.exists(folder):
        return "a run with this id began meanwhile"
    remove_remains(folder)
    return ""


DAYS = 7


def _nothing(line: str) -> None:
    pass


@dataclass(frozen=True)
class Cleaner:
    """Removes the leftovers of ended runs.

    :param lake: the target.
    :param scratch: the folder that holds the folders of its runs.
    :param source: the source of the runs; None: no slot is examined.
    :param source_conn_id: the connection of the runs.
    :param sink_of: opens the sink of a run.
    :param state_of: asks Airflow for the state of a DAG run.
    :param is_of_target: returns whether a slot without a run was created for this target.
    :param days: how long the files of failed DAG runs stay.
    """

    lake: Storage
    scratch: Storage
    source: Source | None
    source_conn_id: str
    sink_of: SinkOf
    state_of: StateOf = no_airflow
    is_of_target: IsOfTarget = lambda one: False
    days: int = DAYS

    def clean(self, *, dry_run: bool, say: Callable[[str], None] = _nothing) -> CleaningReport:
        """Remove what can be removed, or with ``dry_run`` only find it.

        An error about one leftover does not stop the others.

        :raises ConfigurationError: the folder of runs does not exist.
        """
        if not self.scratch.folders():
            raise ConfigurationError(
                "there are no folders of runs here",
                where=self.scratch.uri,
                hint="set `target` and `scratch` to the values that the runs have",
            )
        removed: list[Leftover] = []
        kept: list[Leftover] = []
        for found in self._found():
            if isinstance(found, Leftover):
                kept.append(found)
                continue
            leftover = found.leftover
            why = "" if dry_run else _attempt(found.remove)
            if why:
                kept.append(replace(leftover, why=why))
                continue
            removed.append(leftover)
            say(f"{'would remove' if dry_run else 'removed'} {leftover}")
        return CleaningReport(tuple(removed), tuple(kept), dry_run)

    def _found(self) -> Iterator[Removal | Leftover]:
        rules = Rules(
            self.lake.uri, self.source_conn_id, timedelta(days=self.days), self.state_of, clock_of(self.scratch)
        )
        first = KnownRuns(self.scratch, rules)
        first.read()
        own = {run_id: run for run_id, run in first.runs.items() if not first.foreign(run)}
        # First list files and slots, and then read the runs again. So the run of each of them is known, or is gone. A
        # run that starts afterwards creates other files and slots.
        strays = StrayFiles(own, self.sink_of)
        verifications = Verifications.listed(self.lake, rules)
        server = ServerObjects.listed(self.source, [*first.runs, *first.unreadable, *verifications.run_ids])
        known = KnownRuns(self.scratch, rules)
        known.read()
        folders = RunFolders(known, server, strays, self.sink_of, f"clean-{uuid.uuid4().hex[:8]}")
        apart = server.without(verifications.run_ids)
        on_server = [*leftovers_on_server(apart, known, self.is_of_target)]
        in_tables = [*strays.leftovers(known)]
        yield from folders.leftovers()
        yield from verifications.leftovers(server)
        yield from on_server
        yield from in_tables
        yield from temporary_files(self.lake, self.scratch, rules)


def _attempt(remove: Callable[[], str]) -> str:
    try:
        return remove()
    except (CdcError, OSError, pa.ArrowException) as error:
        return f"the removal failed: {error}"
