"""Files that survive a crash once they are visible, and files that only one of several writers can create.

On a local or mounted disk, the file system itself rejects the second writer of a name. Object stores with conditional
writes also reject the second writer (`storage.conditional`). Other object stores, as used through pyarrow.fs, cannot
reject a writer. In these stores, the writers hold an election. Each writer writes a candidate, and waits. Then it lists
all candidates, and copies the first one to the final name, even if another writer wrote it. A writer that finds a
candidate of another writer does not write a candidate. Two writers could both win only if one write of each writer took
longer than `SETTLE_SECONDS`, both at the same time.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
import time
import uuid
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.storage.filesystems import LazyModule

if TYPE_CHECKING:
    from pyarrow import fs
else:
    fs = LazyModule("pyarrow.fs")

SETTLE_SECONDS = 2.0
"""How long a writer waits for candidates of other writers if the store cannot reject the second writer."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_OBJECT_STORES = {"s3", "gcs", "abfs"}
_CANDIDATE = ".candidate"
_COPIED_BYTES = 8 * 2**20
_LISTINGS = 5
"""How often a folder is listed that appears or disappears while it is listed."""
_SYNCERS = 16
"""Threads that call fsync. A file system writes its journal once for several files that are synced at once."""


class Batch:
    """A batch of writes to a local disk. They become durable together, which takes little more time than one durable
    write.

    Files that are written with `write` become visible when `settle` is called. All other changes are visible at once.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._files: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """Add a file, or a folder with its entries, to the files that `settle` makes durable."""
        with self._lock:
            self._paths.add(path)

    def write(self, path: str, data: bytes) -> None:
        temporary = _temporary(path, data, durable=False)
        with self._lock:
            self._files.append((temporary, path))

    def flush(self) -> None:
        """Make all files and folders of the batch durable, and then make the files of `write` visible."""
        with ThreadPoolExecutor(_SYNCERS) as syncers:
            list(syncers.map(_sync, [*self._paths, *(temporary for temporary, _ in self._files)]))
            for temporary, path in self._files:
                Path(temporary).replace(path)
            list(syncers.map(_sync, {posixpath.dirname(path) for _, path in self._files}))
        self._paths, self._files = set(), []

    def drop(self) -> None:
        """Delete the temporary files of `write` that are not visible yet."""
        for temporary, _ in self._files:
            with suppress(OSError):
                Path(temporary).unlink()


def shows_growing_files(filesystem: fs.FileSystem) -> bool:
    """Return whether readers may see a file while it is written. Such files are written with another name, and then
    renamed. Object stores make an object visible when its upload completes."""
    return filesystem.type_name not in _OBJECT_STORES


def write(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file atomically: readers see all of it or nothing. The file survives a crash once this function has
    returned."""
    make_folder(filesystem, posixpath.dirname(path))
    if not isinstance(filesystem, fs.LocalFileSystem):
        growing = shows_growing_files(filesystem)
        first = f"{path}.{uuid.uuid4().hex}.tmp" if growing else path
        # By default, PyArrow would compress a file whose name ends with .gz.
        with filesystem.open_output_stream(first, compression=None) as stream:
            stream.write(data)
        if growing:
            filesystem.move(first, path)
        return
    Path(_temporary(path, data)).replace(path)
    # The new name is durable only after an fsync of its folder.
    _sync(posixpath.dirname(path))


def create(filesystem: fs.FileSystem, path: str, data: bytes, settle: float | None = None) -> bool:
    """Write the file with `write` unless it exists. An existing file does not change. Return whether the file now
    contains ``data``.

    :param settle: how long to wait for other writers if the store cannot reject a second writer. Use 0 if a writer may
        replace the records of earlier writers.
    """
    make_folder(filesystem, posixpath.dirname(path))
    if isinstance(filesystem, fs.LocalFileSystem):
        try:
            return _link(path, data)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
    return _elect(filesystem, path, data, SETTLE_SECONDS if settle is None else settle)


def adopt(filesystem: fs.FileSystem, path: str, new_path: str) -> None:
    """Give a file a second name in an existing folder. The content of the file must never change.

    It is no error if the name exists already, because several writers may do this at once. The new name survives a
    crash once its folder is synced.
    """
    if isinstance(filesystem, fs.LocalFileSystem):
        try:
            os.link(path, new_path)
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    if filesystem.type_name in _OBJECT_STORES:
        filesystem.copy_file(path, new_path)
        return
    temporary = f"{posixpath.dirname(new_path)}/_{uuid.uuid4().hex}.tmp"
    filesystem.copy_file(path, temporary)
    sync(filesystem, temporary)
    filesystem.move(temporary, new_path)


def move(filesystem: fs.FileSystem, path: str, new_path: str) -> None:
    """Move a file within one store. An existing file with the new name is replaced."""
    try:
        filesystem.move(path, new_path)
    except NotImplementedError:
        # In Azure accounts without a hierarchical namespace, pyarrow.fs cannot move files.
        filesystem.copy_file(path, new_path)
        filesystem.delete_file(path)


def copy(filesystem: fs.FileSystem, path: str, other: fs.FileSystem, new_path: str) -> str:
    """Copy a file to another store atomically: readers see all of it or nothing. The new file survives a crash once
    this function has returned and the folder is synced. Return the CRC-32 of the copied bytes, in hexadecimal
    digits."""
    whole = other.type_name in _OBJECT_STORES
    first = new_path if whole else f"{posixpath.dirname(new_path)}/_{uuid.uuid4().hex}.tmp"
    crc = 0
    with filesystem.open_input_stream(path, buffer_size=0) as stream, other.open_output_stream(first) as target:
        while block := stream.read(_COPIED_BYTES):
            crc = zlib.crc32(block, crc)
            target.write(block)
    if not whole:
        sync(other, first)
        other.move(first, new_path)
    return f"{crc:08x}"


def delete_empty_folder(filesystem: fs.FileSystem, path: str) -> bool:
    """Remove a folder if it is empty; return whether it no longer exists."""
    if isinstance(filesystem, fs.LocalFileSystem):
        try:
            Path(path).rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        return True
    if list_folder(filesystem, path):
        return False
    if _exists(filesystem, path):
        filesystem.delete_dir(path)
    return True


def list_folder(filesystem: fs.FileSystem, path: str, *, recursive: bool = False) -> list[fs.FileInfo]:
    """Return the entries of a folder. The result is empty if the folder does not exist.

    pyarrow.fs lists the folder, and if that fails, it asks whether the folder exists. It raises `FileNotFoundError` if
    another process makes the folder between these two calls, so the folder is listed again.
    """
    selector = fs.FileSelector(path, allow_not_found=True, recursive=recursive)
    for _ in range(_LISTINGS - 1):
        with suppress(FileNotFoundError):
            return list(filesystem.get_file_info(selector))
    return list(filesystem.get_file_info(selector))


def rename_folder(filesystem: fs.FileSystem, path: str, new_path: str) -> bool:
    """Rename a folder atomically. Return False if this store has no folders, or if the name is taken."""
    if filesystem.type_name in _OBJECT_STORES or _exists(filesystem, new_path):
        return False
    filesystem.move(path, new_path)
    return True


def make_folder(filesystem: fs.FileSystem, path: str, batch: Batch | None = None) -> None:
    """Create a folder and its parents. The folders survive a crash once this function has returned, or once ``batch``
    is settled.

    S3 has no folders: a folder exists as soon as it has a file. Table buckets of S3 reject the objects that mark empty
    folders.
    """
    if filesystem.type_name == "s3":
        return
    if not isinstance(filesystem, fs.LocalFileSystem):
        filesystem.create_dir(path, recursive=True)
        return
    new = []
    while not Path(path).is_dir():
        new.append(path)
        path = posixpath.dirname(path)
    for folder in reversed(new):
        Path(folder).mkdir(exist_ok=True)
        (batch.add if batch else _sync)(posixpath.dirname(folder))


def sync(filesystem: fs.FileSystem, path: str) -> None:
    """Make the content of a file, or the entries of a folder, durable. In object stores they are durable already."""
    if isinstance(filesystem, fs.LocalFileSystem):
        _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(path: str, data: bytes, *, durable: bool = True) -> str:
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with Path(temporary).open("wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError:
        # Delete the temporary file, because no reader needs it and the disk may be full.
        with suppress(OSError):
            Path(temporary).unlink()
        raise
    return temporary


def _link(path: str, data: bytes) -> bool:
    temporary = _temporary(path, data)
    try:
        os.link(temporary, path)
        created = True
    except FileExistsError:
        # A network file system may report this error for a call that had already succeeded and was sent again.
        created = Path(temporary).samefile(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    # Sync the folder even if the file already existed. This try will depend on the file, so the file must survive a
    # crash.
    _sync(posixpath.dirname(path))
    return created


def _elect(filesystem: fs.FileSystem, path: str, data: bytes, settle: float) -> bool:
    if _exists(filesystem, path):
        return False
    candidates = _candidates(filesystem, path)
    if not candidates:
        candidates = [f"{path}.{uuid.uuid4().hex}{_CANDIDATE}"]
        write(filesystem, candidates[0], data)
    time.sleep(settle)
    if not _exists(filesystem, path):
        # In a store with delayed listings, the list may lack even a candidate that is known to exist.
        first = min({*candidates, *_candidates(filesystem, path)})
        write(filesystem, path, _read(filesystem, first))
    return _read(filesystem, path) == data


def is_stable(filesystem: fs.FileSystem, path: str, data: bytes, settle: float | None = None) -> bool:
    """Return whether a file that was created by a conditional write keeps its content.

    Another writer may have found that the store has no conditional writes, because it uses an earlier version of this
    package or other credentials. Such a writer may hold an election at this moment and not have seen the file. Its
    candidate shows that it holds an election. The writer looks for the file once more before it writes the file, so its
    write is over after `SETTLE_SECONDS`.
    """
    if settle == 0 or not _candidates(filesystem, path):
        return True
    time.sleep(SETTLE_SECONDS)
    return _read(filesystem, path) == data


def _candidates(filesystem: fs.FileSystem, path: str) -> list[str]:
    folder, name = posixpath.split(path)
    names = [info.base_name for info in list_folder(filesystem, folder)]
    return [
        posixpath.join(folder, one) for one in sorted(names) if one.startswith(f"{name}.") and one.endswith(_CANDIDATE)
    ]


def _exists(filesystem: fs.FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def _read(filesystem: fs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())
