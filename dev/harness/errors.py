"""The error class of the harness."""

from __future__ import annotations


class HarnessError(RuntimeError):
    """Something that the harness needs is missing or did not start. The message names it and has a hint."""
