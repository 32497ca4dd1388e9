"""Measures the memory and processor time of processes and their descendants, from /proc."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

from harness.background import Sampler

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_MEGABYTE = 1 << 20


def tree(root: int) -> list[int]:
    """Return ``root`` and its running descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children[_parent(int(entry.name))].append(int(entry.name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


def resident_mb(pid: int) -> float:
    """Return the current resident memory of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / _MEGABYTE
    except (OSError, IndexError):
        return 0.0


def peak_mb(pid: int) -> float:
    """Return the peak resident memory of a process, as recorded by the kernel; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def python_workers(root: int) -> list[int]:
    """Return the Python workers of the Spark session below ``root``: the children of its daemon, without the daemon."""
    daemons = [pid for pid in tree(root) if "pyspark.daemon" in _command(pid)]
    return [pid for pid in daemons if _parent(pid) in daemons]


def cpu_seconds(root: int) -> float:
    """Return the processor time of ``root`` and its descendants, including ended ones that were waited for."""
    return sum(sum(map(int, _stat(pid)[11:15])) for pid in tree(root)) / _TICKS


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third one on; zeros if the process has ended."""
    try:
        # The second field, the name in parentheses, may contain any text, so count from its end.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


class TreeMemory(Sampler):
    """Samples the memory of a process tree while the block runs. ``peak`` is the highest sum, in MB.

    Shared pages count once for each process.
    """

    def __init__(self, root: int, every: float = 0.1) -> None:
        super().__init__(every)
        self.peak = 0.0
        self._root = root

    def _sample(self) -> None:
        self.peak = max(self.peak, sum(map(resident_mb, tree(self._root))))
