"""The things that `Cleaner` finds, with the proof that each can be removed, or the reason why it stays."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from airflow_provider_cdc.core.copies.retention import UNANNOUNCED
from airflow_provider_cdc.core.liveness import StateOf, Verdict, judge, read_dag_run
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.run import Run, was_announced
from airflow_provider_cdc.core.storage.folder import Storage, entries
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ManifestError

RUN, WORK_FILES, PLACED, FILE, VERIFICATION = "run", "work files", "half-placed copies", "file", "verification"
"""The kinds of leftovers in the lake. Those on the server are in `sources.api.source`."""

SHOWN = 200


@dataclass(frozen=True)
class Leftover:
    """Something that a run left behind.

    :param kind: one of the kinds above, or a kind of `sources.api.source`.
    :param what: the URI of a folder or file, or the name of an object on the server.
    :param run_id: the run; empty: unknown.
    :param bytes: the size of the files, or of the log that the server keeps.
    :param why: the proof that the run has ended, or the reason why the leftover stays.
    """

    kind: str
    what: str
    run_id: str
    bytes: int
    why: str

    def __str__(self) -> str:
        size = f", {format_count(self.bytes, 'byte')}" if self.bytes else ""
        return f"{self.kind} {self.what}{size}: {self.why}"


@dataclass(frozen=True)
class Removal:
    """A leftover that can be removed. ``remove`` proves it again, removes it, and returns why it stays; empty: it was
    removed."""

    leftover: Leftover
    remove: Callable[[], str]


@dataclass(frozen=True)
class CleaningReport:
    """The result of a clean-up. With ``dry_run``, ``removed`` are the leftovers that would have been removed."""

    removed: tuple[Leftover, ...]
    kept: tuple[Leftover, ...]
    dry_run: bool

    @property
    def bytes(self) -> int:
        """The size of the removed files. The log that a server keeps is not included."""
        return sum(one.bytes for one in self.removed if one.kind in (RUN, WORK_FILES, PLACED, FILE, VERIFICATION))

    def data(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        lists = {"removed": [asdict(one) for one in self.removed], "kept": [asdict(one) for one in self.kept]}
        return {**lists, "bytes": self.bytes, "dry_run": self.dry_run}

    def lines(self) -> list[str]:
        """Return the report as text."""
        verb = "would be removed" if self.dry_run else "removed"
        return [
            f"{format_count(len(self.removed), 'leftover')} {verb}, {format_count(self.bytes, 'byte')} in the lake",
            *_listed(self.removed),
            f"{format_count(len(self.kept), 'leftover')} kept",
            *_listed(self.kept),
        ]


def _listed(found: Sequence[Leftover]) -> list[str]:
    more = [f"  and {len(found) - SHOWN:,} more"] if len(found) > SHOWN else []
    return [f"  {one}" for one in found[:SHOWN]] + more


# Reads the folders of all runs of a target, and decides which runs have ended.


RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}")
"""The ids that `operators.base.run_id_for` gives to runs. Folders with other names are not examined."""

_READERS = 8


@dataclass
class Rules:
    """The facts by which runs are judged.

    :param lake: URI of the target.
    :param source_conn_id: the connection of the runs.
    :param wait: how long the files of an ended DAG run stay.
    :param now: the present time, by the clock of the store.
    """

    lake: str
    source_conn_id: str
    wait: timedelta
    state_of: StateOf
    now: datetime


@dataclass
class KnownRuns:
    """The runs in ``scratch``. ``unreadable`` has the reason for each run that this version cannot read.
    ``without_manifest`` are folders in which no run has begun, or whose removal was interrupted."""

    scratch: Storage
    rules: Rules
    runs: dict[str, Run] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    without_manifest: list[str] = field(default_factory=list)

    def read(self) -> None:
        """Read the folders of all runs."""
        names = [name for name in self.scratch.folders() if RUN_ID.fullmatch(name)]
        with ThreadPoolExecutor(_READERS) as readers:
            for name, run in zip(names, readers.map(self._read, names), strict=True):
                if isinstance(run, Run):
                    self.runs[name] = run
                elif not run:
                    self.without_manifest.append(name)
                else:
                    self.unreadable[name] = run

    def _read(self, name: str) -> Run | str:
        folder = self.scratch.folder(name)
        try:
            return Run.load(folder)
        except ManifestError as error:
            # A removal deletes the first entry first. So without it, no later entry counts.
            return error.message if Run.exists(folder) else ""

    def foreign(self, run: Run) -> str:
        """Return why a run is not examined; empty: it is."""
        manifest = run.manifest
        if manifest.lake != self.rules.lake:
            return f"it publishes in another target, {manifest.lake}"
        if manifest.source_conn_id != self.rules.source_conn_id:
            return f"it was made with another connection, {manifest.source_conn_id!r}"
        return ""

    def verdict(self, run: Run) -> Verdict:
        """Return whether an unpublished run has ended."""
        files = entries(run.folder, recursive=True)
        written = max((file.written for file in files), default=self.rules.now)
        return judge(read_dag_run(run.folder), written, self.rules.now, self.rules.state_of, self.rules.wait)

    def is_settled(self, run: Run) -> bool:
        """Return whether the last task of a published run no longer needs the run's records, slot and publication."""
        files = () if was_announced(run) else entries(run.folder, recursive=True)
        return all(self.rules.now - file.written >= UNANNOUNCED for file in files)

    def needed_files(self, table: TableName) -> set[str]:
        """Return the names of the files of a table's copies, as the commits of all known runs record them."""
        return {
            part.base_name
            for run in self.runs.values()
            if run.committed
            for name, copy_name in names_of(run)
            if copy_name == table
            for file in decision_of(run).files_of(name)
            for part in file.parts
        }


def names_of(run: Run) -> Iterator[tuple[str, TableName]]:
    """Yield the name of each table of a run, and the name of its copy."""
    for entry in run.manifest.tables:
        yield str(entry.table.name), entry.table.copy_name
