"""Lists files with their sizes and times, and reads the clock of a store."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_provider_cdc.core.lazy import LazyModule
from airflow_provider_cdc.core.storage.errors import told
from airflow_provider_cdc.core.storage.folder import Storage

fs = LazyModule("pyarrow.fs")


@dataclass(frozen=True)
class Entry:
    """A file. ``name`` is relative to the listed folder. ``written`` is a time of the store's clock."""

    name: str
    bytes: int
    written: datetime


def entries(folder: Storage, name: str = "", *, recursive: bool = False) -> list[Entry]:
    """Return the files in the folder ``name``; empty: the folder does not exist."""
    with told(folder.uri_of(name)):
        selector = fs.FileSelector(folder.path(name), allow_not_found=True, recursive=recursive)
        infos = folder.filesystem.get_file_info(selector)
    prefix = len(folder.path()) + 1
    return [
        Entry(info.path[prefix:], int(info.size), info.mtime.astimezone(UTC))
        for info in infos
        if info.type == fs.FileType.File
    ]


def folder_times(folder: Storage) -> list[datetime]:
    """Return when entries of a folder were last added or removed; empty: the store does not have this time."""
    with told(folder.uri):
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
        with told(folder.uri_of(probe)):
            written: datetime = folder.filesystem.get_file_info(folder.path(probe)).mtime
        return written.astimezone(UTC)
    finally:
        folder.delete_file(probe)
