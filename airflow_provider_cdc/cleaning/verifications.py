"""The folders of verifications that ended without a result: they were killed, or failed.

A verification reads the source with throw-away runs, in its own folder in ``_verify`` of the target. These runs publish
nothing. If the verification ends by itself, it removes them. After it was killed, their rows stay, and on PostgreSQL
their slots and publications, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from airflow_provider_cdc.cleaning.findings import VERIFICATION, Leftover, Removal
from airflow_provider_cdc.cleaning.known_runs import RUN_ID, Rules
from airflow_provider_cdc.cleaning.server_objects import ServerObjects
from airflow_provider_cdc.core.copies.retention import LIFELESS
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.listing import Entry, entries, folder_times, total
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.jobs.verify.request import FOLDER, REQUEST, RESULT, Request


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
            request = records.read(Request, folder, REQUEST)
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
            days = counted(wait.days, "day")
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
