"""A folder in the lake, wherever it lies: local disk, S3, GCS, HDFS (through pyarrow.fs)."""

from __future__ import annotations

import json
import posixpath
import uuid
from typing import Any

import pyarrow as pa
from pyarrow import fs

from airflow_provider_cdc.core import durable
from airflow_provider_cdc.errors import ConfigurationError, ManifestError


class Storage:
    """The folder at ``uri``. Paths given to its methods are relative to it, with forward slashes.

    Pickles by its URI; credentials come from the environment, as pyarrow.fs finds them.

    :raises ConfigurationError: the URI is not one that pyarrow.fs knows.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        try:
            # A bare path would be resolved against each process's own folder; URIs and absolute paths name one place.
            if "://" not in uri and not uri.startswith("/"):
                raise ValueError("it is neither a URI nor an absolute path")
            self._filesystem, self._root = fs.FileSystem.from_uri(self.uri or uri)
        except (pa.ArrowException, ValueError, OSError) as error:
            raise ConfigurationError(
                f"{uri!r} is no place to write to: {error}",
                hint="give a URI such as file:///data/lake, s3://bucket/lake or hdfs://name/lake",
            ) from error

    def __reduce__(self) -> tuple[type[Storage], tuple[str]]:
        return Storage, (self.uri,)

    def __str__(self) -> str:
        return self.uri

    @property
    def filesystem(self) -> fs.FileSystem:
        return self._filesystem

    def folder(self, *names: str) -> Storage:
        """A folder below this one."""
        return Storage("/".join([self.uri, *names]))

    def parent(self) -> Storage:
        """The folder that holds this one."""
        return Storage(self.uri.rpartition("/")[0])

    def path(self, name: str = "") -> str:
        """The path of ``name`` as ``filesystem`` takes it."""
        return posixpath.join(self._root, name) if name else self._root

    def uri_of(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self._filesystem.get_file_info(self.path(name)).type != fs.FileType.NotFound)

    def size(self, name: str) -> int:
        """Bytes of the file ``name``."""
        return int(self._filesystem.get_file_info(self.path(name)).size)

    def files(self, name: str = "") -> list[str]:
        """Names of the files directly in folder ``name``, sorted; empty if it does not exist."""
        return self._entries(name, fs.FileType.File)

    def sizes(self, name: str = "") -> dict[str, int]:
        """The bytes of each file directly in folder ``name``; empty if it does not exist."""
        infos = self._filesystem.get_file_info(fs.FileSelector(self.path(name), allow_not_found=True))
        return {posixpath.join(name, info.base_name): int(info.size) for info in infos if info.type == fs.FileType.File}

    def folders(self, name: str = "") -> list[str]:
        """Names of the folders directly in folder ``name``, sorted; empty if it does not exist."""
        return self._entries(name, fs.FileType.Directory)

    def _entries(self, name: str, kind: fs.FileType) -> list[str]:
        infos = self._filesystem.get_file_info(fs.FileSelector(self.path(name), allow_not_found=True))
        return sorted(posixpath.join(name, info.base_name) for info in infos if info.type == kind)

    def make_folder(self, name: str = "") -> None:
        durable.make_folder(self._filesystem, self.path(name))

    def move_to(self, name: str, other: Storage, new_name: str) -> None:
        """Move a file to ``other``, on the same file system, whose folder for it exists. Replaces what is there."""
        self._filesystem.move(self.path(name), other.path(new_name))

    def delete_folder(self, name: str) -> None:
        if self.exists(name):
            self._filesystem.delete_dir(self.path(name))

    def delete_file(self, name: str) -> None:
        if self.exists(name):
            self._filesystem.delete_file(self.path(name))

    def read_json(self, name: str) -> Any:
        """:raises ManifestError: the file is not JSON."""
        with self._filesystem.open_input_stream(self.path(name)) as stream:
            data = stream.read()
        try:
            return json.loads(data)
        except ValueError as error:
            raise ManifestError(
                f"not JSON: {error}", where=self.uri_of(name), hint="restore or remove the file"
            ) from error

    def write_json(self, name: str, data: Any) -> None:
        """Write a file that readers see whole or not at all, and that survives a crash once this returns."""
        durable.write(self._filesystem, self.path(name), _json_bytes(data))

    def create_json(self, name: str, data: Any, settle: float | None = None) -> bool:
        """`write_json`, unless the file is there: then it stays as it is. Whether it is ``data`` that is there now.

        :param settle: see `durable.create`, which says what is promised where.
        """
        return durable.create(self._filesystem, self.path(name), _json_bytes(data), settle)

    def sync(self, name: str = "") -> None:
        """Have the content of a file, or the names in a folder, survive a crash."""
        durable.sync(self._filesystem, self.path(name))

    def check_writable(self) -> None:
        """Write and remove a probe.

        :raises ConfigurationError: this folder cannot be written to.
        """
        probe = f"_probe-{uuid.uuid4().hex}"
        try:
            self.write_json(probe, {})
            self.delete_file(probe)
        except (OSError, pa.ArrowException) as error:
            raise ConfigurationError(
                f"the target cannot be written to: {error}",
                where=self.uri,
                hint="grant write access to the user that Airflow and Spark run as, or choose another target",
            ) from error


def _json_bytes(data: Any) -> bytes:
    return json.dumps(data, indent=2, ensure_ascii=False).encode()
