"""A folder in the lake, on a local disk, S3, GCS, Azure or HDFS (through pyarrow.fs)."""

from __future__ import annotations

import copy
import errno
import json
import posixpath
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from airflow_provider_cdc.core.storage import durable
from airflow_provider_cdc.core.storage.conditional import Conditional, conditional_in, key_of
from airflow_provider_cdc.core.storage.filesystems import LazyModule, Opened, convert_store_errors
from airflow_provider_cdc.core.storage.uri import LakeUri, StorageSettings, current
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, StorageRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
else:
    pa, fs = LazyModule("pyarrow"), LazyModule("pyarrow.fs")


class Storage:
    """The folder at ``uri``. Paths in its methods are relative to it, with forward slashes.

    The folder is pickled as its URI, and opened when it is first used. Its credentials are those in ``settings``. If
    they are not given, the settings of the process apply (`uri.current`), or else what pyarrow.fs finds in the
    environment.

    :raises ConfigurationError: pyarrow.fs does not support the URI.
    """

    _batch: durable.Batch | None = None
    _opened: Opened | None = None
    _root_path: str | None = None

    def __init__(self, uri: str, settings: StorageSettings | None = None) -> None:
        self._lake = LakeUri.parse(uri)
        self._settings = settings
        self._open()

    @classmethod
    def later(cls, uri: str) -> Storage:
        """Return the folder at ``uri``, which is opened when it is first used."""
        folder = cls.__new__(cls)
        folder._lake, folder._settings = LakeUri.parse(uri), None
        return folder

    def at(self, uri: str) -> Storage:
        """Return another folder, with the settings of this one."""
        return Storage(uri, self._open().settings)

    def _open(self) -> Opened:
        if self._opened is None:
            try:
                # Creating the file system may contact the store, to find its region.
                with convert_store_errors(self.uri):
                    self._opened = Opened(self._lake, self._settings or current())
            except (pa.ArrowException, ValueError, ImportError) as error:
                raise ConfigurationError(
                    f"{self.uri!r} cannot be used as a folder: {error}",
                    hint="give a URI such as file:///data/lake, s3://bucket/lake or hdfs://name/lake",
                ) from error
            self._root_path = self._opened.root
        return self._opened

    @property
    def _filesystem(self) -> fs.FileSystem:
        return self._open().filesystem

    @property
    def _root(self) -> str:
        self._open()
        return self._root_path or ""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Storage.later, (self.uri,)

    def __str__(self) -> str:
        return self.uri

    @property
    def uri(self) -> str:
        return str(self._lake)

    @property
    def filesystem(self) -> fs.FileSystem:
        return self._filesystem

    def folder(self, *names: str) -> Storage:
        """Return a folder below this one."""
        return self._other(self._lake.joined(*names), posixpath.join(self._root, *names))

    def parent(self) -> Storage:
        """Return the parent folder."""
        return self._other(self._lake.parent(), posixpath.dirname(self._root))

    def _other(self, lake: LakeUri, root: str) -> Storage:
        other = copy.copy(self)
        other._lake, other._root_path, other._batch = lake, root, self._batch
        return other

    def path(self, name: str = "") -> str:
        """Return the path of ``name`` for ``filesystem``."""
        return posixpath.join(self._root, name) if name else self._root

    def uri_of(self, name: str) -> str:
        return str(self._lake.joined(name))

    @contextmanager
    def together(self) -> Iterator[Storage]:
        """Yield this folder for many small writes. On a disk, all these writes together take about as long as one
        durable write.

        The files survive a crash once the context has ended without an error. Files that are written with `write_json`
        do not exist before that.
        """
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            yield self
            return
        storage = copy.copy(self)
        storage._batch = durable.Batch()
        try:
            yield storage
            with convert_store_errors(self.uri):
                storage._batch.flush()
        finally:
            storage._batch.drop()

    def flush(self) -> None:
        """Inside `together`: make everything durable and visible that was written so far."""
        if self._batch is not None:
            with convert_store_errors(self.uri):
                self._batch.flush()

    def exists(self, name: str) -> bool:
        with convert_store_errors(self.uri_of(name)):
            return bool(self._filesystem.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def size(self, name: str) -> int:
        """Return the size of the file ``name`` in bytes."""
        with convert_store_errors(self.uri_of(name)):
            return int(self._filesystem.get_file_info(self.path(name)).size)

    def files(self, name: str = "") -> list[str]:
        """Return the names of the files directly in the folder ``name``, sorted. The result is empty if the folder does
        not exist."""
        return self._entries(name, fs.FileType.File)

    def sizes(self, name: str = "") -> dict[str, int]:
        """Return the size in bytes of each file directly in the folder ``name``. The result is empty if the folder does
        not exist."""
        infos = durable.list_folder(self._filesystem, self.path(name))
        return {posixpath.join(name, info.base_name): int(info.size) for info in infos if info.type == fs.FileType.File}

    def times(self, name: str = "") -> dict[str, datetime]:
        """Return when each file directly in ``name`` was written, by the store's clock. The result is empty if the
        folder does not exist."""
        with convert_store_errors(self.uri_of(name)):
            infos = durable.list_folder(self._filesystem, self.path(name))
        return {posixpath.join(name, info.base_name): info.mtime for info in infos if info.type == fs.FileType.File}

    def newest_time(self) -> datetime:
        """Return the time of the last write to a file in this folder or below it, by the store's clock.

        :raises FileNotFoundError: there is no file.
        """
        with convert_store_errors(self.uri):
            infos = durable.list_folder(self._filesystem, self._root, recursive=True)
        times = [info.mtime for info in infos if info.type == fs.FileType.File]
        if not times:
            raise FileNotFoundError(self.uri)
        newest: datetime = max(times)
        return newest

    def folders(self, name: str = "") -> list[str]:
        """Return the names of the folders directly in the folder ``name``, sorted. The result is empty if the folder
        does not exist."""
        return self._entries(name, fs.FileType.Directory)

    def _entries(self, name: str, kind: fs.FileType) -> list[str]:
        with convert_store_errors(self.uri_of(name)):
            infos = durable.list_folder(self._filesystem, self.path(name))
        return sorted(posixpath.join(name, info.base_name) for info in infos if info.type == kind)

    def make_folder(self, name: str = "") -> None:
        with convert_store_errors(self.uri_of(name)):
            durable.make_folder(self._filesystem, self.path(name), self._batch)

    def move_to(self, name: str, other: Storage, new_name: str) -> str:
        """Move a file to ``other``, where the file's folder must exist. An existing file with the new name is replaced.

        If ``other`` is in another store or on another disk, the file is copied, and the original file stays. In this
        case, return the CRC-32 of the copied bytes, in hexadecimal digits. Otherwise, return an empty text.
        """
        with convert_store_errors(self.uri_of(name)):
            if self._filesystem.equals(other._filesystem):
                try:
                    durable.move(self._filesystem, self.path(name), other.path(new_name))
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                else:
                    return ""
            return durable.copy(self._filesystem, self.path(name), other._filesystem, other.path(new_name))

    def adopt(self, name: str, new_name: str) -> None:
        """Give a file a second name in an existing folder. The content of the file must never change. It is no error if
        the name exists. On a disk with hard links, both names share one content.
        """
        with convert_store_errors(self.uri_of(name)):
            durable.adopt(self._filesystem, self.path(name), self.path(new_name))

    def delete_folder(self, name: str) -> None:
        # On Google Cloud Storage, if a folder has no marker object, pyarrow.fs deletes all files in the folder and then
        # raises FileNotFoundError.
        if self.exists(name):
            with convert_store_errors(self.uri_of(name)), suppress(FileNotFoundError):
                self._filesystem.delete_dir(self.path(name))

    def delete_empty_folder(self, name: str) -> bool:
        """Remove a folder if it is empty; return whether it no longer exists."""
        with convert_store_errors(self.uri_of(name)):
            return durable.delete_empty_folder(self._filesystem, self.path(name))

    def rename_folder(self, name: str, new_name: str) -> bool:
        """Rename a folder atomically. Return False if this store cannot do that, or if the name is taken."""
        with convert_store_errors(self.uri_of(name)):
            return durable.rename_folder(self._filesystem, self.path(name), self.path(new_name))

    def delete_file(self, name: str) -> None:
        if self.exists(name):
            with convert_store_errors(self.uri_of(name)):
                self._filesystem.delete_file(self.path(name))

    def read_json(self, name: str) -> Any:
        """Return the JSON data in a file.

        :raises ManifestError: the file is not JSON.
        """
        data = self._read(name)
        while True:
            try:
                return self._json(data, name)
            except ManifestError:
                # On object stores, pyarrow.fs asks for the size of an object, and then reads so many bytes. If the
                # object is replaced by a longer one in between, the end is missing.
                data, before = self._read(name), data
                if data == before:
                    raise

    def _read(self, name: str) -> bytes:
        with convert_store_errors(self.uri_of(name)), self._filesystem.open_input_stream(self.path(name)) as stream:
            return bytes(stream.read())

    def _json(self, data: bytes, name: str) -> Any:
        try:
            value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_number)
            if b"\\u" in data:
                # A lone surrogate is not valid text. JSON data can contain a lone surrogate only as an escape sequence.
                json.dumps(value, ensure_ascii=False).encode()
            return value
        except (ValueError, RecursionError) as error:
            raise ManifestError(
                f"not JSON: {error}", where=self.uri_of(name), hint="restore or remove the file"
            ) from error

    def write_json(self, name: str, data: Any) -> None:
        """Write a file atomically: readers see all of it or nothing. The file survives a crash once this method has
        returned."""
        with convert_store_errors(self.uri_of(name)):
            if self._batch is None:
                durable.write(self._filesystem, self.path(name), _json_bytes(data))
            else:
                durable.make_folder(self._filesystem, posixpath.dirname(self.path(name)), self._batch)
                self._batch.write(self.path(name), _json_bytes(data))

    def note_json(self, name: str, data: Any) -> None:
        """Write JSON data that no other step depends on. Unlike with `write_json`, readers see the file at once, even
        inside `together`."""
        with convert_store_errors(self.uri_of(name)):
            durable.write(self._filesystem, self.path(name), _json_bytes(data))

    def write_text(self, name: str, text: str) -> None:
        """Like `write_json`, for text."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Like `write_json`, for bytes."""
        with convert_store_errors(self.uri_of(name)):
            durable.write(self._filesystem, self.path(name), data)

    def create_json(self, name: str, data: Any, settle: float | None = None) -> bool:
        """Like `write_json`, but does not change an existing file. Return whether the file now contains ``data``.

        :param settle: see `durable.create`, which describes the guarantees of each kind of store.
        """
        data, path = _json_bytes(data), self.path(name)
        with convert_store_errors(self.uri_of(name)):
            conditional = self._conditional()
            if conditional is None:
                return durable.create(self._filesystem, path, data, settle)
            return conditional.create(self._key(name), data) and durable.is_stable(self._filesystem, path, data, settle)

    @property
    def has_conditional_writes(self) -> bool:
        """Return whether this is an object store that rejects a write whose condition does not hold.

        The first call of a process for a bucket writes and deletes a probe.
        """
        with convert_store_errors(self.uri):
            return self._conditional() is not None

    def read_versioned(self, name: str) -> tuple[Any, Any] | None:
        """Return the JSON data in a file, and the file's version. Return None if the file does not exist. Only for
        stores with conditional writes.

        :raises ManifestError: the file is not JSON.
        """
        with convert_store_errors(self.uri_of(name)):
            present = self._with_conditions().read(self._key(name))
        return None if present is None else (self._json(present[0], name), present[1])

    def replace_json(self, name: str, data: Any, version: Any) -> bool:
        """Write JSON data to a file if the file still has ``version``. If ``version`` is None, write it if the file
        does not exist. Return whether the file now contains ``data``. Only for stores with conditional writes."""
        with convert_store_errors(self.uri_of(name)):
            return self._with_conditions().replace(self._key(name), _json_bytes(data), version)

    def _conditional(self) -> Conditional | None:
        return conditional_in(self._lake, self._open())

    def _with_conditions(self) -> Conditional:
        conditional = self._conditional()
        assert conditional is not None
        return conditional

    def _key(self, name: str) -> str:
        return key_of(self._lake.joined(name))

    def sync(self, name: str = "") -> None:
        """Make the content of a file, or the entries of a folder, durable."""
        with convert_store_errors(self.uri_of(name)):
            if self._batch is None:
                durable.sync(self._filesystem, self.path(name))
            else:
                self._batch.add(self.path(name))

    def check_writable(self) -> None:
        """Write and remove a probe file.

        :raises ConfigurationError: this folder is not writable.
        :raises StorageUnavailable: the folder is not writable at the moment.
        """
        probe = f"_probe-{uuid.uuid4().hex}"
        try:
            self.write_json(probe, {})
            self.delete_file(probe)
        except (StorageRefused, FileExistsError, FileNotFoundError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"the target cannot be written to: {getattr(error, 'message', error)}",
                where=self.uri,
                hint=getattr(error, "hint", "")
                or "grant write access to the user that Airflow and Spark run as, or choose another target",
            ) from error

    def ignores_case(self) -> bool:
        """Return whether ``a`` and ``A`` are the same file here."""
        # Object stores and HDFS never ignore case.
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            return False
        probe = f"_probe-a-{uuid.uuid4().hex}"
        self.write_json(probe, {})
        try:
            return self.exists(probe.upper())
        finally:
            self.delete_file(probe)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _json_bytes(data: Any) -> bytes:
    # With an indent, `json.dumps` does not use its compiled encoder.
    return msgspec.json.format(json.dumps(data, ensure_ascii=False).encode(), indent=2)


# Lists files with their sizes and times, and reads the clock of a store.


fs = LazyModule("pyarrow.fs")


@dataclass(frozen=True)
class Entry:
    """A file. ``name`` is relative to the listed folder. ``written`` is a time of the store's clock."""

    name: str
    bytes: int
    written: datetime


def entries(folder: Storage, name: str = "", *, recursive: bool = False) -> list[Entry]:
    """Return the files in the folder ``name``; empty: the folder does not exist."""
    with convert_store_errors(folder.uri_of(name)):
        infos = durable.list_folder(folder.filesystem, folder.path(name), recursive=recursive)
    prefix = len(folder.path()) + 1
    return [
        Entry(info.path[prefix:], int(info.size), info.mtime.astimezone(UTC))
        for info in infos
        if info.type == fs.FileType.File
    ]


def folder_times(folder: Storage) -> list[datetime]:
    """Return when entries of a folder were last added or removed; empty: the store does not have this time."""
    with convert_store_errors(folder.uri):
        info = folder.filesystem.get_file_info(folder.path())
    return [info.mtime.astimezone(UTC)] if info.type == fs.FileType.Directory and info.mtime is not None else []


def total(files: Sequence[Entry]) -> int:
    """Return the size of files in bytes."""
    return sum(file.bytes for file in files)


def clock_of(folder: Storage) -> datetime:
    """Return the present time by the clock of the folder's store, by which the times of files are, too.

    Writes and removes a probe file.
    """
    probe = f"_probe-{uuid.uuid4().hex}"
    folder.write_json(probe, {})
    try:
        # Do not list the folder, which may have the folders of thousands of runs.
        with convert_store_errors(folder.uri_of(probe)):
            written: datetime = folder.filesystem.get_file_info(folder.path(probe)).mtime
        return written.astimezone(UTC)
    finally:
        folder.delete_file(probe)
