"""Folders for servers whose data nobody keeps."""

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
    """A folder that is there while the context is open: in memory if there is plenty of it, else on the disk.

    A test makes a database and drops it. Those are hundreds of files each, and file systems on disks take their time to
    use again what was just deleted (ext4: more than the tests themselves).
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
