"""Folders for servers with temporary data."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 << 30
ABANDONED_SECONDS = 3600
"""The age from which an unlocked folder is removed: its process was killed, and could not remove it."""


@contextmanager
def throw_away(prefix: str) -> Iterator[Path]:
    """Create a folder that exists while the context is open: in memory if enough is free, otherwise on disk.

    A test creates and drops a database, with hundreds of files. File systems on disk are slow to reuse space that was
    just deleted (ext4: slower than the tests themselves).
    """
    remove_abandoned(MEMORY, prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY if _has_room() else None) as folder, _locked(folder):
        yield Path(folder)


def remove_abandoned(memory: Path, prefix: str) -> None:
    """Remove the folders of killed processes, which would occupy memory until the machine restarts."""
    for folder in memory.glob(f"{prefix}*/"):
        # Another process may remove the folder first, and folders of other users cannot be opened.
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_SECONDS:
                with _locked(folder):
                    shutil.rmtree(folder)


@contextmanager
def _locked(folder: Path | str) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process.

    :raises BlockingIOError: another process holds the lock.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _has_room() -> bool:
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = min(shutil.disk_usage(MEMORY).free, int(facts["MemAvailable"].split()[0]) * 1024)
    except OSError:
        return False
    return free >= ROOM_BYTES and os.access(MEMORY, os.W_OK)
