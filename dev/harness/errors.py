"""The one error of the harness."""

from __future__ import annotations


class HarnessError(RuntimeError):
    """Something the harness needs is missing or did not start; the message names it and the hint."""
