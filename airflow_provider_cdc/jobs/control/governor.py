"""The governor: measures the source, and decides how much of the time a run may read."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_provider_cdc.sources.api.source import Source

SHARES = (1.0, 0.5, 0.25, 0.125, 0.0)
"""The part of the time in which a task may read, by level. The last level pauses the run."""
ANSWER_SECONDS = 10.0
"""The time after which a server that has not answered counts as one that cannot be measured."""
CALM = 2
"""The number of measurements without an excess after which the level decreases by one."""


@dataclass(frozen=True)
class Measured:
    """A measurement. ``excess`` has the signals above their thresholds, in words. ``failed`` says why nothing could be
    measured."""

    excess: tuple[str, ...] = ()
    failed: str = ""


def measure(source: Source, thresholds: Mapping[str, float]) -> Measured:
    """Measure the signals of the thresholds. An error is a result, because an overloaded server may not answer."""
    try:
        numbers = source.load(list(thresholds))
        return Measured(
            tuple(
                f"{signal} is {numbers[signal]:,g}, above {threshold:,g}"
                for signal, threshold in thresholds.items()
                if numbers[signal] > threshold
            )
        )
    except Exception as error:
        return Measured(failed=getattr(error, "message", f"{type(error).__name__}: {error}"))


class Meter:
    """Measures in another thread, so that a server that does not answer delays neither a pause nor a stop."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._asking: threading.Thread | None = None
        self._asked = 0.0
        self._found: Measured | None = None

    def measured(self, thresholds: Mapping[str, float]) -> Measured | None:
        """Return the result of the last measurement, and begin the next one. Return None if the last one is not done
        yet. Each result is returned once."""
        if self._asking is not None and self._asking.is_alive():
            if time.monotonic() - self._asked < ANSWER_SECONDS:
                return None
            self._asked = time.monotonic()
            return Measured(failed=f"the server has not answered for {ANSWER_SECONDS:.0f} s")
        found, self._found, self._asked = self._found, None, time.monotonic()
        self._asking = threading.Thread(target=self._ask, args=(thresholds,), name="meter", daemon=True)
        self._asking.start()
        return found

    def _ask(self, thresholds: Mapping[str, float]) -> None:
        self._found = measure(self._source, thresholds)


class Governor:
    """The level of the run, which follows the measurements: each excess increases it by one, and `CALM` measurements
    without an excess decrease it by one.

    If nothing can be measured, the run becomes slower, but is not paused: a query that has become wrong must not stop
    the run forever.
    """

    def __init__(self, shares: Sequence[float] = SHARES) -> None:
        self._shares = shares
        self._calm = 0
        self.level = 0

    @property
    def share(self) -> float:
        return self._shares[self.level]

    def observe(self, measured: Measured) -> None:
        last = len(self._shares) - 1
        if measured.excess:
            self.level, self._calm = min(self.level + 1, last), 0
        elif measured.failed:
            self.level, self._calm = min(self.level + 1, max(self.level, last - 1)), 0
        else:
            self._calm += 1
            if self._calm >= CALM:
                self.level, self._calm = max(self.level - 1, 0), 0

    def reset(self) -> None:
        self.level = self._calm = 0
