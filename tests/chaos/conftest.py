"""The seeds of chaos tests, and a summary of the faults that they drew and of those that took effect."""

from __future__ import annotations

from collections import Counter

import pytest

DREW, BIT = "fault drawn", "fault bit"
"""Properties of a report, whose value is a kind of fault: one that a schedule held, one that had an effect."""


def kind_of(seed: int) -> str:
    """The database of a seed."""
    return ("mysql", "postgres")[seed % 2]


def on_store(seed: int) -> bool:
    """Whether a seed's lake is a store; it takes longer than a disk."""
    return seed % 5 == 4


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    counts: dict[str, Counter[str]] = {DREW: Counter(), BIT: Counter()}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, kind in report.user_properties:
                    counts[name][str(kind)] += 1
    if counts[DREW]:
        terminalreporter.section("faults that had an effect, of those that were drawn")
        for kind, drawn in sorted(counts[DREW].items()):
            terminalreporter.line(f"{kind:<14} {counts[BIT][kind]:>4} of {drawn:>4}")
