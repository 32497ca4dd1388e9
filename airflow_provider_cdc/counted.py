"""Numbers of things, as people read them in logs, plans, reports and errors."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """``1 table``, ``2,000 tables``.

    :param many: the plural, where it is not ``one`` and an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
