"""PostgreSQL's additional modules (contrib), which the pinned wheel lacks."""

from __future__ import annotations

from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.messages import say

MAJOR = 18
HINT = f"install PostgreSQL {MAJOR} with its additional modules so that initdb is on PATH"


def contrib_options() -> dict[str, str]:
    """Return options for a server of version `MAJOR` with which it finds the modules' libraries.

    The modules are fetched into the cache at first use, without root. A library belongs to all minor versions.

    Raises HarnessError if they cannot be fetched.
    """
    root = cache_directory() / "postgres" / f"contrib-{MAJOR}"
    with locked("postgres-contrib"):
        if not root.exists():
            _fetch(root)
    return {"dynamic_library_path": f"$libdir:{_libraries(root)}"}


def _fetch(root: Path) -> None:
    say(f"PostgreSQL: fetching the additional modules of version {MAJOR} into the cache (about 8 MB), without root")
    with building(root) as work:
        suites = [*apt.newest_suites(), *apt.own_suites()]
        apt.unpack([[f"postgresql-{MAJOR}"]], work, suites=suites, with_dependencies=False, hint=HINT)
        assert (work / _libraries(Path()) / "test_decoding.so").exists()
    say(f"PostgreSQL: unpacked in {root} (undo: rm -r {root})")


def _libraries(root: Path) -> Path:
    return root / f"usr/lib/postgresql/{MAJOR}/lib"
