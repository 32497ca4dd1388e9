"""Files of runs in the folders of Iceberg tables that no snapshot names.

A run that rolls a copy forward may need such a file: the file without rows of an empty table. So files that the commit
of a known run records are never removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from airflow_provider_cdc.cleaning.findings import FILE, Leftover, Removal
from airflow_provider_cdc.cleaning.known_runs import KnownRuns, names_of
from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.run.manifest import LAKE_FORMAT, Manifest
from airflow_provider_cdc.core.run.run import Run, is_published
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import CdcError, ManifestError
from airflow_provider_cdc.sinks.base import Sink, StrayFile

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
        needed_age = retention.UNTOLD if recorded else retention.LIFELESS
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
