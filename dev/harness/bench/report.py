"""The results of a bench, as a table for users and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Result:
    """One measurement: ``seconds`` for ``rows`` rows. ``peak_rss_mb`` is the sum over its processes."""

    name: str
    rows: int
    seconds: float
    peak_rss_mb: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0


@dataclass
class Report:
    """The results of one bench. A ratio above 1 means that this package is faster (or costs the source less)."""

    bench: str
    rows: int
    results: list[Result] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the report as JSON: ``bench``, ``rows``, ``results`` (a list) and ``ratios`` (numbers by name)."""
        data = {
            "bench": self.bench,
            "rows": self.rows,
            "results": [
                {
                    "name": result.name,
                    "rows_per_s": round(result.rows_per_s, 1),
                    "seconds": round(result.seconds, 4),
                    "peak_rss_mb": round(result.peak_rss_mb, 1),
                }
                for result in self.results
            ],
            "ratios": {name: round(ratio, 3) for name, ratio in self.ratios.items()},
        }
        path.write_text(json.dumps(data, indent=2) + "\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. The first column is aligned left, the figures right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in [header, ["-" * width for width in widths], *rows]:
        first, *others = (
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *others]).rstrip())


def print_ratios(ratios: dict[str, float]) -> None:
    if ratios:
        print("\nours compared with the peers (above 1: ours is faster): ", end="")
        print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
