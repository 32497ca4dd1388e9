"""Unpacks Spark's Python sources, because Python compiles the modules of a zip again in every process.

`spark-submit` puts `pyspark.zip` and Py4J's zip at the beginning of the path of each driver and of the daemon that
starts the workers, before the same modules in the environment. Compiling them takes half a second per process.
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
"""The file on which every command that uses the environment holds a shared lock (``dev/_env.sh``)."""


def unpack_sources() -> None:
    """Replace the zips of this environment with folders of the same names and contents, which also work in the path.

    A Python process that has imported from a zip needs the zip. So this does nothing while a command uses the
    environment.
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
        # Between these two calls, Python finds the modules in the environment.
        archive.unlink()
        work.rename(archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)
