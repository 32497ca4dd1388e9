"""Removes unused files from the cache, and prints what was removed: `python -m harness.leftovers`.

- Virtual environments of checkouts that no longer exist. Each environment names its checkout in a file (``.checkout``),
  and every command that uses the environment holds a lock on this file: see ``dev/_env.sh``.
- Compiled kernels of earlier sources.
- Compiled Python modules of folders that no longer exist.

It takes a few hundredths of a second if there is nothing to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.cache import cache_directory

CHECKOUT = ".checkout"
GONE_SECONDS = 24 * 3600
"""The time after which the environment of a missing checkout is removed. The checkout may be in a container that shares
the cache."""
UNUSED_SECONDS = 30 * 24 * 3600
"""The time after which the unused environment of an existing checkout is removed. Each set of pins has its own
environment."""
KERNELS_KEPT = 16
"""The number of sets of compiled kernels that are kept: the last ones used. Sets used within a day are also kept."""
_DEPTH = 6
"""The depth to which folders of modules are searched. The checkouts and environments of this machine are not deeper."""


def remove_all(cache: Path, say: Callable[[str], None]) -> None:
    """Remove unused files from ``cache``, and report each removal."""
    for half_removed in cache.glob(".venv-*/"):
        shutil.rmtree(half_removed, ignore_errors=True)
    for venv in sorted(cache.glob("venv-*/")):
        if (why := _left_over(venv)) and (size := _remove_unused(venv)):
            say(f"removed the environment {venv.name} ({size}): {why}")
    if (removed := _remove_kernels(cache / "numba")) > 0:
        say(f"removed {removed} sets of compiled kernels that were not used for a day")
    if removed_modules := _remove_modules(cache / "pycache"):
        say(f"removed the compiled modules of {len(removed_modules)} folders that are gone: {removed_modules[0]}, …")


def _left_over(venv: Path) -> str:
    """Return why an environment is not needed; empty if it is needed, or if it does not name its checkout."""
    note = venv / CHECKOUT
    try:
        checkout, unused = Path(note.read_text().strip()), time.time() - note.stat().st_mtime
    except OSError:
        return ""
    if unused > GONE_SECONDS and not (checkout / "pyproject.toml").exists():
        return f"its checkout {checkout} no longer exists"
    if unused > UNUSED_SECONDS:
        return f"not used for {UNUSED_SECONDS // 86400} days"
    return ""


def _remove_unused(venv: Path) -> str:
    """Remove an environment, and return its size as text; empty if a command uses or builds it."""
    building = venv.with_name(f"{venv.name}.lock")
    with _locked(building) as built, _locked(venv / CHECKOUT) as used:
        if not (built and used):
            return ""
        size = sum(path.lstat().st_size for path in venv.rglob("*"))
        # Rename it first, so that a partly removed environment is not used.
        doomed = venv.with_name(f".{venv.name}")
        venv.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        building.unlink(missing_ok=True)
    return f"{size / 1e6:,.0f} MB"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to take the lock for the duration of the block, and yield whether this succeeded."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _remove_kernels(folder: Path) -> int:
    # `environment.spark_environment` touches the folder of a set whenever the set is used.
    sets = sorted(folder.glob("*/"), key=_last_used, reverse=True)
    old = [path for path in sets[KERNELS_KEPT:] if time.time() - _last_used(path) > 24 * 3600]
    for path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)


def _last_used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        # Another command is removing it.
        return 0.0


def _remove_modules(mirror: Path) -> list[str]:
    """Remove folders below ``mirror``, where Python mirrors the file system, whose original does not exist."""
    removed = []
    for folder, names, _ in os.walk(mirror):
        below = Path(folder).relative_to(mirror)
        for name in list(names):
            if not Path("/", below, name).is_dir():
                shutil.rmtree(Path(folder, name), ignore_errors=True)
                names.remove(name)
                removed.append(str(Path("/", below, name)))
        if len(below.parts) >= _DEPTH:
            names.clear()
    return removed


if __name__ == "__main__":
    remove_all(cache_directory(), lambda what: print(f"setup: {what}"))
