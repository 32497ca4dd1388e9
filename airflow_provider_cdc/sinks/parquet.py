"""Plain Parquet: ``<lake>/<schema>.<table>/snapshot=<run_id>/part-*``, and ``_latest.json`` beside these folders. The
changes that lead to a copy lie in ``_changes/<run_id>`` (`sinks.feeds`).

``_latest.json`` names the copy to read. It changes only after every file of every table of the run is in place, and it
never goes back to an older position. Each table's changes by itself: for a moment, readers of several tables may see
one table's new copy beside another one's old copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.copies.head import Copy, position_of
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.staging import StagedFile, Staging, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.names import folder_name
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import (
    CommitUnknown,
    FileDamaged,
    ManifestError,
    PublishIncomplete,
    StorageRefused,
    StorageUnavailable,
    naming,
)
from airflow_provider_cdc.sinks import feeds
from airflow_provider_cdc.sinks.base import LakeFeed, LatestCopy, Publication, PublishedCopy, TableChange
from airflow_provider_cdc.sinks.latest import LATEST, check_source, read_latest, replace_latest

_COPY = "snapshot="
_REMOVED = "_removed="
"""What the folder of a copy is called while it is removed, where a folder can be renamed: readers do not see it."""
_PUBLISHERS, _MOVERS = 8, 8
_INCOMPLETE = "run the task again: it completes what was begun"
_STRANGE = (
    f"leave them if {LATEST} names them: they are the copy then of an earlier beginning of this run, whose records are "
    "gone or lie in another scratch, so trigger a new run; else find out who wrote them, remove them, clear the task"
)
_DAMAGED = "something else than this provider changed it, or the storage lost it: trigger a new run"


class ParquetSink:
    """The folder ``lake``."""

    def __init__(self, lake: Storage) -> None:
        self._lake = lake

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: Position) -> None:
        def check(table: TableName) -> None:
            check_source(self._lake, folder_name(table), source, position)

        # Each one waits for the store.
        with ThreadPoolExecutor(_MOVERS) as checkers:
            list(checkers.map(check, tables))

    def latest(self, table: TableName) -> LatestCopy | None:
        head = read_latest(self._lake, folder_name(table))
        if head is None:
            return None
        try:
            return self._copy_of(table, head)
        except ManifestError:
            # A newer copy may have been published since, and this one been removed (``keep``).
            if read_latest(self._lake, folder_name(table)) != head:
                return self.latest(table)
            raise

    def head(self, table: TableName) -> Copy | None:
        return read_latest(self._lake, folder_name(table))

    def publish(self, publication: Publication) -> dict[TableName, PublishedCopy]:
        def place(change: TableChange) -> None:
            with naming(str(change.table)):
                self._place(publication, change)

        def announce(change: TableChange) -> PublishedCopy:
            with naming(str(change.table)):
                uri = self._lake.uri_of(place_of(change.table, publication.run_id))
                return PublishedCopy(uri, self._announce(change.table, _latest(publication, change, uri)))

        # Each one waits for the store. No table is announced before all files of all tables are in place.
        with ThreadPoolExecutor(_PUBLISHERS) as publishers:
            list(publishers.map(place, publication.tables))
            copies = list(publishers.map(announce, publication.tables))
        return {change.table: copy for change, copy in zip(publication.tables, copies, strict=True)}

    def copy_folder(self, run_id: str, table: TableName) -> Storage:
        return self._lake.folder(*place_of(table, run_id).split("/"))

    def copies(self, table: TableName) -> list[str]:
        names = [name.rpartition("/")[2] for name in self._lake.folders(folder_name(table))]
        run_ids = {name.partition("=")[2] for name in names if name.startswith((_COPY, _REMOVED))}
        return sorted(run_ids)

    def feed(self, run_id: str, table: TableName) -> LakeFeed | None:
        return feeds.read_feed(self._lake, table, run_id)

    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        # First, so that what is left of a copy tells that there is something left of its changes.
        errors = self._remove_feed(feeds.place_of(table, run_id), {file.base_name for file in feed})
        place = place_of(table, run_id)
        hidden = f"{folder_name(table)}/{_REMOVED}{run_id}"
        file_names = {file.base_name for file in files}
        if self._own(place, file_names) and not self._strange(place, file_names):
            # Readers of the folder see all of the copy or nothing of it, where the store can do that. A run that was
            # made again under this id puts nothing there as long as files of the first one are in its way.
            self._lake.rename_folder(place, hidden)
        for folder in (place, hidden):
            errors += self._remove_files(folder, file_names)
        return errors

    def _remove_feed(self, place: str, own: set[str]) -> list[str]:
        # A run that was made again under this id has a record of its own there.
        if self._own(place, own):
            # Without it nobody takes what is still there for all of the changes.
            self._delete(f"{place}/{feeds.RECORD}")
        return self._remove_files(place, own) if own else []

    def _remove_files(self, folder: str, own: set[str]) -> list[str]:
        """Remove a folder with files of these names; returns the URIs of what else is in it."""
        # An object store is waited for.
        with ThreadPoolExecutor(_MOVERS) as removers:
            list(removers.map(self._delete, self._own(folder, own)))
        if self._lake.delete_empty_folder(folder):
            return []
        return [self._lake.uri_of(name) for name in self._strange(folder, own)]

    def _own(self, folder: str, own: set[str]) -> list[str]:
        return [name for name in self._lake.files(folder) if name.rpartition("/")[2] in own]

    def _strange(self, folder: str, own: set[str]) -> list[str]:
        entries = [*self._lake.files(folder), *self._lake.folders(folder)]
        return [name for name in entries if name.rpartition("/")[2] not in own]

    def _delete(self, name: str) -> None:
        # Another run may remove the same copy.
        with suppress(FileNotFoundError):
            self._lake.delete_file(name)

    def difference(self, run_id: str, table: TableName, file: StagedFile) -> str:
        places = [f"{place}/{file.base_name}" for place in (place_of(table, run_id), feeds.place_of(table, run_id))]
        return difference(self._lake, next(filter(self._lake.exists, places), places[0]), file)

    def unread(self, run_id: str, tables: Sequence[TableName]) -> list[str]:
        unread_files = []
        for table in tables:
            place, head = place_of(table, run_id), read_latest(self._lake, folder_name(table))
            if self._lake.exists(place) and (head is None or head.run_id != run_id):
                unread_files.append(self._lake.uri_of(place))
        return unread_files

    def _copy_of(self, table: TableName, head: Copy) -> LatestCopy:
        # The record names the place that the run wrote to. From here the lake may lie elsewhere: it is mounted at
        # another place, or is a copy of that one, which nobody asked for.
        folder = self.copy_folder(head.run_id, table)
        present = _visible(folder)
        if head.path and not present:
            folder = Storage(head.path)
            present = _visible(folder)
        path = folder.uri
        # Records of earlier versions name no files: theirs are all in the folder.
        listed_files = sorted(str(file["name"]) for file in head.files) or present
        if not listed_files or not {*listed_files} <= {*present}:
            raise ManifestError(
                f"the latest copy lacks {len({*listed_files} - {*present}) or 'all'} of its files",
                where=path,
                hint=f"somebody removed them: remove {LATEST} there, too, and trigger a new run",
            )
        return LatestCopy(
            table=str(table),
            run_id=head.run_id,
            path=path,
            files=tuple(map(folder.uri_of, listed_files)),
            rows=head.rows,
            position=position_of(head),
            as_of=head.as_of,
            recorded_at=head.recorded_at,
            published_at=head.published_at,
            source=head.source,
            where=head.where,
            columns=head.columns,
            history=head.history,
            missed_as_of=head.missed_as_of,
        )

    def _place(self, publication: Publication, change: TableChange) -> None:
        """Put the files of one table where readers will find them. The place holds these files and no others then."""
        folder = place_of(change.table, publication.run_id)
        try:
            kept_paths = {f"{folder}/{file.base_name}": file for file in change.kept}
            self._move(publication.staging, folder, change.added, kept_paths, place_of(change.table, change.base))
            if change.feed is not None:
                folder = feeds.place_of(change.table, publication.run_id)
                self._move(publication.staging, folder, change.feed.files, {}, "")
                self._lake.write_json(f"{folder}/{feeds.RECORD}", feeds.told(publication, change.feed))
        except (OSError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"a file could not be put in place: {error}", where=self._lake.uri_of(folder), hint=_INCOMPLETE
            ) from error

    def _move(
        self, staging: Staging, folder: str, added: Sequence[StagedFile], kept: Mapping[str, StagedFile], base: str
    ) -> None:
        """Put files in a folder: those ``added``, and those ``kept`` (by their new names), which are in ``base``."""
        self._lake.make_folder(folder)
        expected_paths = {f"{folder}/{file.base_name}": file for file in added} | dict(kept)
        present = self._lake.sizes(folder)
        # Before anything lies beside them: they may be a copy that is read.
        self._check_own(folder, present, expected_paths)

        def move(name: str) -> None:
            if name in kept:
                self._adopt(f"{base}/{kept[name].base_name}", name)
                return
            try:
                copied = staging.folder.move_to(expected_paths[name].name, self._lake, name)
            except (OSError, pa.ArrowException):
                # A concurrent attempt that publishes the same commit may already have moved it.
                if not self._lake.exists(name) and staging.folder.exists(expected_paths[name].name):
                    raise
                return
            if copied not in ("", expected_paths[name].checksum):
                # Nobody reads it yet, and the next try would take it for the right one.
                self._lake.delete_file(name)
                raise FileDamaged(
                    f"its checksum is {copied}, not {expected_paths[name].checksum}",
                    where=staging.folder.uri_of(expected_paths[name].name),
                    hint=_DAMAGED,
                )

        # In an object store a move copies the file, and waits for the store.
        with ThreadPoolExecutor(_MOVERS) as movers:
            list(movers.map(move, expected_paths.keys() - present.keys()))
        self._lake.sync(folder)
        present = self._lake.sizes(folder)
        for name, file in expected_paths.items():
            if present.get(name) != file.bytes:
                what = f"has {counted(present[name], 'byte')}, not {file.bytes:,}" if name in present else "is gone"
                raise FileDamaged(
                    f"the file {file.base_name} of this copy {what}", where=self._lake.uri_of(folder), hint=_DAMAGED
                )
        self._check_own(folder, present, expected_paths)

    def _check_own(self, folder: str, present: Iterable[str], wanted: Collection[str]) -> None:
        """:raises FileDamaged: the folder of a copy has files that are not of it."""
        strange = [name for name in present if name not in wanted and _is_visible(name)]
        if strange:
            raise FileDamaged(
                f"the folder of this copy holds files that are not of it: {', '.join(sorted(strange)[:5])}",
                where=self._lake.uri_of(folder),
                hint=_STRANGE,
            )

    def _adopt(self, name: str, new_name: str) -> None:
        # The copy stands alone: whoever removes the one before takes nothing away from it.
        try:
            self._lake.adopt(name, new_name)
        except (OSError, pa.ArrowException) as error:
            if self._lake.exists(name):
                raise
            raise FileDamaged(
                "a file of the copy before, which this one keeps, is gone", where=self._lake.uri_of(name), hint=_DAMAGED
            ) from error

    def _announce(self, table: TableName, latest: Copy) -> bool:
        """Make ``latest`` the table's latest copy, unless one at a newer position is; say whether it is now."""
        folder = folder_name(table)
        where = self._lake.uri_of(f"{folder}/{LATEST}")
        try:
            try:
                return replace_latest(self._lake, folder, latest)
            except StorageUnavailable:
                # The store may have done what it did not confirm. This looks before it writes.
                return replace_latest(self._lake, folder, latest)
        except StorageUnavailable as error:
            raise CommitUnknown(
                f"whether this run's copy is the latest one now is not known: {error.message}",
                where=where,
                hint="run the task again: it looks what became of it, and completes what was begun",
            ) from error
        except (StorageRefused, FileNotFoundError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"the latest copy could not be announced: {error}", where=where, hint=_INCOMPLETE
            ) from error


def _visible(folder: Storage) -> list[str]:
    return [name for name in folder.files() if _is_visible(name)]


def _is_visible(name: str) -> bool:
    """Whether readers of a folder take the file ``name`` for data."""
    return not name.rpartition("/")[2].startswith(("_", "."))


def place_of(table: TableName, run_id: str) -> str:
    """The folder of one copy of a table, relative to the lake."""
    return f"{folder_name(table)}/{_COPY}{run_id}"


def _latest(publication: Publication, change: TableChange, uri: str) -> Copy:
    under_its_own_name: dict[str, Any] = {publication.position_key: publication.position}
    return Copy(
        run_id=publication.run_id,
        path=uri,
        position=publication.position,
        as_of=publication.as_of,
        missed_as_of=publication.missed_as_of,
        recorded_at=publication.recorded_at,
        source=dict(publication.source),
        rows=change.rows,
        where=change.where,
        columns=change.columns,
        published_at=publication.published_at,
        files=tuple(map(feeds.told_file, sorted((*change.added, *change.kept), key=lambda file: file.base_name))),
        changes={} if change.feed is None else feeds.told(publication, change.feed),
        history=dict(change.history),
        **under_its_own_name,
    )
