"""Finds the files that ended runs and killed processes left behind"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_provider_cdc.cleaning.findings import (
    FILE,
    RUN_ID,
    VERIFICATION,
    KnownRuns,
    Leftover,
    Removal,
    Rules,
    names_of,
)
from airflow_provider_cdc.cleaning.server_objects import ServerObjects
from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.copies.retention import LIFELESS, UNANNOUNCED
from airflow_provider_cdc.core.liveness import FOLDER as TURNS
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT, Manifest
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.durable import shows_growing_files
from airflow_provider_cdc.core.storage.folder import Entry, Storage, entries, folder_times, total
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError, ManifestError
from airflow_provider_cdc.jobs.verify.request import FOLDER, REQUEST, RESULT, VerifyRequest
from airflow_provider_cdc.sinks.base import Sink, StrayFile

# Small files that a process left because it was killed between two calls: probes of a store, and files that were to be
# renamed. No process uses them after a day.


_PROBE = re.compile(r"_probe-(?:a-)?[0-9a-f]{32}(?:\.[0-9a-f]{32}\.tmp)?")
_TEMPORARY = re.compile(r"_latest\.json\.[0-9a-f]{32}\.tmp")


def temporary_files(lake: Storage, scratch: Storage, rules: Rules) -> Iterator[Removal]:
    """Yield the temporary files in the folders of the target that are older than a day."""
    for folder in (lake, scratch, scratch.folder(TURNS)):
        yield from _matching(folder, "", _PROBE, rules)
    if not shows_growing_files(lake.filesystem):
        # Object stores show an object when it is complete, so nothing is renamed there.
        return
    for table in lake.folders():
        if not table.startswith("_"):
            yield from _matching(lake, table, _TEMPORARY, rules)


def _matching(folder: Storage, name: str, pattern: re.Pattern[str], rules: Rules) -> Iterator[Removal]:
    for file in entries(folder, name):
        if pattern.fullmatch(file.name.rpartition("/")[2]) and rules.now - file.written >= UNANNOUNCED:
            proof = f"a process that was killed left it: written at {file.written:%Y-%m-%d %H:%M:%S} UTC"
            yield Removal(
                Leftover(FILE, folder.uri_of(file.name), "", file.bytes, proof), partial(_remove, folder, file)
            )


def _remove(folder: Storage, file: Entry) -> str:
    folder.delete_file(file.name)
    return ""


# The folders of verifications that ended without a result: they were killed, or failed.
#
# A verification reads the source with throw-away runs, in its own folder in ``_verify`` of the target. These runs
# publish nothing. If the verification ends by itself, it removes them. After it was killed, their rows stay, and on
# PostgreSQL their slots and publications, too.


@dataclass(frozen=True)
class Verifications:
    """The verifications in ``lake`` that have no result, or that left throw-away runs: the ids of these runs by the id
    of the verification, and the reason for each verification that this version cannot read."""

    lake: Storage
    rules: Rules
    unfinished: dict[str, tuple[str, ...]]
    unreadable: dict[str, str]

    @classmethod
    def listed(cls, lake: Storage, rules: Rules) -> Verifications:
        """List the verifications. Call this before the objects on the server are listed, which have the ids of
        throw-away runs in their names."""
        found = cls(lake, rules, {}, {})
        for name in (one.rpartition("/")[2] for one in lake.folders(FOLDER)):
            if RUN_ID.fullmatch(name):
                found._read(name)
        return found

    def _read(self, name: str) -> None:
        folder = self.lake.folder(FOLDER, name)
        files = [file.name for file in self._files(name)]
        if REQUEST not in files:
            # The verification died before it had begun a run, or its removal was interrupted.
            self.unfinished[name] = (name,)
            return
        try:
            request = records.read(VerifyRequest, folder, REQUEST)
        except ManifestError as error:
            self.unreadable[name] = f"its request cannot be read: {error.message}"
            return
        if request.source_conn_id and request.source_conn_id != self.rules.source_conn_id:
            self.unreadable[name] = f"it was made with another connection, {request.source_conn_id!r}"
            return
        # Some object stores list empty folders for a while, so look for files.
        if RESULT not in files or {file.partition("/")[0] for file in files} & {*request.run_ids}:
            self.unfinished[name] = request.run_ids

    @property
    def run_ids(self) -> list[str]:
        """The ids of the throw-away runs."""
        return [run_id for ids in self.unfinished.values() for run_id in ids]

    def leftovers(self, server: ServerObjects) -> Iterator[Removal | Leftover]:
        """Yield what the verifications left behind."""
        for name, why in sorted(self.unreadable.items()):
            yield self._leftover(name, why)
        for name in sorted(self.unfinished):
            files = self._files(name)
            if not files and not self._times(name, files):
                # An object store may list an empty folder for a while.
                continue
            doubt = self._doubt(name, files, server)
            if doubt:
                yield self._leftover(name, doubt)
                continue
            last = max(self._times(name, files), default=self.rules.now)
            proof = f"it has not ended by itself, and nothing was written since {last:%Y-%m-%d %H:%M:%S} UTC"
            yield Removal(self._leftover(name, proof), partial(self._remove, name, server))

    def _files(self, name: str) -> list[Entry]:
        return entries(self.lake.folder(FOLDER, name), recursive=True)

    def _times(self, name: str, files: list[Entry]) -> list[datetime]:
        return [file.written for file in files] or folder_times(self.lake.folder(FOLDER, name))

    def _leftover(self, name: str, why: str) -> Leftover:
        return Leftover(VERIFICATION, self.lake.folder(FOLDER, name).uri, name, total(self._files(name)), why)

    def _doubt(self, name: str, files: list[Entry], server: ServerObjects) -> str:
        """Return why a verification may still work; empty: it has ended."""
        wait = max(self.rules.wait, LIFELESS)
        last = max(self._times(name, files), default=self.rules.now)
        if self.rules.now - last < wait:
            days = format_count(wait.days, "day")
            return f"it may still work: the last write was at {last:%Y-%m-%d %H:%M:%S} UTC, less than {days} ago"
        if server.problem:
            return server.problem
        return next((user for run_id in self.unfinished[name] if (user := server.user_of(run_id))), "")

    def _remove(self, name: str, server: ServerObjects) -> str:
        if doubt := self._doubt(name, self._files(name), server):
            return doubt
        for run_id in self.unfinished[name]:
            if why := server.drop_all(run_id):
                # The folder says whose slot it is, so it stays until the slot is gone.
                return why
        folder = self.lake.folder(FOLDER, name)
        if not folder.exists(RESULT):
            self.lake.delete_folder(f"{FOLDER}/{name}")
            return ""
        # The result is complete, so only the rows go.
        for run_id in self.unfinished[name]:
            folder.delete_folder(run_id)
        return ""


# Files of runs in the folders of Iceberg tables that no snapshot names.
#
# A run that rolls a copy forward may need such a file: the file without rows of an empty table. So files that the
# commit of a known run records are never removed.


SinkOf = Callable[[Manifest], Sink]


class StrayFiles:
    """The stray files of all Iceberg tables of the known runs. They were listed before the folders of runs, so the run
    of each file had begun by then.
    """

    def __init__(self, runs: Mapping[str, Run], sink_of: SinkOf) -> None:
        self._sinks: dict[TableName, Sink] = {}
        self._files: dict[TableName, list[StrayFile]] = {}
        self.problems: dict[TableName, str] = {}
        # The newest run of a table knows its present catalog.
        for _, run in sorted(runs.items()):
            if run.manifest.lake_format != LAKE_FORMAT:
                sink = sink_of(run.manifest)
                self._sinks |= {copy_name: sink for _, copy_name in names_of(run)}
        for table, sink in self._sinks.items():
            try:
                self._files[table] = sink.stray_files(table)
            except (CdcError, OSError) as error:
                self.problems[table] = f"the table could not be read: {error}"

    def of_run(self, run_id: str) -> list[tuple[TableName, StrayFile]]:
        """Return the stray files of a run."""
        return [(table, file) for table, files in self._files.items() for file in files if file.run_id == run_id]

    def delete(self, table: TableName, names: list[str]) -> None:
        """Delete stray files of a table, unless a snapshot names them by now."""
        self._sinks[table].delete_stray(table, names)

    def leftovers(self, known: KnownRuns) -> Iterator[Removal | Leftover]:
        """Yield the stray files of published runs, and of runs without a folder."""
        for table, why in self.problems.items():
            yield Leftover(FILE, str(table), "", 0, why)
        for table, files in self._files.items():
            found = [file for file in files if not _is_in_progress(file, known)]
            if not found:
                continue
            try:
                needed = known.needed_files(table)
                unknown = _why_unknown(self._sinks[table], table, known)
            except (CdcError, OSError) as error:
                yield Leftover(FILE, str(table), "", 0, f"a record could not be read: {error}")
                continue
            for file in found:
                if file.name.rpartition("/")[2] not in needed:
                    yield self._judged(table, file, known, unknown)

    def _judged(self, table: TableName, file: StrayFile, known: KnownRuns, unknown: str) -> Removal | Leftover:
        age = known.rules.now - file.written
        recorded = file.run_id in known.runs
        needed_age = retention.UNANNOUNCED if recorded else retention.LIFELESS
        if known.unreadable:
            why = f"the run {min(known.unreadable)} cannot be read, and may need the file"
        elif not recorded and unknown:
            why = unknown
        elif age < needed_age:
            why = f"it is not old enough to be judged: written at {file.written:%Y-%m-%d %H:%M:%S} UTC"
        else:
            state = "is published" if recorded else "has no folder any more"
            proof = f"its run {file.run_id} {state}, and neither a snapshot nor the record of a copy names the file"
            found = Leftover(FILE, file.uri, file.run_id, file.bytes, proof)
            return Removal(found, partial(self._remove, table, file))
        return Leftover(FILE, file.uri, file.run_id, file.bytes, why)

    def _remove(self, table: TableName, file: StrayFile) -> str:
        self.delete(table, [file.name])
        return ""


def _is_in_progress(file: StrayFile, known: KnownRuns) -> bool:
    run = known.runs.get(file.run_id)
    return file.run_id in known.unreadable or (run is not None and not is_published(run))


def _why_unknown(sink: Sink, table: TableName, known: KnownRuns) -> str:
    """Return why a file whose run has no folder may belong to a run in progress; empty: it cannot. The folders of the
    runs may be in another scratch."""
    try:
        head = sink.head(table)
    except ManifestError as error:
        return f"the latest copy of the table cannot be read: {error.message}"
    if head is None:
        return "the table has no copy, so it is unknown where its runs have their folders"
    if head.run_id not in known.runs:
        return f"the run of the latest copy, {head.run_id}, has no folder in {known.scratch.uri}: is scratch right?"
    return ""
