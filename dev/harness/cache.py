"""The cache of fetched and prepared files. It is outside the checkout, and can be deleted at any time."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_directory() -> Path:
    """Return `$CDC_CACHE`, or `airflow-provider-cdc` below `$XDG_CACHE_HOME` or `~/.cache`."""
    if explicit := os.environ.get("CDC_CACHE"):
        directory = Path(explicit)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        directory = Path(base) / "airflow-provider-cdc"
    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache lock `name`. A second process waits. The kernel releases the lock if its holder dies."""
    with (cache_directory() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def building(destination: Path) -> Iterator[Path]:
    """Yield an empty directory that becomes `destination` when the block succeeds.

    So `destination` either does not exist or is complete. Hold a lock (`locked`) meanwhile.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield work
        work.rename(destination)
    finally:
        shutil.rmtree(work, ignore_errors=True)
