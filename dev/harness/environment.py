"""The environment variables for Spark: the Python of this environment, Java, and a folder for compiled kernels."""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from harness.cache import cache_directory
from harness.errors import HarnessError
from harness.java import java_home
from harness.mysql_binaries import find_mysql
from harness.postgres_binaries import find_postgres, installations
from harness.postgres_packages import fetch_missing
from harness.spark_classes import make_archive
from harness.spark_python import unpack_sources

PACKAGE = Path(__file__).resolve().parents[2] / "airflow_provider_cdc"


def spark_environment() -> dict[str, str]:
    """Return the variables to set before a Spark session or an Airflow process starts.

    Raises HarnessError if there is no Java, or if the two PySpark distributions have different versions.
    """
    _check_one_pyspark()
    kernels = cache_directory() / "numba" / _kernels_digest()
    kernels.mkdir(parents=True, exist_ok=True)
    # Record the use, because `leftovers` removes kernels that were not used for a day.
    os.utime(kernels)
    return {
        "JAVA_HOME": str(java_home()),
        "NUMBA_CACHE_DIR": str(kernels),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        # Everything runs on this machine, and its host name may not resolve.
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _kernels_digest() -> str:
    # Numba compiles a kernel again when its own file changes, but not when a called kernel or a constant in another
    # file changes.
    digest = hashlib.sha256()
    for path in sorted(_kernel_sources()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _kernel_sources() -> set[Path]:
    """Return the files with kernels, and the files from which they import constants, directly or indirectly."""
    texts = {path: path.read_text() for path in PACKAGE.rglob("*.py")}
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in texts}
    found = {path for path, text in texts.items() if "\n@kernel" in text or "\n@inner" in text}
    ahead = set(found)
    while ahead:
        for node in ast.walk(ast.parse(texts[ahead.pop()])):
            if isinstance(node, ast.ImportFrom):
                for name in (alias.name for alias in node.names):
                    path = modules.get(f"{node.module}.{name}")
                    if name.isupper():
                        path = modules.get(str(node.module))
                    if path is not None and path not in found:
                        found.add(path)
                        ahead.add(path)
    return found


def _check_one_pyspark() -> None:
    # Both install into the folder pyspark/, so it is a mixture if their versions differ.
    try:
        full, client = version("pyspark"), version("pyspark-client")
    except PackageNotFoundError:
        return
    if full != client:
        raise HarnessError(
            f"pyspark {full} and pyspark-client {client} overwrite each other's files: "
            "install one version of both (dev/setup does)"
        )


def main() -> None:
    """`exports`: print the variables as lines that a shell can `eval`. `check`: fetch missing programs."""
    parser = argparse.ArgumentParser(prog="python -m harness.environment", description=main.__doc__)
    parser.add_argument("action", choices=["exports", "check"])
    action = parser.parse_args().action
    try:
        variables = spark_environment()
        binaries = find_mysql() if action == "check" else None
        if action == "check":
            find_postgres()
            fetch_missing([postgres.major for postgres in installations()])
            installations.cache_clear()
            os.environ.update(variables)
            unpack_sources()
            make_archive()
    except HarnessError as error:
        raise SystemExit(f"setup: {error}") from None
    if binaries is not None:
        print(f"setup: MySQL {binaries.version} in {binaries.directory or binaries.mysqld[0]}")
        for postgres in installations():
            print(f"setup: PostgreSQL {postgres.version} in {postgres.directory}")
        print(f"setup: Java in {variables['JAVA_HOME']}")
        return
    for name, value in variables.items():
        print(f"export {name}={shlex.quote(value)}")


if __name__ == "__main__":
    main()
