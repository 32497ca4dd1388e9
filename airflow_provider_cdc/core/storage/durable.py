"""Files that survive a crash once they are there, and files that only one of several writers makes.

On a local disk, or what is mounted like one, the second writer of a name is refused by the file system itself. Object
stores, as pyarrow.fs shows them, cannot refuse: there the writers elect one of themselves. Each leaves a candidate,
waits, and completes the first candidate in the list, whoever left it; a writer that finds a candidate leaves none of
its own. Two writers could both believe to be the one only if a write of each took longer than `SETTLE_SECONDS`, at the
same moment.
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

from airflow_provider_cdc.core.lazy import LazyModule

if TYPE_CHECKING:
    from pyarrow import fs
else:
    fs = LazyModule("pyarrow.fs")

SETTLE_SECONDS = 2.0
"""How long a writer waits for candidates of others where the storage cannot refuse the second one."""

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_OBJECT_STORES = {"s3", "gcs", "abfs"}
_CANDIDATE = ".candidate"
_COPIED_BYTES = 8 * 2**20
_SYNCERS = 16
"""A disk that is told of several files at once writes its journal once for all of them."""


class Batch:
    """Writes to a local disk that are to survive a crash together, which costs the disk little more than one.

    What is written in it is there at once, but for files written with `write`: these appear when it is `settled`.
    """

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._files: list[tuple[str, str]] = []
        self._lock = threading.Lock()

    def add(self, path: str) -> None:
        """A file, or a folder with its names, is to survive."""
        with self._lock:
            self._paths.add(path)

    def write(self, path: str, data: bytes) -> None:
        temporary = _temporary(path, data, durable=False)
        with self._lock:
            self._files.append((temporary, path))

    def settle(self) -> None:
        """Have everything survive a crash: first all else, then the files that were written with `write`."""
        with ThreadPoolExecutor(_SYNCERS) as syncers:
            list(syncers.map(_sync, [*self._paths, *(temporary for temporary, _ in self._files)]))
            for temporary, path in self._files:
                Path(temporary).replace(path)
            list(syncers.map(_sync, {posixpath.dirname(path) for _, path in self._files}))
        self._paths, self._files = set(), []

    def drop(self) -> None:
        """Leave none of the files that were to appear."""
        for temporary, _ in self._files:
            with suppress(OSError):
                Path(temporary).unlink()


def write(filesystem: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file that readers see whole or not at all, and that survives a crash once this returns."""
    make_folder(filesystem, posixpath.dirname(path))
    if not isinstance(filesystem, fs.LocalFileSystem):
        # Object stores make an object visible when its upload completes; HDFS and others show it as it grows.
        whole = filesystem.type_name in _OBJECT_STORES
        first = path if whole else f"{path}.{uuid.uuid4().hex}.tmp"
        with filesystem.open_output_stream(first) as stream:
            stream.write(data)
        if not whole:
            filesystem.move(first, path)
        return
    Path(_temporary(path, data)).replace(path)
    # The new name is durable once its folder is.
    _sync(posixpath.dirname(path))


def create(filesystem: fs.FileSystem, path: str, data: bytes, settle: float | None = None) -> bool:
    """`write`, unless the file is there: then it stays as it is. Whether it is ``data`` that is there now.

    :param settle: how long to wait for others where the storage cannot refuse the second writer; 0 where it does no
        harm if the last one wins.
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
    """Have a file, whose content never changes, under a second name, in a folder that is there.

    No matter if the name is there already: several writers may do so at once. It survives a crash once its folder is
    synced.
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


def copy(filesystem: fs.FileSystem, path: str, other: fs.FileSystem, new_path: str) -> str:
    """Copy a file to another store, where readers see it whole or not at all, and where it survives a crash once this
    returns and its folder is synced; return the CRC-32 of what was copied, in hexadecimal digits."""
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
    """Remove a folder unless something lies in it; whether it is gone now."""
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
    if filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)):
        return False
    if _exists(filesystem, path):
        filesystem.delete_dir(path)
    return True


def rename_folder(filesystem: fs.FileSystem, path: str, new_path: str) -> bool:
    """Give a folder another name at once, for everybody; False: this store has no folders, or the name is taken."""
    if filesystem.type_name in _OBJECT_STORES or _exists(filesystem, new_path):
        return False
    filesystem.move(path, new_path)
    return True


def make_folder(filesystem: fs.FileSystem, path: str, batch: Batch | None = None) -> None:
    """Make a folder, and those above it, that survive a crash once this returns, or once ``batch`` is settled."""
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
    """Have the content of a file, or the names in a folder, survive a crash. Object stores have seen to that before."""
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
        # A disk that is full needs the room, and nobody would ever read it.
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
        # A network file system may say so when a call that it had carried out was sent once more.
        created = Path(temporary).samefile(path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    # Also for the try that comes second: what it will rest on must not vanish in a crash.
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
        # A store whose lists lag need not show even the one that is known to be there.
        first = min({*candidates, *_candidates(filesystem, path)})
        write(filesystem, path, _read(filesystem, first))
    return _read(filesystem, path) == data


def _candidates(filesystem: fs.FileSystem, path: str) -> list[str]:
    folder, name = posixpath.split(path)
    infos = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    names = [info.base_name for info in infos]
    return [
        posixpath.join(folder, one) for one in sorted(names) if one.startswith(f"{name}.") and one.endswith(_CANDIDATE)
    ]


def _exists(filesystem: fs.FileSystem, path: str) -> bool:
    return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)


def _read(filesystem: fs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())
