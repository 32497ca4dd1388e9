"""Packs this package into a zip, for executors without the package, because ``spark-submit --py-files`` accepts .zip
files, but not .whl files."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
SHIPPED = ("core", "sources", "sinks", "jobs")
"""The subpackages that run in executors. Executors do not need the Airflow code."""

# The zip's own __init__ unpacks the zip once per machine and version into the user's cache, and modules are imported
# from there. Modules in a zip would be compiled in every process. Compiled kernels are cached by the path of their
# source, and a zip has another path in each Spark application. If the user has no cache folder, unpack the zip into the
# folder that contains the zip file. On each machine, this folder belongs to the application.
_INIT = '''"""airflow-provider-cdc, as sent to executors: see jobs/runtime/shipping.py."""

import os
import tempfile
import zipfile

__version__ = {version!r}


def _unpack(archive, parent):
    folder = os.path.join(parent, {digest!r})
    if not os.path.isdir(folder):
        os.makedirs(parent, mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as work:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(work)
            try:
                os.rename(os.path.join(work, "airflow_provider_cdc"), folder)
            except OSError:
                if not os.path.isdir(folder):
                    raise
    return folder


def _place():
    archive = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    for parent in (os.path.join(cache, "airflow-provider-cdc", "shipped"), archive + ".unpacked"):
        try:
            return [_unpack(archive, parent)]
        except OSError:
            pass
    return __path__  # The zip cannot be unpacked: import the modules from the zip, which is slower.


__path__ = _place()
'''


def package_zip(folder: Path) -> Path:
    """Write the zip to ``folder``, and return its path. The name and the content of the zip depend only on the
    package."""
    sources = {f"airflow_provider_cdc/{path.relative_to(PACKAGE).as_posix()}": path for path in _shipped()}
    contents = {name: path.read_bytes() for name, path in sorted(sources.items())}
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(f"{name} {len(content)} ".encode() + content)
    init = _INIT.format(version=_version(), digest=digest.hexdigest()[:16])
    contents["airflow_provider_cdc/__init__.py"] = init.encode()
    target = folder / "airflow_provider_cdc.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            # Use the same time in every zip, so that equal packages give equal files.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return target


def _shipped() -> Iterator[Path]:
    yield from (PACKAGE / f"{name}.py" for name in ("__init__", "compat", "counted", "errors"))
    for name in SHIPPED:
        yield from (PACKAGE / name).rglob("*.py")


def _version() -> str:
    from airflow_provider_cdc import __version__

    return __version__
