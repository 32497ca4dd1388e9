"""Folders for the local files of a step's Spark driver. The folders are removed when the step ends, even if the step is
killed.

A process that uses a folder holds the lock of the folder, and the kernel releases the lock when the process ends. So if
the lock of a folder is free, a killed step left the folder, and the next step on the machine removes the folder.
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
"""A ``making-…`` folder that is older than this number of seconds is abandoned, and is removed."""


def scratch_parent(properties: Mapping[str, object]) -> Path:
    """Return the parent folder for scratch folders: the local folder that is configured for Spark, otherwise the
    system's temporary folder."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or str(properties.get("spark.local.dir") or "")
    folder = Path(named.split(",")[0].strip() or tempfile.gettempdir())
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Create a folder below ``parent``, and remove it at the end.

    First remove the folders that killed steps of this user left in ``parent``.
    """
    _sweep(parent)
    making = Path(tempfile.mkdtemp(prefix=f"making-{_prefix()}", dir=parent))
    folder = making.with_name(making.name.removeprefix("making-"))
    with (making / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Lock the folder before it gets its final name, because other steps remove unlocked folders with such a name.
        making.rename(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"airflow-provider-cdc-{os.getuid()}-"


def _sweep(parent: Path) -> None:
    for folder in filter(_is_own, parent.glob(f"{_prefix()}*")):
        # Another user could have created any kind of file with the name of the lock. If the file is a pipe, opening it
        # must not block this process. If the file is a link, it must not be followed.
        with suppress(OSError), open(folder / LOCK, "rb", opener=_unhindered) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    for folder in filter(_is_own, parent.glob(f"making-{_prefix()}*")):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Return whether this user owns the folder. In a shared parent folder, another user may have created a folder with
    the same name."""
    with suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _unhindered(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
