"""The drivers of a chaos test: idle ones, and those that were presumed dead and still run."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tests.chaos.driver import Driver, Outcome

LATE_SECONDS = 150.0


class Fleet:
    """Gives out drivers, and takes them back.

    A spare one starts while others work, for the start of a JVM is most of what a killed try costs.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._ready: list[Driver] = [self._new()]
        self._zombies: list[tuple[Driver, float]] = []

    def take(self) -> Driver:
        while self._ready:
            driver = self._ready.pop()
            if driver.alive():
                break
            driver.end()
        else:
            driver = self._new()
        if not self._ready:
            self._ready.append(self._new())
        return driver

    def give_back(self, driver: Driver) -> None:
        # Airflow makes a new process for each try; ours live on only where nothing can have happened to them.
        if driver.damaged or not driver.alive():
            driver.end()
        else:
            self._ready.append(driver)

    def freeze(self, driver: Driver, seconds: float) -> None:
        """Stop a driver. It goes on when `wake` is called after this time."""
        driver.stop()
        self._zombies.append((driver, time.monotonic() + seconds))

    def keep_running(self, driver: Driver) -> None:
        """Another try has finished the step; `settle` checks the result of this try."""
        self._zombies.append((driver, 0.0))

    def wake(self, *, everyone: bool = False) -> None:
        """Let those go on whose time it is."""
        for driver, at in self._zombies:
            if everyone or at <= time.monotonic():
                driver.go_on()

    def settle(self) -> list[Outcome]:
        """Wait until every zombie has ended its try."""
        self.wake(everyone=True)
        outcomes = []
        for driver, _ in self._zombies:
            outcome = driver.outcome(LATE_SECONDS)
            assert outcome is not None, f"a try that woke up late hangs:\n{driver.log.read_text()[-3000:]}"
            outcomes.append(outcome)
            self.give_back(driver)
        self._zombies = []
        return outcomes

    def close(self) -> None:
        for driver in [*self._ready, *(driver for driver, _ in self._zombies)]:
            driver.end()

    def _new(self) -> Driver:
        return Driver(self._environment)
