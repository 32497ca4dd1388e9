"""Reads the folders of all runs of a target, and decides which runs have ended."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_cdc.core.copies.retention import UNTOLD
from airflow_provider_cdc.core.liveness import StateOf, Verdict, judge, read_dag_run
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.run import Run, was_told
from airflow_provider_cdc.core.storage.folder import Storage, entries
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ManifestError

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
        files = () if was_told(run) else entries(run.folder, recursive=True)
        return all(self.rules.now - file.written >= UNTOLD for file in files)

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
