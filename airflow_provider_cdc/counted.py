"""Formats counts and durations for logs, plans, reports and errors."""

from __future__ import annotations


def format_count(number: int, one: str, many: str = "") -> str:
    """Format a count, such as ``1 table`` or ``2,000 tables``.

    :param many: the plural form. Empty: the plural is ``one`` plus an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def duration(seconds: float) -> str:
    """Format a duration, such as ``7 s``, ``3 min 05 s`` or ``2 h 10 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
