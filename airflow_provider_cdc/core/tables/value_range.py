"""Ranges of one column's values, by which a keyless table is divided.

Whether a row belongs to a range depends only on the row's values. So each image in the log shows to which range it
belongs, and every range of a keyless table may be read at a position of its own (docs/design/resume.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Edge = int | str | None
"""A whole number, or a date or a time as ISO text; None: unbounded."""


@dataclass(frozen=True)
class ValueRange:
    """The rows whose value in ``column`` is from ``least`` (included) to ``beyond`` (excluded). The range without
    ``least`` also has the rows whose value is null."""

    column: str
    least: Edge = None
    beyond: Edge = None

    def up_to(self, other: ValueRange) -> ValueRange:
        """Return this range together with all ranges up to ``other``, which is a later range of the same column."""
        return replace(self, beyond=other.beyond)

    def __str__(self) -> str:
        low = "-∞" if self.least is None else self.least
        return f"{self.column} [{low} … {'∞' if self.beyond is None else self.beyond})"
