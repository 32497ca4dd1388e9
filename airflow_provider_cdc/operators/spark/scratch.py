"""Folders for what a step's Spark driver writes on this machine: removed with the step, even if its processes are
killed.

Whoever uses a folder holds its lock, which the kernel gives back when the process ends. So a folder whose lock is free
is one that a killed step left, and the next step on the machine removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from airflow_provider_cdc.operators.spark.guardian import LOCK

_UNLOCKED_SECONDS = 3600.0
"""A folder that nobody ever locked is being made; not for so long, though."""


def scratch_parent(properties: Mapping[str, object]) -> Path:
    """Where to make scratch folders: where Spark would write, as far as somebody said so."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or str(properties.get("spark.local.dir") or "")
    folder = Path(named.split(",")[0].strip() or tempfile.gettempdir())
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """A folder below ``parent`` that is removed at the end, and with it what killed steps of this user left there."""
    _sweep(parent)
    making = Path(tempfile.mkdtemp(prefix=f"making-{_prefix()}", dir=parent))
    folder = making.with_name(making.name.removeprefix("making-"))
    with (making / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Only now does it have the name that others look for.
        making.rename(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"airflow-provider-cdc-{os.getuid()}-"


def _sweep(parent: Path) -> None:
    for folder in filter(_is_own, parent.glob(f"{_prefix()}*")):
        # Whatever lies there under the name of the lock: neither a pipe may stop this, nor a link lead elsewhere.
        with suppress(OSError), open(folder / LOCK, "rb", opener=_unhindered) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    for folder in filter(_is_own, parent.glob(f"making-{_prefix()}*")):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """In a folder that all users share, anybody may use a name that looks like ours."""
    with suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _unhindered(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
