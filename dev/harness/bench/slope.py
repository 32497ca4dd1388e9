"""A rate without the fixed cost, from the times of copies of two sizes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """The seconds for two numbers of rows. The second number is larger."""

    small_rows: int
    small_seconds: float
    rows: int
    seconds: float

    @property
    def seconds_per_row(self) -> float:
        return (self.seconds - self.small_seconds) / (self.rows - self.small_rows)

    @property
    def rows_per_s(self) -> float | None:
        """The slope; None: noise hides it, because the larger table took hardly longer than the smaller one."""
        if self.seconds < 1.2 * self.small_seconds and self.seconds - self.small_seconds < 0.25:
            return None
        return 1 / self.seconds_per_row if self.seconds_per_row > 0 else None

    @property
    def fixed_seconds(self) -> float | None:
        """The seconds at zero rows."""
        if self.rows_per_s is None:
            return None
        return self.small_seconds - self.small_rows * self.seconds_per_row
