"""pt-online-schema-change of Percona Toolkit: the one on PATH, or one fetched without root, with its own Perl."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.messages import say
from harness.mysql_server import MysqlServer

PROGRAM = "pt-online-schema-change"
PACKAGES = (("percona-toolkit",),)
HINT = f"install Percona Toolkit so that {PROGRAM} is on PATH"


@dataclass(frozen=True)
class OnlineSchemaChange:
    """The argv prefix of the program, and the environment variables that it needs."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, server: MysqlServer, table: str, alter: str, *options: str) -> subprocess.Popen[str]:
        """Start to alter ``table`` (``schema.table``) with the clause ``alter`` of an ALTER TABLE."""
        schema, _, name = table.partition(".")
        place = f"h={server.host},P={server.port},u=root,D={schema},t={name}"
        # No standbys are searched for, and nothing is asked of Percona's server.
        quiet = ("--no-version-check", "--recursion-method=none", "--no-check-replication-filters")
        return subprocess.Popen(
            [*self.argv, place, "--alter", alter, "--execute", "--progress=time,3600", *quiet, *options],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def check_works(self) -> None:
        """Check that the program starts, and that its Perl has the driver for MySQL.

        :raises HarnessError: it does not start.
        """
        command = [*self.argv, "--version"]
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise HarnessError(f"{PROGRAM} does not start: {done.stderr.strip()[-300:]}. Instead: {HINT}")


def find_online_schema_change() -> OnlineSchemaChange:
    """Return the program on PATH, otherwise the one in the cache, which is fetched at first use.

    Raises HarnessError if there is none, and it cannot be fetched.
    """
    if on_path := shutil.which(PROGRAM):
        found = OnlineSchemaChange((on_path,))
        found.check_works()
        return found
    root = cache_directory() / "percona-toolkit" / "root"
    with locked("percona-toolkit"):
        if not root.exists():
            say("Percona Toolkit: not on PATH; fetching it into the cache (about 50 MB), without root")
            with building(root) as work:
                apt.unpack(PACKAGES, work, suites=apt.own_suites(), with_dependencies=True, hint=HINT)
                _unpacked(work)
            say(f"Percona Toolkit: unpacked in {root} (undo: rm -r {root.parent})")
    return _unpacked(root)


def _unpacked(root: Path) -> OnlineSchemaChange:
    loader = next((p for d in ("lib64", "usr/lib64", "lib", "usr/lib") for p in (root / d).glob("ld-linux*")), None)
    perl, program = root / "usr/bin/perl", root / "usr/bin" / PROGRAM
    if loader is None or not perl.exists() or not program.exists():
        raise HarnessError(f"the Percona Toolkit in {root} is incomplete: delete this folder")
    libraries = [p for d in ("usr/lib", "lib") for p in sorted((root / d).glob("*-linux-gnu*"))]
    modules = [
        *(root / "usr/share/perl5",),
        *(path for folder in libraries for path in (*folder.glob("perl5/5*"), *folder.glob("perl/5*"))),
        *(path for path in (root / "usr/share/perl").glob("5*")),
        *(path for folder in libraries for path in folder.glob("perl-base")),
    ]
    plugins = [path.parent for path in root.rglob("caching_sha2_password.so")]
    found = OnlineSchemaChange(
        (str(loader), "--library-path", ":".join(map(str, libraries)), str(perl), str(program)),
        {
            "PERL5LIB": ":".join(map(str, modules)),
            "MARIADB_PLUGIN_DIR": ":".join(map(str, plugins[:1])),
        },
    )
    found.check_works()
    return found
