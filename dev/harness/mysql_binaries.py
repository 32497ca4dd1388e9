"""A MySQL server of at least version 8.4: the `mysqld` on PATH, else one fetched without root."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.messages import say

OLDEST = (8, 4)
HINT = "install MySQL >= 8.4 so that mysqld is on PATH"
PACKAGES = (
    ("mysql-server-core", "mysql-client-core"),
    ("mysql-server-core-8.4", "mysql-client-core-8.4"),
)


@dataclass(frozen=True)
class MysqlBinaries:
    """How to run the programs of one MySQL installation."""

    version: str
    mysqld: tuple[str, ...]
    """The argv that starts the server, ready for options. `--no-defaults` is in it."""
    loader: tuple[str, ...]
    """The dynamic loader and its library path, for an unpacked installation; else empty."""
    directory: Path | None
    """Where an unpacked installation keeps its client programs; None means PATH."""

    def tool(self, name: str) -> list[str]:
        """The argv prefix that runs the client program `name` (mysqlbinlog, mysql, mysqldump).

        Raises HarnessError if the installation does not have it.
        """
        found = shutil.which(name, path=str(self.directory) if self.directory else None)
        if found is None:
            where = self.directory or "PATH"
            raise HarnessError(f"no {name} in {where}: install the MySQL client programs")
        return [*self.loader, found]


def find_mysql() -> MysqlBinaries:
    """The server on PATH if it is MySQL >= 8.4, else the one in the cache, fetched at first use.

    Raises HarnessError if there is none and none can be fetched.
    """
    on_path = shutil.which("mysqld")
    if on_path and (version := _version([on_path])):
        return MysqlBinaries(version, (on_path, "--no-defaults"), (), None)
    root = cache_directory() / "mysql" / "root"
    with locked("mysql"):
        if not root.exists():
            _fetch(root)
    return _unpacked(root)


def _fetch(root: Path) -> None:
    say("MySQL: no mysqld >= 8.4 on PATH; fetching one into the cache (about 65 MB), without root")
    with building(root) as work:
        apt.unpack(PACKAGES, work, suites=apt.newest_suites(), with_dependencies=True, hint=HINT)
        _unpacked(work)
    say(f"MySQL: unpacked in {root} (undo: rm -r {root.parent})")


def _unpacked(root: Path) -> MysqlBinaries:
    loader = next(
        (p for d in ("usr/lib64", "usr/lib", "lib64", "lib") for p in sorted((root / d).glob("ld-linux*"))),
        None,
    )
    mysqld = root / "usr/sbin/mysqld"
    if loader is None or not mysqld.exists():
        raise HarnessError(f"{root} holds no whole MySQL: delete it and run dev/setup again")
    libraries = [p for d in ("usr/lib", "lib") for p in sorted((root / d).glob("*-linux-gnu*"))]
    path = ":".join(str(p) for p in [*libraries, *(p / "mysql/private" for p in libraries)])
    prefix = (str(loader), "--library-path", path)
    version = _version([*prefix, str(mysqld)])
    if version is None:
        raise HarnessError(
            f"the mysqld in {root} does not run or is older than 8.4: delete {root} and run dev/setup again"
        )
    share = root / "usr/share/mysql"
    server = (
        *prefix,
        str(mysqld),
        "--no-defaults",
        f"--basedir={root / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
    )
    return MysqlBinaries(version, server, prefix, root / "usr/bin")


def _version(mysqld: list[str]) -> str | None:
    """The version of a MySQL server that is new enough, else None (MariaDB does not count)."""
    try:
        shown = subprocess.run([*mysqld, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"Ver (\d+)\.(\d+)\.(\d+)", shown)
    if match is None or "MariaDB" in shown or (int(match[1]), int(match[2])) < OLDEST:
        return None
    return ".".join(match.groups())
