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
    """A disk of ``_MEGABYTES``: ``folder``, and a file that `fill` writes to use up the space."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "lake"
        self.folder.mkdir()
        self._ballast = root / "ballast"

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for piece in (_PIECE, b"\0"):
                try:
                    while ballast.write(piece) == len(piece):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        """Free the space again."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | None]:
    """Mount a disk in memory in the mount namespace of a child process; other processes access it through ``/proc``.
    Yield None if only root can mount file systems on this machine.

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
