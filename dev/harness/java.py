"""A Java runtime of version 17 or later for Spark: installed on this machine, or fetched without root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from harness import apt
from harness.cache import building, cache_directory, locked
from harness.errors import HarnessError
from harness.messages import say

OLDEST = 17
PACKAGES = tuple((f"openjdk-{version}-jre-headless",) for version in (21, 17, 25))
HINT = "install Java 17 or 21 and set JAVA_HOME"


def java_home() -> Path:
    """Return `$JAVA_HOME`, otherwise the home of the `java` on PATH, otherwise the home of the Java in the cache.

    The latter is fetched at first use.

    Raises HarnessError if none of them is Java >= 17, and it cannot be fetched.
    """
    if (explicit := os.environ.get("JAVA_HOME")) and _is_new_enough(Path(explicit)):
        return Path(explicit)
    if on_path := shutil.which("java"):
        home = Path(on_path).resolve().parents[1]
        if _is_new_enough(home):
            return home
    return _cached()


def _cached() -> Path:
    root = cache_directory() / "java" / "root"
    with locked("java"):
        if not root.exists():
            say("Java: none >= 17 in JAVA_HOME or on PATH; fetching a runtime into the cache, without root")
            with building(root) as work:
                # Fetch only the runtime. It is of this machine's own suite, so it runs with this machine's libraries.
                apt.unpack(PACKAGES, work, suites=apt.own_suites(), with_dependencies=False, hint=HINT)
                _home(work)
            say(f"Java: unpacked in {root} (undo: rm -r {root.parent})")
    return _home(root)


def _home(root: Path) -> Path:
    for java in root.glob("usr/lib/jvm/*/bin/java"):
        home = java.parents[1]
        if not home.is_symlink() and _is_new_enough(home):
            return home
    raise HarnessError(f"the Java in {root} does not run: delete {root} and run dev/setup again, or {HINT}")


def _is_new_enough(home: Path) -> bool:
    try:
        done = subprocess.run([home / "bin/java", "-version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return False
    match = re.search(r'version "(\d+)', done.stderr)
    return match is not None and int(match[1]) >= OLDEST
