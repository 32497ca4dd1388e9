"""What the harness tells people while it works."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Print to stderr: the stdout of a command may be read by a shell."""
    print(message, file=sys.stderr, flush=True)
