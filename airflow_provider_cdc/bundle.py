"""A command that makes an archive of the packages that Spark needs: ``python -m airflow_provider_cdc.bundle --help``.

The archive is for machines whose Python has none of these packages. It has no interpreter, no PySpark, no Airflow, and
not this package, which each application ships. Its packages have the versions that are installed here. It can be made
for another Python and another processor than those of this machine.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Any

from airflow_provider_cdc.errors import CdcError, ConfigurationError

PACKAGE = "airflow-provider-cdc"
NOT_IN_EXECUTORS = re.compile(r"apache-airflow\b|(pyspark(-client)?|jinja2|pyyaml)$")
"""The requirements of this package that executors do not need, or that belong to Spark."""
PLATFORM = "manylinux_2_28"
"""The oldest C library on which the packages must run, that of RHEL 8. Every system with Python 3.11 has it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the archive, or print the requirements, and return the exit status."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    parser = argparse.ArgumentParser("python -m airflow_provider_cdc.bundle", description=__doc__)
    parser.add_argument("--python", default=here, help="the version of Spark's Python (default: %(default)s)")
    parser.add_argument("--arch", default="x86_64", choices=("x86_64", "aarch64"), help="default: %(default)s")
    parser.add_argument("--extras", default="", help="extras of this package: postgres, iceberg, gcs, aws, azure")
    parser.add_argument("--storage-conn-id", default="", help="the connection to the object store of --to")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", help="the folder or the URI to write the archive to")
    what.add_argument("--requirements", action="store_true", help="only print the packages, for `pip install -r`")
    given = parser.parse_args(arguments)
    extras = [extra for extra in given.extras.split(",") if extra]
    try:
        packages = pinned_packages(given.python, given.arch, extras)
        if given.requirements:
            print("\n".join(packages))
        else:
            uri = _write(packages, given)
            print(f'conf = {{\n    "spark.archives": "{uri}#environment",')
            print('    "spark.executorEnv.PYTHONPATH": "./environment",\n}')
    except CdcError as error:
        print(f"bundle failed: {error}", file=sys.stderr)
        return 1
    return 0


def pinned_packages(python: str, arch: str, extras: Sequence[str]) -> list[str]:
    """Return the packages that executors need, each as a requirement of the version that is installed here.

    A package that only ``python`` needs is not installed here, and has no version.

    :raises ConfigurationError: this package is not installed, or has no such extra.
    """
    # Not at the top of the module: importing this package imports only the standard library.
    from packaging.markers import default_environment
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    target: dict[str, Any] = {**default_environment()}
    target |= {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": arch}

    def required(name: str, extras: Sequence[str]) -> Iterator[Requirement]:
        for text in requires(name) or ():
            one = Requirement(text)
            if one.marker is None or any(one.marker.evaluate({**target, "extra": extra}) for extra in ("", *extras)):
                yield one

    try:
        known = {extra for one in requires(PACKAGE) or () for extra in re.findall(r"extra == ['\"]([\w-]+)", one)}
    except PackageNotFoundError:
        raise ConfigurationError(f"{PACKAGE} is not installed", hint=f"pip install {PACKAGE}") from None
    if unknown := {*extras} - known:
        hint = f"its extras are {', '.join(sorted(known))}"
        raise ConfigurationError(f"{PACKAGE} has no extra {min(unknown)}", where="--extras", hint=hint)
    found: dict[str, str] = {}
    ahead = [*required(PACKAGE, extras)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while ahead:
        one = ahead.pop()
        name = canonicalize_name(one.name)
        if NOT_IN_EXECUTORS.match(name) or (name, frozenset(one.extras)) in seen:
            continue
        seen.add((name, frozenset(one.extras)))
        try:
            found[name] = f"{name}=={version(name)}"
        except PackageNotFoundError:
            found.setdefault(name, f"{name}{one.specifier}")
        else:
            ahead += required(name, sorted(one.extras))
    return [found[name] for name in sorted(found)]


def _write(packages: Sequence[str], given: argparse.Namespace) -> str:
    """Write the archive of ``packages``, and return its URI. Its name depends on the versions in it."""
    from airflow_provider_cdc.core.storage.folder import Storage
    from airflow_provider_cdc.hooks.storage import storage_access

    with tempfile.TemporaryDirectory(prefix="cdc-bundle-") as directory, storage_access(given.storage_conn_id):
        # Open the folder before the work, because its URI may be wrong.
        folder = Storage(given.to if "://" in given.to else Path(given.to).resolve().as_uri())
        root, archive = Path(directory, "packages"), Path(directory, "archive")
        _install(packages, root, given.python, given.arch)
        lock = sorted(f"{one.name}=={one.version}" for one in distributions(path=[str(root)]))
        digest = hashlib.sha256("\n".join(lock).encode()).hexdigest()[:12]
        _pack(root, archive)
        name = f"cdc-deps-{digest}-cp{given.python.replace('.', '')}-{given.arch}.tar.gz"
        folder.make_folder()
        folder.write_bytes(name, archive.read_bytes())
        return folder.uri_of(name)


def _install(packages: Sequence[str], root: Path, python: str, arch: str) -> None:
    """Install packages for another Python into the folder ``root``.

    :raises ConfigurationError: uv is missing, or it cannot install them.
    """
    # pip would evaluate the conditions of requirements for the Python that runs it.
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise ConfigurationError("the program uv is not installed", hint="pip install uv")
    listed = root.with_name("requirements.txt")
    listed.write_text("\n".join(packages))
    command = [
        *(uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(root), "-r", str(listed)),
        *("--python-version", python, "--python-platform", f"{arch}-{PLATFORM}", "--only-binary", ":all:"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        hint = "a package may have no release for this Python: install other versions of the packages here"
        raise ConfigurationError(f"uv failed:\n{done.stderr.strip()}", where=f"Python {python} on {arch}", hint=hint)


def _pack(root: Path, archive: Path) -> None:
    """Write ``root`` to a tar.gz file. Equal packages give equal files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", 6, file, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path in sorted(root.rglob("*")):
            if path.relative_to(root).parts[0] not in ("bin", ".lock"):
                tar.add(path, path.relative_to(root).as_posix(), recursive=False, filter=plain)


if __name__ == "__main__":
    sys.exit(main())
