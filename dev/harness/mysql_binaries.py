"""A MySQL server of version 8.4 or later: the `mysqld` on PATH, or one fetched without root."""

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
    """The programs of one MySQL installation."""

    version: str
    mysqld: tuple[str, ...]
    """The argv that starts the server, to which options can be added. It includes `--no-defaults`."""
    loader: tuple[str, ...]
    """The dynamic loader and its library path for an unpacked installation; otherwise empty."""
    directory: Path | None
    """The folder of an unpacked installation's client programs; None: PATH."""

    def tool(self, name: str) -> list[str]:
        """Return the argv prefix that runs the client program `name` (mysqlbinlog, mysql, mysqldump).

        Raises HarnessError if the installation does not have the program.
        """
        found = shutil.which(name, path=str(self.directory) if self.directory else None)
        if found is None:
            where = self.directory or "PATH"
            raise HarnessError(f"no {name} in {where}: install the MySQL client programs")
        return [*self.loader, found]


def find_mysql() -> MysqlBinaries:
    """Return the server on PATH if it is MySQL >= 8.4, otherwise the one in the cache, which is fetched at first use.

    Raises HarnessError if there is none, and it cannot be fetched.
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
        raise HarnessError(f"the MySQL in {root} is incomplete: delete this folder, and run dev/setup again")
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
    """Return the version of a MySQL server; None if it is too old, or is MariaDB."""
    try:
        shown = subprocess.run([*mysqld, "--version"], capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"Ver (\d+)\.(\d+)\.(\d+)", shown)
    if match is None or "MariaDB" in shown or (int(match[1]), int(match[2])) < OLDEST:
        return None
    return ".".join(match.groups())
