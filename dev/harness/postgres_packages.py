"""PostgreSQL servers of the major versions that neither PATH nor the pinned wheel has, from unpacked packages."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.messages import say

PROGRAM_SUFFIX = ".program"
"""The end of the names of the programs themselves. Under the original names are scripts that start them."""

_SCRIPT = """\
#!/bin/sh
# Runs the program beside this script with the libraries of its own distribution.
root=${{0%/{place}/*}}
exec "$root/{loader}" --library-path "{libraries}" --argv0 "$0" "$0{suffix}" "$@"
"""


@dataclass(frozen=True)
class PackagedServer:
    """A major version, and the releases of Debian that have its packages."""

    major: int
    releases: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The folder in the cache into which the packages are unpacked."""
        return cache_directory() / "postgres" / f"packages-{self.major}"

    @property
    def programs(self) -> Path:
        """The folder of the server's programs, whether it exists or not."""
        return self.root / self.place

    @property
    def place(self) -> str:
        return f"usr/lib/postgresql/{self.major}/bin"


# A version is in the release experimental before it is in sid.
SERVERS = (
    PackagedServer(17, ("trixie",)),
    PackagedServer(19, ("sid", "experimental")),
)


def fetch_missing(majors: Collection[int]) -> None:
    """Fetch the servers that are not in ``majors`` into the cache, without root. Say why a server cannot be fetched."""
    for server in SERVERS:
        if server.major not in majors:
            with locked(f"postgres-{server.major}"):
                if not server.root.exists():
                    try:
                        _fetch(server)
                    except HarnessError as error:
                        say(f"PostgreSQL {server.major}: there are no tests with this version here: {error}")


def _fetch(server: PackagedServer) -> None:
    say(f"PostgreSQL: fetching version {server.major} into the cache (about 100 MB), without root")
    source = f"postgresql-{server.major}"
    with building(server.root) as work:
        apt.unpack(
            [[source, f"postgresql-client-{server.major}"]],
            work,
            suites=apt.suites_of_debian(*server.releases),
            with_dependencies=True,
            hint=f"install PostgreSQL {server.major} so that initdb is on PATH",
            newest_of=[source],
        )
        _wrap(work, server)
    say(f"PostgreSQL: unpacked in {server.root} (undo: rm -r {server.root})")


def _wrap(root: Path, server: PackagedServer) -> None:
    """Replace the programs by scripts. The programs find each other by their names, so an argument list that begins
    with the loader would not be enough."""
    loader = next((path for path in sorted(root.glob("usr/lib*/ld-linux*")) if path.is_file()), None)
    loader = loader or next(iter(sorted(root.glob("usr/lib/*/ld-linux*"))), None)
    if loader is None:
        raise HarnessError(f"the packages of PostgreSQL {server.major} have no dynamic loader")
    libraries = ":".join(f"$root/{path.relative_to(root)}" for path in _library_folders(root))
    for program in sorted((root / server.place).iterdir()):
        if program.is_symlink() or not os.access(program, os.X_OK):
            continue
        program.rename(program.with_name(program.name + PROGRAM_SUFFIX))
        program.write_text(
            _SCRIPT.format(
                place=server.place, loader=loader.relative_to(root), libraries=libraries, suffix=PROGRAM_SUFFIX
            )
        )
        program.chmod(0o755)


def _library_folders(root: Path) -> Iterator[Path]:
    for folder in sorted(root.glob("usr/lib/*-linux-gnu*")):
        yield folder
        yield from sorted(path for path in folder.iterdir() if path.is_dir() and path.name.startswith("llvm"))
