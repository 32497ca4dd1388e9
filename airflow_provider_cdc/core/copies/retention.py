"""Finds the older copies in a lake, and the folders of runs, that can be removed.

A copy is removed only if three conditions are true: a finished run recorded that it made the copy, the copy is not one
of the newest copies of its table, and no run that may still publish is based on the copy. If a condition is unknown,
the copy is kept and reported.

A run that is based on a copy, and a run that removes the copy, may be active at the same time. So each run first
records its intention, and then looks for the record of the other run. The run that is based on the copy writes its
manifest, which names its bases, and checks for marks before it uses the bases (`check_not_removed`). The run that
removes the copy marks it, and reads the manifests again before it deletes the first file. Even if one of the runs
stalls in between, at least one run detects the other run and stops.

A mark belongs to one manifest. If a run is recreated with the same id after its first copies were removed, marks for
the first copies do not apply to the new copies, even if such a mark is written late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cmp_to_key
from typing import Any, Protocol

from airflow_provider_cdc.core.copies.head import Copy, is_newer, is_of_another_source
from airflow_provider_cdc.core.copies.removal import MARKS, has_marks, mark, marked_folders
from airflow_provider_cdc.core.run.commit_record import decision_of
from airflow_provider_cdc.core.run.run import Run, is_published, remove_state, run_id_in, was_announced, written_state
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import copy_names
from airflow_provider_cdc.core.shards.published import files_of_copy, published_copies
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import ManifestError

LIFELESS = timedelta(days=7)
"""A run that is not published counts as over if it has written nothing for this time."""
UNANNOUNCED = timedelta(days=1)
"""The longest time to wait for the end of a published run's last task, which still reads the run's records."""

_READERS = 8


class Lake(Protocol):
    """The lake; see ``sinks.base.Sink``."""

    def latest(self, table: TableName) -> Any: ...

    def copies(self, table: TableName) -> list[str]: ...

    def copy_folder(self, run_id: str, table: TableName) -> Storage: ...


@dataclass(frozen=True)
class Expired:
    """A run's copy of a table that can be removed. ``feed`` are the files of the changes between the previous copy and
    this one."""

    run: Run
    table: TableName
    files: tuple[StagedFile, ...]
    feed: tuple[StagedFile, ...] = ()


class Runs:
    """All runs in the folder ``scratch``, except the run ``own``.

    ``known`` has the runs that this version can read, by id. ``remains`` are folders whose removal has begun.
    """

    def __init__(self, scratch: Storage, own: str, lake: Lake) -> None:
        self.known: dict[str, Run] = {}
        self.remains: list[str] = []
        self._scratch = scratch
        self._own = own
        self._lake = lake
        self._unreadable: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read again all runs that may have changed."""
        names = {*self._scratch.folders()} - {self._own}
        self.known = {name: run for name, run in self.known.items() if name in names and is_published(run)}
        self.remains, self._unreadable = [], {}
        unread = sorted(names - self.known.keys())
        with ThreadPoolExecutor(_READERS) as readers:
            for name, state in zip(unread, readers.map(self._read, unread), strict=True):
                if isinstance(state, Run):
                    self.known[name] = state
                elif state:
                    self._unreadable[name] = state
                elif has_marks(self._scratch.folder(name)):
                    self.remains.append(name)

    def user_of(self, run_id: str, table: TableName | None = None) -> str:
        """Return the id of a run that is based on a copy of the run ``run_id`` and may still publish; empty: there is
        no such run. If ``table`` is given, only the copy of this table counts."""
        for name, run in self.known.items():
            bases = {entry.base for entry in run.manifest.tables if table is None or entry.table.copy_name == table}
            if run_id in bases and not is_over(run) and not is_stuck(run, self._lake):
                return name
        # A damaged entry, or an entry of another version, cannot be decoded, but its text still contains the run ids.
        return next((name for name, text in self._unreadable.items() if run_id in text), "")

    def _read(self, name: str) -> Run | str:
        folder = self._scratch.folder(name)
        try:
            return Run.load(folder)
        except ManifestError:
            # Without its first entry, a folder is not a run, but what is left of one.
            names = written_state(folder) if Run.exists(folder) else []
            return "\n".join(_text(folder, file_name) for file_name in names)


def is_over(run: Run) -> bool:
    """Return whether the run can publish nothing more, even if a try of the run resumes late."""
    return is_published(run) or run.ended


def is_stuck(run: Run, lake: Lake) -> bool:
    """Return whether a run has its commit but can never be published, because a file of the previous copy is lost. The
    run needs this file, because all files of all tables must be in place before the first table is announced.
    """
    if not run.committed or is_published(run):
        return False
    try:
        kept_files = decision_of(run).kept
    except ManifestError:
        return False
    for entry in run.manifest.tables:
        kept_of_table = kept_files.get(str(entry.table.name), ())
        expected_names = {part.base_name for file in kept_of_table for part in file.parts}
        # Look in the base's folder first, because a file that is not in this folder cannot be added to the run's folder
        # later.
        for run_id in (entry.base, run.run_id) if expected_names else ():
            expected_names -= {*lake.copy_folder(run_id, entry.table.copy_name).files()}
        if expected_names:
            return True
    return False


def expired(
    run: Run, tables: Sequence[TableName], keep: int, lake: Lake, runs: Runs, days: int = 0
) -> tuple[list[Expired], dict[str, str]]:
    """Return the expired copies of ``tables``. Also return, by the URI of the copy, why other copies of the same age
    are kept.

    A copy is expired if it is older than the newest ``keep`` copies of its table, and was published at least ``days``
    days before ``run``. The copy of ``run``, which is published, is the first of the newest copies. Copies of ended
    histories are older than all copies of the present history (`core.positions.facts`).

    If a table's latest copy is not the copy of ``run``, the result has no copies of this table. The run that made the
    latest copy removes them.
    """
    copies_to_remove: list[Expired] = []
    remaining: dict[str, str] = {}
    for table in tables:
        if not is_latest(run, table, lake):
            continue
        copy, older = copy_of(run, table), []
        for run_id in lake.copies(table):
            uri = lake.copy_folder(run_id, table).uri
            other = runs.known.get(run_id)
            if run_id == run.run_id or (other is not None and not is_over(other)):
                continue
            if other is None or table not in (_made(other) or ()):
                remaining[uri] = "no finished run that this version can read records that it made this copy"
            elif _is_foreign(other, run):
                remaining[uri] = "it was made from another source, or for another lake"
            else:
                older.append(made_by(other, table))
        leaving = [old_copy for old_copy in older if folder_name(table) in marked_folders(old_copy.run)]
        staying = sorted((old_copy for old_copy in older if old_copy not in leaving), key=_BY_POSITION, reverse=True)
        old = [
            old_copy
            for old_copy in staying[keep - 1 :]
            if is_newer(copy, _copy(old_copy)) and _age(old_copy.run, run) >= days
        ]
        for old_copy in [*leaving, *old]:
            if user := runs.user_of(old_copy.run.run_id, table):
                remaining[lake.copy_folder(old_copy.run.run_id, table).uri] = in_use(user)
            else:
                copies_to_remove.append(old_copy)
    return copies_to_remove, remaining


def _age(other: Run, run: Run) -> int:
    """Return how many days before ``run`` the run ``other`` was published."""
    then, now = (datetime.fromisoformat(decision_of(compared).published_at) for compared in (other, run))
    return (now - then).days


def in_use(user: str) -> str:
    """Return the text of the reason for keeping a copy, which is that the run ``user`` may be based on the copy."""
    return f"run {user}, which is not over, may be based on it"


def made_by(run: Run, table: TableName) -> Expired:
    """Return a run's copy of a table with the files that the run's commit names. It is possible that the run has not
    published the copy."""
    decision = decision_of(run)
    feed = decision.feeds.get(str(table))
    return Expired(run, table, files_of_copy(run, decision, table), feed.files if feed else ())


def is_latest(run: Run, table: TableName, lake: Lake) -> bool:
    """Return whether the run's copy of a table is the table's latest copy at this moment."""
    head = lake.latest(table)
    return head is not None and head.run_id == run.run_id


def without_copies(run: Run, tables: Sequence[TableName], lake: Lake, runs: Runs, now: datetime) -> list[Run]:
    """Return the runs that published copies of some of ``tables`` before ``run``, and that have no copies left.

    The records of these runs are no longer needed, because the last task of each run has ended
    (`Run.record_announced`), or has written nothing for `UNANNOUNCED`.

    :param now: the time of the store's clock.
    """
    there: dict[TableName, set[str]] = {}
    empty_runs = []
    for run_id, other in runs.known.items():
        created_at = _made(other)
        if created_at is None or not {*created_at} & {*tables} or _is_foreign(other, run):
            continue
        if not all(is_newer(copy_of(run, table), copy_of(other, table)) for table in created_at) or runs.user_of(
            run_id
        ):
            continue
        for table in created_at:
            if table not in there:
                there[table] = {*lake.copies(table)}
        if any(run_id in there[table] for table in created_at):
            continue
        # Two runs may be published at almost the same time, and the last task of the first run may still be running.
        if was_announced(other) or _silent_since(other, now - UNANNOUNCED):
            empty_runs.append(other)
    return empty_runs


def lifeless(run: Run, tables: Sequence[TableName], lake: Lake, runs: Runs, now: datetime) -> list[Run]:
    """Return the unpublished runs that have written nothing for `LIFELESS`, if all their tables are in ``tables``.

    :param now: the time of the store's clock.
    """
    idle_runs = []
    for other in runs.known.values():
        manifest = other.manifest
        run_tables = {entry.table.copy_name for entry in manifest.tables}
        if is_published(other) or not run_tables <= {*tables} or _is_foreign(other, run):
            continue
        # If the commit of a run is recorded, a resumed try may still publish the run.
        if other.committed and not is_stuck(other, lake):
            continue
        if _silent_since(other, now - LIFELESS):
            idle_runs.append(other)
    return idle_runs


def _silent_since(run: Run, when: datetime) -> bool:
    """Return whether no step of a run has written anything since ``when``."""
    try:
        return run.folder.newest_time() < when
    except FileNotFoundError:
        # Another run has removed the folder meanwhile.
        return False


def remove_folder(run: Run, by: str) -> None:
    """Remove the folder of a run that is over, unless the run was recreated meanwhile. If the removal stops half-way,
    `Runs.remains` lists the folder."""
    with suppress(ManifestError):
        if Run.load(run.folder).digest != run.digest:
            return
    for table in tables_of(run) if is_published(run) else copy_names(run.manifest.tables):
        mark(run, table, by)
    remove_state(run.folder)
    remove_remains(run.folder)


def remove_remains(folder: Storage) -> None:
    """Remove the remainder of a run's folder."""
    for name in folder.files():
        folder.delete_file(name)
    # Delete the marks last, because they identify this folder as a remainder.
    for name in folder.folders():
        # Ignore a missing folder, because another run may remove the same folder.
        with suppress(FileNotFoundError):
            if name != MARKS:
                folder.delete_folder(name)
    with suppress(FileNotFoundError):
        folder.parent().delete_folder(run_id_in(folder))


def copy_of(run: Run, table: TableName) -> Copy:
    """Return a run's published copy of a table, with the fields by which copies are ordered."""
    manifest = run.manifest
    position: Mapping[str, Any] = {"position": run.position_text, manifest.position_key: run.position_text}
    history = manifest.history_of(table)
    return Copy(run.run_id, recorded_at=manifest.created_at, source=manifest.source, history=history, **position)


def tables_of(run: Run) -> list[TableName]:
    """Return the names of the copies that a run has published. A copy has the name of a table, or of a part of a
    table."""
    return [copy.name for copy in published_copies(run.manifest, decision_of(run))]


def _made(run: Run) -> list[TableName] | None:
    """Return the names of the copies that a run has published; None: the run was not published, or its record is
    damaged."""
    try:
        return tables_of(run) if is_published(run) and run.committed else None
    except ManifestError:
        return None


def _is_foreign(other: Run, run: Run) -> bool:
    """Return whether ``other`` has another lake or another source than ``run``."""
    if other.manifest.lake != run.manifest.lake:
        return True
    position = other.position_text if is_published(other) else other.manifest.initial_position
    copy = Copy(other.run_id, position=position, source=other.manifest.source)
    return is_of_another_source(copy, run.manifest.source, run.position)


def _text(folder: Storage, name: str) -> str:
    with folder.filesystem.open_input_stream(folder.path(name)) as stream:
        return bytes(stream.read()).decode("latin-1")


def _compared(one: Expired, other: Expired) -> int:
    return 1 if is_newer(_copy(one), _copy(other)) else -1


def _copy(one: Expired) -> Copy:
    return copy_of(one.run, one.table)


_BY_POSITION = cmp_to_key(_compared)
