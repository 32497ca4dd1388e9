"""A published table against the truth, row for row."""

from __future__ import annotations

from collections import Counter
from typing import Any


def assert_same_rows(where: str, copied: Counter[Any], truth: Counter[Any]) -> None:
    """Compare two multisets of rows; ``where`` is said where they differ."""
    missing, extra = truth - copied, copied - truth
    assert not missing, f"{where}: missing {list(missing)[:3]}, instead {list(extra)[:3]}"
    assert not extra, f"{where}: extra {list(extra)[:3]}"
