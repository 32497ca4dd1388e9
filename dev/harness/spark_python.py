"""Spark's Python sources, unpacked: Python compiles the modules of a zip anew in every process that imports them.

`spark-submit` puts `pyspark.zip` and Py4J's zip at the head of the path of each driver and of the daemon that starts
the workers, before the same modules in the environment. Compiling them takes each process half a second.
"""

from __future__ import annotations

import fcntl
import importlib.util
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

CHECKOUT = Path(sys.prefix) / ".checkout"
"""Every command that uses the environment holds a shared lock on this file (``dev/_env.sh``)."""


def unpack_sources() -> None:
    """Replace the zips of this environment by folders of the same names and contents, which the path may name, too.

    A Python that has begun to import from a zip cannot go on without it: as long as a command uses the environment,
    this does nothing.
    """
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    archives = [path for path in (Path(spec.origin).parent / "python/lib").glob("*.zip") if path.is_file()]
    if not archives:
        return
    with CHECKOUT.open() as users:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for archive in archives:
            _unpack(archive)


def _unpack(archive: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f".{archive.name}-", dir=archive.parent))
    try:
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(work)
        work.chmod(0o755)
        # Whoever looks between these two finds the modules in the environment.
        archive.unlink()
        work.rename(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)
