"""Folders for servers with temporary data."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 6 << 30


@contextmanager
def throw_away(prefix: str) -> Iterator[Path]:
    """Create a folder that exists while the context is open: in memory if enough is free, otherwise on disk.

    A test creates and drops a database, with hundreds of files. File systems on disk are slow to reuse space that was
    just deleted (ext4: slower than the tests themselves).
    """
    with tempfile.TemporaryDirectory(prefix=prefix, dir=MEMORY if _has_room() else None) as folder:
        yield Path(folder)


def _has_room() -> bool:
    try:
        facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = min(shutil.disk_usage(MEMORY).free, int(facts["MemAvailable"].split()[0]) * 1024)
    except OSError:
        return False
    return free >= ROOM_BYTES and os.access(MEMORY, os.W_OK)
