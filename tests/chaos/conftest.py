"""The seeds and servers of chaos tests, and a summary of the faults that they drew and of those that took effect."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.fleet import Fleet
from tests.chaos.lakes import Store, store
from tests.chaos.worlds import Worlds
from tests.small_disk import SmallDisk, small_disk

DREW, BIT = "fault drawn", "fault bit"
"""Properties of a report, whose value is a kind of fault: one that a schedule held, one that had an effect."""


def kind_of(seed: int) -> str:
    """The database of a seed."""
    return ("mysql", "postgres")[seed % 2]


def on_store(seed: int) -> bool:
    """Whether a seed's lake is a store; it takes longer than a disk."""
    return seed % 5 == 4


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    worlds = Worlds()
    yield worlds
    worlds.close()


@pytest.fixture(scope="module")
def lake_store() -> Iterator[Store]:
    with store() as made:
        yield made


@pytest.fixture(scope="module")
def fleet(lake_store: Store) -> Iterator[Fleet]:
    fleet = Fleet(lake_store.environment)
    yield fleet
    fleet.close()


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDisk | None]:
    with small_disk(tmp_path) as disk:
        yield disk


def rolls(seed: int) -> bool:
    """Whether a seed's run rolls a copy forward."""
    return random.Random(f"{seed}/rolls").random() < 0.5


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
