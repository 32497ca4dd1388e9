"""A real file system of some megabytes, which tests can fill, without root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEGABYTES = 64
_PIECE = bytes(1 << 16)

_HOLD = f'mount -t tmpfs -o size={_MEGABYTES}m none "$1" && echo ready && exec cat'


class SmallDisk:
    """What lies in ``folder`` shares ``_MEGABYTES`` with a file that `fill` makes."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "lake"
        self.folder.mkdir()
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """From now on the disk is full, to the last byte."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for piece in (_PIECE, b"\0"):
                try:
                    while ballast.write(piece) == len(piece):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        """The end of `fill`."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a disk in memory in the mount namespace of a process of its own; other processes access it through that
    process. None: on this machine, only root can mount file systems.

    :param folder: an existing, empty folder.
    """
    try:
        holder = subprocess.Popen(
            ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _HOLD, "sh", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        yield None
        return
    assert holder.stdin
    assert holder.stdout
    with holder, holder.stdin:
        yield SmallDisk(Path(f"/proc/{holder.pid}/root{folder}")) if holder.stdout.readline() else None
