"""Progress messages of the harness."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print to stderr, because a shell may read the stdout of a command."""
    print(message, file=sys.stderr, flush=True)
