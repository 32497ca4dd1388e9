"""Iceberg's metadata files on local disks, written so that they survive a crash of the machine.

A catalog in a database survives a crash once its transaction is committed. PyIceberg does not sync the files that the
catalog then names: metadata files, manifest lists and manifests. Without this module, a table could lose them, and with
them all its copies.
"""

from __future__ import annotations

import io
import os
import posixpath
from pathlib import Path

from pyarrow.fs import LocalFileSystem
from pyiceberg.io import FileIO, OutputStream, load_file_io
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.typedef import Properties

from airflow_provider_cdc.core.storage import durable


def load_durable_io(properties: Properties, location: str | None) -> FileIO:
    """Return PyIceberg's access to files. Files that it writes on a local disk are durable once they are closed."""
    loaded = load_file_io(properties, location)
    return _DurableIO(properties) if type(loaded) is PyArrowFileIO else loaded


class _DurableIO(PyArrowFileIO):
    def new_output(self, location: str) -> PyArrowFile:
        file = super().new_output(location)
        if isinstance(file._filesystem, LocalFileSystem):
            return _DurableFile(file.location, file._path, file._filesystem, file._buffer_size)
        return file


class _DurableFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        durable.make_folder(self._filesystem, posixpath.dirname(self._path))
        return _SyncedStream(Path(self._path).open("wb" if overwrite else "xb", buffering=0), self._filesystem)


class _SyncedStream(io.BufferedWriter):
    def __init__(self, raw: io.FileIO, filesystem: LocalFileSystem) -> None:
        super().__init__(raw)
        self._filesystem = filesystem

    def close(self) -> None:
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()
        # The name of the file is durable only after an fsync of its folder.
        durable.sync(self._filesystem, posixpath.dirname(str(self.name)))
