"""The last part of consolidate: removes older copies according to the options `keep` and `keep_days`.

The run is already published, so a failure here does not fail the run. The next run removes the copies that are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from airflow_provider_cdc.core.copies.removal import Removed, check_not_removed, mark, marked_since, note_removed
from airflow_provider_cdc.core.copies.retention import (
    Expired,
    Runs,
    expired,
    in_use,
    is_latest,
    is_stuck,
    lifeless,
    made_by,
    remove_folder,
    remove_remains,
    tables_of,
    without_copies,
)
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import sink_of
from airflow_provider_cdc.sinks.base import Sink
from airflow_provider_cdc.sources.api.source import Source

SHOWN = 5
_MAY_FAIL = (CdcError, OSError, pa.ArrowException)


def prune_old_copies(run: Run, source: Source) -> None:
    """Remove the older copies that the options of the published ``run`` do not keep."""
    if not run.manifest.options.keep:
        return
    try:
        _Retention(run, source).done()
    except _MAY_FAIL as error:
        log(f"consolidate: WARNING: could not remove older copies; the next run tries again: {error}")


def check_own_copies(run: Run) -> None:
    """Check, before a run is published again, that none of its copies has been removed.

    :raises ManifestError: a copy has been removed.
    """
    check_not_removed(run, tables_of(run))


class _Retention:
    """Removes older copies and the folders of ended runs, on behalf of one published run."""

    def __init__(self, run: Run, source: Source) -> None:
        self._run = run
        self._source = source
        self._sink: Sink = sink_of(run.manifest)
        is_latest = read_is_latest(run.folder)
        self._tables = [table for table in tables_of(run) if is_latest.get(str(table))]
        self._scratch = Storage(run.manifest.scratch)
        self._runs = Runs(self._scratch, run.run_id, self._sink)
        self._copies: dict[str, tuple[str, ...]] = {}
        self._folders: list[str] = []
        self._left: dict[str, str] = {}
        self._waiting = 0

    def done(self) -> None:
        options = self._run.manifest.options
        copies_to_remove, self._left = expired(
            self._run, self._tables, options.keep, self._sink, self._runs, options.keep_days
        )
        for old_copy in copies_to_remove:
            mark(old_copy.run, old_copy.table, self._run.run_id)
        # Refresh the list after the marks are written, so that a run that began meanwhile either sees the marks or is
        # in the new list.
        self._runs.refresh()
        for old_copy in self._withdraw(copies_to_remove):
            self._attempt(self._uri(old_copy), partial(self._remove, old_copy))
        # A failure here must not prevent the report of what was removed.
        self._attempt(self._scratch.uri, self._remove_folders)
        removed = Removed(self._copies, tuple(self._folders), self._left)
        self._log_removed(removed)
        note_removed(self._run, removed)

    def _remove_folders(self) -> None:
        now = self._run.folder.newest_time()
        for run in lifeless(self._run, self._tables, self._sink, self._runs, now):
            self._attempt(run.folder.uri, partial(self._remove_lifeless, run))
        for run in without_copies(self._run, self._tables, self._sink, self._runs, now):
            self._attempt(run.folder.uri, partial(self._remove_run, run))
        for name in self._runs.remains:
            folder = self._scratch.folder(name)
            self._attempt(folder.uri, partial(remove_remains, folder))

    def _attempt(self, uri: str, removal: Callable[[], None]) -> None:
        try:
            removal()
        except _MAY_FAIL as error:
            self._left[uri] = f"the removal failed: {error}"

    def _uri(self, one: Expired) -> str:
        return self._sink.copy_folder(one.run.run_id, one.table).uri

    def _withdraw(self, copies: Sequence[Expired]) -> list[Expired]:
        """Withdraw all copies that no run uses, in one call, and return these copies."""
        withdrawn: list[Expired] = []
        for old_copy in copies:
            self._attempt(self._uri(old_copy), partial(self._add_unused, old_copy, withdrawn))
        try:
            self._sink.withdraw([(old_copy.run.run_id, old_copy.table) for old_copy in withdrawn])
        except _MAY_FAIL as error:
            self._left |= {self._uri(old_copy): f"the removal failed: {error}" for old_copy in withdrawn}
            return []
        return withdrawn

    def _add_unused(self, one: Expired, unused: list[Expired]) -> None:
        if not is_latest(self._run, one.table, self._sink):
            return
        if user := self._runs.user_of(one.run.run_id, one.table):
            self._left[self._uri(one)] = in_use(user)
            return
        unused.append(one)

    def _remove(self, one: Expired) -> None:
        if datetime.now(UTC) - marked_since(one.run, one.table) < self._sink.grace:
            self._waiting += 1
            return
        strange = self._sink.remove(one.run.run_id, one.table, one.files, one.feed)
        if strange:
            self._left |= dict.fromkeys(strange, "the record of its copy does not name it")
        else:
            self._copies[str(one.table)] = (*self._copies.get(str(one.table), ()), self._uri(one))

    def _remove_lifeless(self, run: Run) -> None:
        # After this entry, no try of the run can publish anything.
        if run.end(f"removed by run {self._run.run_id}, because it had written nothing for days").ended is None:
            if not is_stuck(run, self._sink):
                return
            # Some files may have been moved to the copy's folder already. No reader uses these files, because no record
            # names them.
            for one in (made_by(run, table) for table in tables_of(run)):
                self._sink.remove(run.run_id, one.table, one.files, one.feed)
        for entry in run.manifest.tables:
            self._sink.clean(run.run_id, entry.table.copy_name, ())
        self._source.release(run.run_id)
        self._remove_run(run)

    def _remove_run(self, run: Run) -> None:
        remove_folder(run, self._run.run_id)
        self._folders.append(run.run_id)

    def _log_removed(self, removed: Removed) -> None:
        count = sum(map(len, removed.copies.values()))
        options, folders = self._run.manifest.options, len(removed.runs)
        limits = f"Retention.copies = {options.keep}" + (f", days = {options.keep_days}" if options.keep_days else "")
        if count or folders:
            copies = format_count(count, "older copy", "older copies")
            log(f"consolidate: {limits}: removed {copies} and {format_count(folders, 'run folder')}")
        if self._waiting:
            copies = format_count(self._waiting, "older copy", "older copies")
            log(f"consolidate: {limits}: {copies} can no longer be found by readers; a later run removes the files")
        for uri, why in sorted(removed.left.items())[:SHOWN]:
            log(f"consolidate: WARNING: did not remove {uri}: {why}")
        if len(removed.left) > SHOWN:
            log(
                f"consolidate: WARNING: {len(removed.left) - SHOWN:,} more files or folders were not removed; the "
                "run's report lists all of them"
            )
