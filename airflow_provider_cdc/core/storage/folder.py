"""A folder in the lake, wherever it lies: local disk, S3, GCS, HDFS (through pyarrow.fs)."""

from __future__ import annotations

import copy
import errno
import json
import posixpath
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_cdc.core.lazy import LazyModule
from airflow_provider_cdc.core.storage import durable
from airflow_provider_cdc.core.storage.errors import told
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.errors import ConfigurationError, ManifestError, StorageRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import fs
else:
    pa, fs = LazyModule("pyarrow"), LazyModule("pyarrow.fs")


class Storage:
    """The folder at ``uri``. Paths given to its methods are relative to it, with forward slashes.

    Pickles by its URI; credentials come from the environment, as pyarrow.fs finds them.

    :raises ConfigurationError: the URI is not one that pyarrow.fs knows.
    """

    _batch: durable.Batch | None = None

    def __init__(self, uri: str) -> None:
        self._lake = LakeUri.parse(uri)
        try:
            # Building it may ask the store for its region.
            with told(self.uri):
                self._filesystem, self._root = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, ValueError, ImportError) as error:
            raise ConfigurationError(
                f"{uri!r} is no place to write to: {error}",
                hint="give a URI such as file:///data/lake, s3://bucket/lake or hdfs://name/lake",
            ) from error

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.uri,)

    def __str__(self) -> str:
        return self.uri

    @property
    def uri(self) -> str:
        return str(self._lake)

    @property
    def filesystem(self) -> fs.FileSystem:
        return self._filesystem

    def folder(self, *names: str) -> Storage:
        """A folder below this one."""
        return self._other(self._lake.joined(*names), posixpath.join(self._root, *names))

    def parent(self) -> Storage:
        """The folder that holds this one."""
        return self._other(self._lake.parent(), posixpath.dirname(self._root))

    def _other(self, lake: LakeUri, root: str) -> Storage:
        other = copy.copy(self)
        other._lake, other._root, other._batch = lake, root, self._batch
        return other

    def path(self, name: str = "") -> str:
        """The path of ``name`` as ``filesystem`` takes it."""
        return posixpath.join(self._root, name) if name else self._root

    def uri_of(self, name: str) -> str:
        return str(self._lake.joined(name))

    @contextmanager
    def together(self) -> Iterator[Storage]:
        """This folder, for many small files: what is written there survives a crash once the context has ended without
        an error, and costs a disk about as much as one file. Until then files of `write_json` are not there.
        """
        if not isinstance(self._filesystem, fs.LocalFileSystem):
            yield self
            return
        storage = copy.copy(self)
        storage._batch = durable.Batch()
        try:
            yield storage
            with told(self.uri):
                storage._batch.settle()
        finally:
            storage._batch.drop()

    def exists(self, name: str) -> bool:
        with told(self.uri_of(name)):
            return bool(self._filesystem.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def size(self, name: str) -> int:
        """Bytes of the file ``name``."""
        with told(self.uri_of(name)):
            return int(self._filesystem.get_file_info(self.path(name)).size)

    def files(self, name: str = "") -> list[str]:
        """Names of the files directly in folder ``name``, sorted; empty if it does not exist."""
        return self._entries(name, fs.FileType.File)

    def sizes(self, name: str = "") -> dict[str, int]:
        """The bytes of each file directly in folder ``name``; empty if it does not exist."""
        infos = self._filesystem.get_file_info(fs.FileSelector(self.path(name), allow_not_found=True))
        return {posixpath.join(name, info.base_name): int(info.size) for info in infos if info.type == fs.FileType.File}

    def times(self, name: str = "") -> dict[str, datetime]:
        """When each file directly in folder ``name`` was written, by the store's clock; empty if it does not exist."""
        with told(self.uri_of(name)):
            infos = self._filesystem.get_file_info(fs.FileSelector(self.path(name), allow_not_found=True))
        return {posixpath.join(name, info.base_name): info.mtime for info in infos if info.type == fs.FileType.File}

    def newest_time(self) -> datetime:
        """When anything in this folder, or in those below it, was last written, by the store's clock.

        :raises FileNotFoundError: there is no file.
        """
        with told(self.uri):
            infos = self._filesystem.get_file_info(fs.FileSelector(self._root, allow_not_found=True, recursive=True))
        times = [info.mtime for info in infos if info.type == fs.FileType.File]
        if not times:
            raise FileNotFoundError(self.uri)
        newest: datetime = max(times)
        return newest

    def folders(self, name: str = "") -> list[str]:
        """Names of the folders directly in folder ``name``, sorted; empty if it does not exist."""
        return self._entries(name, fs.FileType.Directory)

    def _entries(self, name: str, kind: fs.FileType) -> list[str]:
        with told(self.uri_of(name)):
            infos = self._filesystem.get_file_info(fs.FileSelector(self.path(name), allow_not_found=True))
        return sorted(posixpath.join(name, info.base_name) for info in infos if info.type == kind)

    def make_folder(self, name: str = "") -> None:
        with told(self.uri_of(name)):
            durable.make_folder(self._filesystem, self.path(name), self._batch)

    def move_to(self, name: str, other: Storage, new_name: str) -> str:
        """Move a file to ``other``, whose folder for it exists. Replaces what is there.

        Into another store or disk it is copied, and stays here, too: the CRC-32 of what was copied is returned then, in
        hexadecimal digits, else an empty text.
        """
        with told(self.uri_of(name)):
            if self._filesystem.equals(other._filesystem):
                try:
                    self._filesystem.move(self.path(name), other.path(new_name))
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                else:
                    return ""
            return durable.copy(self._filesystem, self.path(name), other._filesystem, other.path(new_name))

    def adopt(self, name: str, new_name: str) -> None:
        """Have a file, which nobody changes, under a second name, too, whose folder exists; no matter if it is there.
        On a disk that can do so both share one content.
        """
        with told(self.uri_of(name)):
            durable.adopt(self._filesystem, self.path(name), self.path(new_name))

    def delete_folder(self, name: str) -> None:
        if self.exists(name):
            with told(self.uri_of(name)):
                self._filesystem.delete_dir(self.path(name))

    def delete_empty_folder(self, name: str) -> bool:
        """Remove a folder unless something lies in it; whether it is gone now."""
        with told(self.uri_of(name)):
            return durable.delete_empty_folder(self._filesystem, self.path(name))

    def rename_folder(self, name: str, new_name: str) -> bool:
        """Give a folder another name at once, for everybody; False: this store cannot do that, or the name is taken."""
        with told(self.uri_of(name)):
            return durable.rename_folder(self._filesystem, self.path(name), self.path(new_name))

    def delete_file(self, name: str) -> None:
        if self.exists(name):
            with told(self.uri_of(name)):
                self._filesystem.delete_file(self.path(name))

    def read_json(self, name: str) -> Any:
        """:raises ManifestError: the file is not JSON."""
        with told(self.uri_of(name)), self._filesystem.open_input_stream(self.path(name)) as stream:
            data = stream.read()
        try:
            value = json.loads(data.decode("utf-8-sig"), parse_constant=_no_number)
            if b"\\u" in data:
                # Half a character (a lone surrogate), which only an escape can bring in, is no text.
                json.dumps(value, ensure_ascii=False).encode()
            return value
        except (ValueError, RecursionError) as error:
            raise ManifestError(
                f"not JSON: {error}", where=self.uri_of(name), hint="restore or remove the file"
            ) from error

    def write_json(self, name: str, data: Any) -> None:
        """Write a file that readers see whole or not at all, and that survives a crash once this returns."""
        with told(self.uri_of(name)):
            if self._batch is None:
                durable.write(self._filesystem, self.path(name), _json_bytes(data))
            else:
                durable.make_folder(self._filesystem, posixpath.dirname(self.path(name)), self._batch)
                self._batch.write(self.path(name), _json_bytes(data))

    def note_json(self, name: str, data: Any) -> None:
        """`write_json`, for what nothing rests on: readers see it at once, also in the middle of `together`."""
        with told(self.uri_of(name)):
            durable.write(self._filesystem, self.path(name), _json_bytes(data))

    def write_text(self, name: str, text: str) -> None:
        """`write_json`, for a page of text."""
        with told(self.uri_of(name)):
            durable.write(self._filesystem, self.path(name), text.encode())

    def create_json(self, name: str, data: Any, settle: float | None = None) -> bool:
        """`write_json`, unless the file is there: then it stays as it is. Whether it is ``data`` that is there now.

        :param settle: see `durable.create`, which says what is promised where.
        """
        with told(self.uri_of(name)):
            return durable.create(self._filesystem, self.path(name), _json_bytes(data), settle)

    def sync(self, name: str = "") -> None:
        """Have the content of a file, or the names in a folder, survive a crash."""
        with told(self.uri_of(name)):
            if self._batch is None:
                durable.sync(self._filesystem, self.path(name))
            else:
                self._batch.add(self.path(name))

    def check_writable(self) -> None:
        """Write and remove a probe.

        :raises ConfigurationError: this folder cannot be written to.
        :raises StorageUnavailable: it cannot be for now.
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
        """Whether ``a`` and ``A`` are one file here."""
        # Object stores and HDFS never do.
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
    return json.dumps(data, indent=2, ensure_ascii=False).encode()
