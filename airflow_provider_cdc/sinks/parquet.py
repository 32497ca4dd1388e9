"""The sink for plain Parquet: ``<lake>/<schema>.<table>/snapshot=<run_id>/part-*``, and ``_latest.json`` beside these
folders. The changes between the previous copy and a run's copy are in ``_changes/<run_id>`` (`sinks.feeds`).

``_latest.json`` names the copy to read. It changes only after every file of every table of the run is in place, and it
never returns to an older copy. The ``_latest.json`` of each table changes separately. For a moment, readers of several
tables may see the new copy of one table and the old copy of another table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.copies.head import Copy
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.place import Place
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
from airflow_provider_cdc.sinks.base import (
    LakeFeed,
    LatestCopy,
    Prepared,
    Publication,
    PublishedCopy,
    StrayFile,
    TableChange,
)
from airflow_provider_cdc.sinks.catalog import LakeSettings
from airflow_provider_cdc.sinks.certificates import read_certificate, remove_certificate, write_certificate
from airflow_provider_cdc.sinks.latest import LATEST, check_source, read_latest, replace_latest

_COPY = "snapshot="
_REMOVED = "_removed="
"""Prefix of the folder of a copy that is being removed, on stores that can rename folders. Readers ignore it."""
_PUBLISHERS, _MOVERS = 8, 8
_INCOMPLETE = "run the task again: it completes the publication"
_STRANGE = (
    f"if {LATEST} names these files, keep the files, and trigger a new run: an earlier start of this run wrote this "
    "copy, and its records were removed or are in another scratch folder. Otherwise find out which program wrote the "
    "files, remove the files, and clear the task"
)
_DAMAGED = "another program changed or removed the file, or the storage lost it: trigger a new run"


class ParquetSink:
    """Publishes copies as Parquet files in the folder ``lake``."""

    grace = timedelta()

    def __init__(self, lake: Storage, settings: LakeSettings | None = None) -> None:
        self._lake = lake

    def check_ready(self) -> None:
        """Do nothing, because this sink needs only the lake's folder."""

    def check_names(self, tables: Sequence[TableName]) -> None:
        """Do nothing, because each table has a separate folder, which is named after the table."""

    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: Position) -> None:
        def check(table: TableName) -> None:
            check_source(self._lake, folder_name(table), source, position)

        # Use threads, because each check waits for the store.
        with ThreadPoolExecutor(_MOVERS) as checkers:
            list(checkers.map(check, tables))

    def check_rows(self, tables: Sequence[TableName]) -> None:
        """Do nothing, because each copy has its own folder, and readers use the files that its record lists."""

    def foreign_change(self, table: TableName) -> str:
        return ""

    def latest(self, table: TableName) -> LatestCopy | None:
        head = read_latest(self._lake, folder_name(table))
        if head is None:
            return None
        try:
            return self._copy_of(table, head)
        except ManifestError:
            # Meanwhile, another run may have published a newer copy and removed this copy (``keep``).
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
                return PublishedCopy(uri, self._announce(change.table, record_of(publication, change, uri)))

        # Use threads, because publishing a table waits for the store. No table is announced before all files of all
        # tables are in place.
        with ThreadPoolExecutor(_PUBLISHERS) as publishers:
            list(publishers.map(place, publication.tables))
            copies = list(publishers.map(announce, publication.tables))
        return {change.table: copy for change, copy in zip(publication.tables, copies, strict=True)}

    def prepare(self, run_id: str, tables: Sequence[Prepared]) -> dict[TableName, Place]:
        # Readers list the folder of a copy, so publishing moves the files there.
        return {}

    def copy_folder(self, run_id: str, table: TableName) -> Storage:
        return self._lake.folder(*place_of(table, run_id).split("/"))

    def withdraw(self, copies: Sequence[tuple[str, TableName]]) -> None:
        """Do nothing, because readers find copies by ``_latest.json``, which names the latest copy."""

    def copy_uri(self, run_id: str, table: TableName) -> str:
        folder = self.copy_folder(run_id, table)
        return folder.uri if folder.files() else ""

    def folders(self, run_id: str, table: TableName) -> tuple[Storage, ...]:
        return self.copy_folder(run_id, table), self._lake.folder(*feeds.place_of(table, run_id).split("/"))

    def clean(self, run_id: str, table: TableName, files: Sequence[StagedFile]) -> None:
        """Do nothing, because `Run.clean` removes the run's own folder, and `remove` removes published files."""

    def stray_files(self, table: TableName) -> list[StrayFile]:
        # Files that are not published are in the run's own folder.
        return []

    def delete_stray(self, table: TableName, names: Sequence[str]) -> None:
        """Do nothing, because `stray_files` returns nothing."""

    def copies(self, table: TableName) -> list[str]:
        names = [name.rpartition("/")[2] for name in self._lake.folders(folder_name(table))]
        return sorted({name.partition("=")[2] for name in names if name.startswith((_COPY, _REMOVED))})

    def certificate(self, run_id: str, table: TableName) -> Mapping[str, Any] | None:
        return read_certificate(self._lake, table, run_id)

    def feed(self, run_id: str, table: TableName) -> LakeFeed | None:
        return feeds.read_feed(self._lake, table, run_id)

    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        # Remove the changes first. Then, if the removal stops half-way, the remaining files of the copy show that some
        # changes may be left, too.
        errors = self.remove_feed(run_id, table, feed)
        place = place_of(table, run_id)
        hidden = f"{folder_name(table)}/{_REMOVED}{run_id}"
        file_names = {file.base_name for file in files}
        if self._own(place, file_names) and not self._strange(place, file_names):
            # If the store can rename folders, readers that list the folder see either the whole copy or no copy. If a
            # run with this id is created again, it publishes nothing in this folder as long as the folder contains
            # files of the first run.
            self._lake.rename_folder(place, hidden)
        errors += [uri for folder in (place, hidden) for uri in self._remove_files(folder, file_names)]
        if not self._lake.exists(place):  # Otherwise, a recreated run with this id has a copy here.
            remove_certificate(self._lake, table, run_id)
            feeds.remove_gap(self._lake, table, run_id)
        return errors

    def remove_feed(self, run_id: str, table: TableName, files: Sequence[StagedFile]) -> list[str]:
        """Remove the changes that a run published for a table. Return the URIs of all other files in the folder of the
        changes."""
        place, own = feeds.place_of(table, run_id), {file.base_name for file in files}
        # A recreated run with this id has its own record in this folder, which must stay.
        if self._own(place, own):
            # Remove the record first, so that no reader mistakes the remaining files for the complete changes.
            self._delete(f"{place}/{feeds.RECORD}")
        return self._remove_files(place, own) if own else []

    def _remove_files(self, folder: str, own: set[str]) -> list[str]:
        """Remove the files ``own`` from a folder, and then the folder itself. Return the URIs of all other files in
        it."""
        # Use threads, because each removal waits for the store.
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
        # Ignore a missing file, because another run may remove the same copy.
        with suppress(FileNotFoundError):
            self._lake.delete_file(name)

    def difference(self, run_id: str, table: TableName, file: StagedFile) -> str:
        folders = self.folders(run_id, table)
        folder = next((folder for folder in folders if folder.exists(file.base_name)), folders[0])
        return difference(folder, file.base_name, file)

    def unread(self, run_id: str, tables: Sequence[TableName]) -> list[str]:
        unread_files = []
        for table in tables:
            place, head = place_of(table, run_id), read_latest(self._lake, folder_name(table))
            if self._lake.exists(place) and (head is None or head.run_id != run_id):
                unread_files.append(self._lake.uri_of(place))
        return unread_files

    def _copy_of(self, table: TableName, head: Copy) -> LatestCopy:
        # The record names the folder that the run wrote to. This reader may see the lake at another path, or may read a
        # copy of the lake. So look in the folder of the given lake first.
        folder = self.copy_folder(head.run_id, table)
        present = _visible(folder)
        if head.path and not present:
            folder = self._lake.at(head.path)
            present = _visible(folder)
        path = folder.uri
        # Earlier versions of this package wrote records without file names. For such a record, the copy consists of all
        # files in the folder.
        listed_files = sorted(str(file["name"]) for file in head.files) or present
        if not listed_files or not {*listed_files} <= {*present}:
            raise ManifestError(
                f"the latest copy lacks {len({*listed_files} - {*present}) or 'all'} of its files",
                where=path,
                hint=f"another program removed these files: also remove {LATEST} in the table's folder, and trigger a "
                "new run",
            )
        return LatestCopy.of(table, head, path, [*map(folder.uri_of, listed_files)])

    def _place(self, publication: Publication, change: TableChange) -> None:
        """Move the files of one table to their final folder. Afterwards, the folder has exactly these files."""
        folder = place_of(change.table, publication.run_id)
        try:
            kept_paths = {f"{folder}/{file.base_name}": file for file in change.kept}
            base = place_of(change.table, change.base) if change.base else ""
            self._move(publication.staging, folder, change.added, kept_paths, base)
            write_certificate(self._lake, publication, change)
        except (OSError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"could not move a file to its final folder: {error}", where=self._lake.uri_of(folder), hint=_INCOMPLETE
            ) from error
        self.place_feed(publication, change)

    def place_feed(self, publication: Publication, change: TableChange) -> None:
        """Put the files of one table's feed, and its record, where readers will find them."""
        folder = feeds.place_of(change.table, publication.run_id)
        try:
            if change.feed is not None:
                self._move(publication.staging, folder, change.feed.files, {}, "")
            feeds.write_record(self._lake, publication, change)
        except (OSError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"could not move a file to its final folder: {error}", where=self._lake.uri_of(folder), hint=_INCOMPLETE
            ) from error

    def _move(
        self, staging: Staging, folder: str, added: Sequence[StagedFile], kept: Mapping[str, StagedFile], base: str
    ) -> None:
        """Put the ``added`` files into ``folder``, and the ``kept`` files (by their new names), as in `TableChange`."""
        self._lake.make_folder(folder)
        expected_paths = {f"{folder}/{file.base_name}": file for file in added} | dict(kept)
        present = self._lake.sizes(folder)
        # Check before adding files, because the existing files may be a copy that is being read.
        self._check_own(folder, present, expected_paths)

        def move(name: str) -> None:
            if name in kept:
                self._adopt(f"{base}/{kept[name].base_name}" if base else kept[name].name, name)
                return
            try:
                copied = staging.folder.move_to(expected_paths[name].name, self._lake, name)
            except (OSError, pa.ArrowException):
                # A concurrent attempt that publishes the same commit may already have moved the file.
                if not self._lake.exists(name) and staging.folder.exists(expected_paths[name].name):
                    raise
                return
            if copied not in ("", expected_paths[name].checksum):
                # Delete the file: no reader uses it yet, and the next try would accept it as correct.
                self._lake.delete_file(name)
                raise FileDamaged(
                    f"the file's checksum is {copied}, not {expected_paths[name].checksum}",
                    where=staging.folder.uri_of(expected_paths[name].name),
                    hint=_DAMAGED,
                )

        # Use threads, because a move within an object store copies the file and waits for the store.
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
        """Check that the folder of a copy has no files except ``wanted``.

        :raises FileDamaged: the folder has other files.
        """
        strange = [name for name in present if name not in wanted and _is_visible(name)]
        if strange:
            raise FileDamaged(
                f"the folder of this copy has files that do not belong to it: {', '.join(sorted(strange)[:5])}",
                where=self._lake.uri_of(folder),
                hint=_STRANGE,
            )

    def _adopt(self, name: str, new_name: str) -> None:
        # Make a hard link or a copy of the file, so that removing the previous copy does not affect this copy.
        try:
            self._lake.adopt(name, new_name)
        except (OSError, pa.ArrowException) as error:
            if self._lake.exists(name):
                raise
            raise FileDamaged(
                "a file of the previous copy, which this copy reuses, is gone",
                where=self._lake.uri_of(name),
                hint=_DAMAGED,
            ) from error

    def _announce(self, table: TableName, latest: Copy) -> bool:
        """Make ``latest`` the table's latest copy, unless the table has a newer copy. Return whether ``latest`` is now
        the latest copy."""
        folder = folder_name(table)
        where = self._lake.uri_of(f"{folder}/{LATEST}")
        try:
            try:
                return replace_latest(self._lake, folder, latest)
            except StorageUnavailable:
                # The store may have completed a write without confirming it. The call can be repeated safely, because
                # it reads the head before it writes the head.
                return replace_latest(self._lake, folder, latest)
        except StorageUnavailable as error:
            raise CommitUnknown(
                f"cannot tell whether this run's copy is now the latest copy: {error.message}",
                where=where,
                hint="run the task again: it checks which copy is the latest, and completes the publication",
            ) from error
        except (StorageRefused, FileNotFoundError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"could not write the record of the latest copy: {error}", where=where, hint=_INCOMPLETE
            ) from error


def _visible(folder: Storage) -> list[str]:
    return [name for name in folder.files() if _is_visible(name)]


def _is_visible(name: str) -> bool:
    """Return whether readers of a folder treat the file ``name`` as data."""
    return not name.rpartition("/")[2].startswith(("_", "."))


def place_of(table: TableName, run_id: str) -> str:
    """Return the folder of one copy of a table, relative to the lake."""
    return f"{folder_name(table)}/{_COPY}{run_id}"


def record_of(publication: Publication, change: TableChange, uri: str) -> Copy:
    """Return the record of one table's copy for readers. The copy's files are at ``uri``."""
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
        files=feeds.told_files(change),
        changes={} if change.feed is None else feeds.told(publication, change.feed),
        feed_gap=feeds.told_gap(publication, change),
        history=dict(change.history),
        shards=change.told_shards,
        positions=publication.positions,
        **{publication.position_key: publication.position},  # type: ignore[arg-type]
    )
