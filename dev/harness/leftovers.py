"""What the cache holds and nobody needs any more: `python -m harness.leftovers` removes it, and says so.

- Virtual environments whose checkout is gone. Each one notes its checkout (``.checkout``), and every command that uses
  it holds a lock on the note: see ``dev/_env.sh``.
- Compiled kernels of sources that are no longer run.
- Compiled Python modules of folders that are gone.

It takes some hundredths of a second if there is nothing to do.
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
"""A checkout that cannot be seen may be one of a container that shares the cache: it has this long to come back."""
UNUSED_SECONDS = 30 * 24 * 3600
"""Also checkouts that are there leave environments behind: when their pins change, each set has one of its own."""
KERNELS_KEPT = 16
"""As many sets of compiled kernels stay, those used last, and any that was used within a day."""
_DEPTH = 6
"""How deep folders of modules are looked for: the checkouts and environments of this machine lie no deeper."""


def remove_all(cache: Path, say: Callable[[str], None]) -> None:
    """Remove what is left over in ``cache``; each removal is said."""
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
    """Why an environment is not needed; empty if it is, or if it does not say whose it is."""
    note = venv / CHECKOUT
    try:
        checkout, unused = Path(note.read_text().strip()), time.time() - note.stat().st_mtime
    except OSError:
        return ""
    if unused > GONE_SECONDS and not (checkout / "pyproject.toml").exists():
        return f"its checkout {checkout} is gone"
    if unused > UNUSED_SECONDS:
        return f"not used for {UNUSED_SECONDS // 86400} days"
    return ""


def _remove_unused(venv: Path) -> str:
    """Remove an environment, and return its size in words; empty if somebody uses or builds it."""
    building = venv.with_name(f"{venv.name}.lock")
    with _locked(building) as built, _locked(venv / CHECKOUT) as used:
        if not (built and used):
            return ""
        size = sum(path.lstat().st_size for path in venv.rglob("*"))
        # Under another name, so that one that is half removed is not taken for whole.
        doomed = venv.with_name(f".{venv.name}")
        venv.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        building.unlink(missing_ok=True)
    return f"{size / 1e6:,.0f} MB"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Whether nobody else holds the lock; as long as the block runs, we do."""
    with path.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _remove_kernels(folder: Path) -> int:
    # The folder of a set is touched whenever it is used: `environment.spark_environment`.
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
    """Python mirrors the whole file system below ``mirror``: remove folders whose original is not there."""
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
