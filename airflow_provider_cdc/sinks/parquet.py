"""The sink for plain Parquet: ``<lake>/<schema>.<table>/snapshot=<run_id>/part-*``, and ``_latest.json`` beside these
folders. The changes between the previous copy and a run's copy are in ``_changes/<run_id>`` (`sinks.beside_copies`).

``_latest.json`` names the copy to read. It changes only after every file of every table of the run is in place, and it
never returns to an older copy. The ``_latest.json`` of each table changes separately. For a moment, readers of several
tables may see the new copy of one table and the old copy of another table.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyarrow import fs

from airflow_provider_cdc.core.copies.head import (
    Copy,
    decode_copy,
    describe,
    encode_copy,
    is_newer,
    is_of_another,
    is_of_another_source,
    known_source,
)
from airflow_provider_cdc.core.positions.facts import Facts, source_of
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.run.staging import StagedFile, Staging, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import (
    CommitUnknown,
    ConfigurationError,
    FileDamaged,
    ManifestError,
    PublishIncomplete,
    StorageRefused,
    StorageUnavailable,
    naming,
)
from airflow_provider_cdc.sinks import beside_copies
from airflow_provider_cdc.sinks.base import (
    LakeFeed,
    LatestCopy,
    Prepared,
    Publication,
    PublishedCopy,
    StrayFile,
    TableChange,
)
from airflow_provider_cdc.sinks.beside_copies import read_certificate, remove_certificate, write_certificate
from airflow_provider_cdc.sinks.registry import LakeSettings

# The head of a table, ``<target>/<schema>.<table>/_latest.json``. Only a newer copy of the same source replaces it.
#
# Two runs may publish at the same time. On a local disk, one run waits for the other run. On an object store with
# conditional writes, a run replaces the head only if it is still the head that the run has read. Other object stores
# have no such means, so on these stores, each run first writes a claim, and reads all claims again after it has written
# the head. A slow run that overwrote a newer head finds the claim of the newer copy, and makes the newer copy the head
# again.


LATEST = "_latest.json"
CLAIMS = "_claims"
CLAIM_LIFE = timedelta(days=1)
"""The time for which a claim is kept. No writer is expected to stall for longer between reading the head and writing
it."""

_ANSWER = ".answer.json"
"""The end of the name of a claim with which a run with conditional writes answers the claims of others."""
_LOCK_SECONDS = 60.0
_ROUNDS = 20


def read_latest(target: Storage, folder: str) -> Copy | None:
    """Return the record of a table's latest copy; None: the table has no copy.

    :raises ManifestError: the file exists and is not a valid record.
    """
    try:
        return _read(target, f"{folder}/{LATEST}")
    except FileNotFoundError:
        return None


def check_source(target: Storage, folder: str, source: Mapping[str, str], position: Position) -> None:
    """Check that no copy in ``folder`` is known to be a copy of a source other than ``source``.

    :param position: a position that the source has reached.
    :raises ConfigurationError: a copy is a copy of another source.
    """
    current = read_latest(target, folder)
    if current is None:
        return
    if not current.source:
        current = replace(current, source=_recorded_source(target, current.run_id))
    if is_of_another_source(current, source, position):
        raise _another_source(target, folder, current, source)


def replace_latest(target: Storage, folder: str, latest: Copy) -> bool:
    """Make ``latest`` the table's latest copy, unless the table has a newer copy. Return whether ``latest`` is now the
    latest copy.

    :raises ConfigurationError: the existing copy is of another source.
    :raises PublishIncomplete: other runs kept replacing the head; call this function again.
    """
    with _locked(target, folder) as alone:
        if alone:
            current = _checked(target, folder, latest)
            if current is None or current.run_id == latest.run_id or is_newer(latest, current):
                target.write_json(f"{folder}/{LATEST}", encode_copy(latest))
                return True
            return False
        if not isinstance(target.filesystem, fs.LocalFileSystem) and target.has_conditional_writes:
            return _replace_by_condition(target, folder, latest)
        return _replace_by_claim(target, folder, latest)


def _replace_by_condition(target: Storage, folder: str, latest: Copy) -> bool:
    name, data = f"{folder}/{LATEST}", encode_copy(latest)
    for _ in range(_ROUNDS):
        present = target.read_versioned(name)
        current, version = (None, None) if present is None else (_copy_in(target, name, present[0]), present[1])
        _check_same_source(target, folder, current, latest)
        if current is not None and current.run_id != latest.run_id and not is_newer(latest, current):
            return False
        if present is not None and present[0] == data:
            break
        if target.replace_json(name, data, version):
            break
    else:
        raise _gave_up(target, folder)
    # A run that found no conditional writes (of an earlier version of this package, or with other credentials) may have
    # read an older head, and be about to overwrite this one. It wrote its claim before it read the head.
    return not _others_claim(target, folder, name) or _replace_by_claim(target, folder, latest, _ANSWER)


def _others_claim(target: Storage, folder: str, head: str) -> bool:
    """Return whether a run without conditional writes publishes now. Remove old claims.

    :param head: the name of the head, which was written a moment ago.
    """
    claims = {name: time for name, time in target.times(f"{folder}/{CLAIMS}").items() if not name.endswith(_ANSWER)}
    if not claims:
        return False
    now = target.times(folder)[head]
    for name, written in claims.items():
        if now - written > CLAIM_LIFE:
            target.delete_file(name)
    return any(now - written <= CLAIM_LIFE for written in claims.values())


def _replace_by_claim(target: Storage, folder: str, latest: Copy, suffix: str = ".json") -> bool:
    claim_name = f"{folder}/{CLAIMS}/{latest.run_id}{suffix}"
    target.write_json(claim_name, encode_copy(latest))
    for _ in range(_ROUNDS):
        current = _checked(target, folder, latest)
        best = latest
        # A run of another source that started at the same time may have written a claim before the run was rejected.
        claims = [claim for claim in _claims(target, folder, claim_name) if not is_of_another(claim, latest)]
        for claim in (*claims, *([current] if current else [])):
            if claim.run_id != best.run_id and is_newer(claim, best):
                best = claim
        # Return only if the head was read after the last write. Such a read shows that the write has not replaced a
        # newer head.
        if current is not None and current.run_id == best.run_id:
            return best.run_id == latest.run_id
        target.write_json(f"{folder}/{LATEST}", encode_copy(best))
    raise _gave_up(target, folder)


def _gave_up(target: Storage, folder: str) -> PublishIncomplete:
    return PublishIncomplete(
        "could not replace the record of the latest copy, because other runs replaced it during each attempt",
        where=target.uri_of(f"{folder}/{LATEST}"),
        hint="run the task again: it completes the publication",
    )


def _claims(target: Storage, folder: str, own: str) -> Iterator[Copy]:
    """Yield the claims of runs that publish now, or published recently. Remove older claims.

    The ages of claims are computed from the store's clock only, because the clocks of machines differ, and a copy that
    is published now may have been committed long ago.

    :param own: the claim that this run has just written.
    """
    times = target.times(f"{folder}/{CLAIMS}")
    for name, written in times.items():
        if own in times and times[own] - written > CLAIM_LIFE:
            target.delete_file(name)
            continue
        with suppress(FileNotFoundError):
            yield _read(target, name)


def _checked(target: Storage, folder: str, latest: Copy) -> Copy | None:
    current = read_latest(target, folder)
    _check_same_source(target, folder, current, latest)
    return current


def _check_same_source(target: Storage, folder: str, current: Copy | None, latest: Copy) -> None:
    if current is not None and is_of_another(current, latest):
        raise _another_source(target, folder, current, latest.source)


def _another_source(target: Storage, folder: str, current: Copy, source: Mapping[str, str]) -> ConfigurationError:
    return ConfigurationError(
        f"this folder has copies of another source: {describe(known_source(current))}. The source of this run is "
        f"{describe(source)}",
        where=target.uri_of(folder),
        hint="use a separate folder for each source, such as s3://bucket/lake/{source}: {source} stands for the id of "
        f"the connection. If the same database was moved to another server, remove {LATEST} from this folder",
    )


def _recorded_source(target: Storage, run_id: str) -> dict[str, str]:
    """Return the source that the manifest of a run names, for copies whose records do not name it."""
    try:
        data = target.read_json(f"_runs/{run_id}/manifest.json")
    except FileNotFoundError:
        return {}
    if not isinstance(data, dict) or "kind" not in data:
        return {}
    return source_of(data["kind"], Facts.parse(data.get("identity") or {}), data.get("source_conn_id", ""))


def _read(target: Storage, name: str) -> Copy:
    return _copy_in(target, name, target.read_json(name))


def _copy_in(target: Storage, name: str, data: Any) -> Copy:
    try:
        copy = decode_copy(data, target.uri_of(name))
        if not all(isinstance(file.get("name"), str) for file in copy.files):
            raise ManifestError("a file in the record has no name", where=target.uri_of(name))
        return copy
    except ManifestError as error:
        raise ManifestError(
            f"the record of the latest copy is damaged: {error.message}",
            where=target.uri_of(name),
            hint="restore the file, or remove it: the next run that publishes writes a new one",
        ) from None


@contextmanager
def _locked(target: Storage, folder: str) -> Iterator[bool]:
    """Lock the folder's head against all other processes on all machines. Yield False if this store has no such lock.

    The kernel releases the lock when its holder dies. The folder itself is locked, so no lock file is left behind.
    """
    if not isinstance(target.filesystem, fs.LocalFileSystem):
        yield False
        return
    target.make_folder(folder)
    descriptor = os.open(target.path(folder), os.O_RDONLY)
    try:
        yield _lock(descriptor, target.uri_of(folder))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, where: str) -> bool:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise PublishIncomplete(
                    f"another run has been publishing here for {_LOCK_SECONDS:.0f} seconds",
                    where=where,
                    hint="run the task again when the other run has finished",
                ) from None
            time.sleep(0.02)
        except OSError as error:
            # Some network file systems cannot lock folders.
            if error.errno not in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
            return False
        else:
            return True


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
                uri = self._lake.uri_of(copy_location(change.table, publication.run_id))
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
        return self._lake.folder(*copy_location(table, run_id).split("/"))

    def withdraw(self, copies: Sequence[tuple[str, TableName]]) -> None:
        """Do nothing, because readers find copies by ``_latest.json``, which names the latest copy."""

    def copy_uri(self, run_id: str, table: TableName) -> str:
        folder = self.copy_folder(run_id, table)
        return folder.uri if folder.files() else ""

    def folders(self, run_id: str, table: TableName) -> tuple[Storage, ...]:
        return self.copy_folder(run_id, table), self._lake.folder(
            *beside_copies.feed_location(table, run_id).split("/")
        )

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
        return beside_copies.read_feed(self._lake, table, run_id)

    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        # Remove the changes first. Then, if the removal stops half-way, the remaining files of the copy show that some
        # changes may be left, too.
        errors = self.remove_feed(run_id, table, feed)
        place = copy_location(table, run_id)
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
            beside_copies.remove_gap(self._lake, table, run_id)
        return errors

    def remove_feed(self, run_id: str, table: TableName, files: Sequence[StagedFile]) -> list[str]:
        """Remove the changes that a run published for a table. Return the URIs of all other files in the folder of the
        changes."""
        place, own = beside_copies.feed_location(table, run_id), {file.base_name for file in files}
        # A recreated run with this id has its own record in this folder, which must stay.
        if self._own(place, own):
            # Remove the record first, so that no reader mistakes the remaining files for the complete changes.
            self._delete(f"{place}/{beside_copies.RECORD}")
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
            place, head = copy_location(table, run_id), read_latest(self._lake, folder_name(table))
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
        folder = copy_location(change.table, publication.run_id)
        try:
            kept_paths = {f"{folder}/{file.base_name}": file for file in change.kept}
            base = copy_location(change.table, change.base) if change.base else ""
            self._move(publication.staging, folder, change.added, kept_paths, base)
            write_certificate(self._lake, publication, change)
        except (OSError, pa.ArrowException) as error:
            raise PublishIncomplete(
                f"could not move a file to its final folder: {error}", where=self._lake.uri_of(folder), hint=_INCOMPLETE
            ) from error
        self.place_feed(publication, change)

    def place_feed(self, publication: Publication, change: TableChange) -> None:
        """Put the files of one table's feed, and its record, where readers will find them."""
        folder = beside_copies.feed_location(change.table, publication.run_id)
        try:
            if change.feed is not None:
                self._move(publication.staging, folder, change.feed.files, {}, "")
            beside_copies.write_record(self._lake, publication, change)
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
                what = (
                    f"has {format_count(present[name], 'byte')}, not {file.bytes:,}" if name in present else "is gone"
                )
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


def copy_location(table: TableName, run_id: str) -> str:
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
        files=beside_copies.file_records(change),
        changes={} if change.feed is None else beside_copies.feed_record(publication, change.feed),
        feed_gap=beside_copies.gap_record(publication, change),
        history=dict(change.history),
        shards=change.shard_records,
        positions=publication.positions,
        **{publication.position_key: publication.position},  # type: ignore[arg-type]
    )
