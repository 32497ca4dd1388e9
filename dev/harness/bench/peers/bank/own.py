"""The environments of contenders whose requirements conflict with those of this checkout. They stay in the cache."""

from __future__ import annotations

from pathlib import Path

from harness.cache import building, cache_directory, locked
from harness.messages import say
from harness.own_environment import make_environment

SLING = "sling-linux-amd64==1.4.11"
INGESTR = "ingestr==0.14.97"


def own_environment(requirement: str) -> Path:
    """Return the Python of an environment with a package."""
    name = requirement.partition("==")[0]
    root = cache_directory() / "bench-tools" / requirement.replace("==", "-")
    with locked(f"bench-{name}"):
        if not root.exists():
            say(f"bench: installing {requirement} into the cache (undo: rm -r {root})")
            with building(root) as folder:
                make_environment(folder, requirement)
    return root / "venv/bin/python"
