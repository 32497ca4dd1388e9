"""The tries of the steps of one run, repeated as Airflow repeats them, under a schedule of faults."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from harness.proxy import Proxy
from tests.chaos.driver import Driver, Outcome
from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet
from tests.chaos.lakes import Disk, Store
from tests.chaos.worlds import World

TRIES = 8
"""More than faults that a schedule can have for one step: without a fault a try must succeed."""
TRY_SECONDS = 150.0
MOMENT_SECONDS = 3.0
"""The longest that a machine refuses what a process needs; a store or a server may be away for longer."""
PAUSES = {"source_slow": 0.05, "store_slow": 0.4}
"""Seconds before each piece that is sent. Any more, and writes to a store would take longer than is promised for."""
STATUSES = {"store_busy": 503, "store_broken": 500, "store_denied": 403}
LIMITS = {"disk_full": (resource.RLIMIT_FSIZE, 64, 2**40), "no_files": (resource.RLIMIT_NOFILE, 3, 2**20)}
"""The limit, what it is for a moment, and what after that."""
REFUSED = {"disk_full": "File too large", "no_files": "Too many open files"}


class Chaos:
    """One run under one schedule. ``story`` lists what happened, and ``bit`` the faults that had an effect."""

    def __init__(
        self,
        world: World,
        source: Proxy,
        lake: Disk | Store,
        fleet: Fleet,
        run: dict[str, Any],
        schedule: list[Fault],
    ) -> None:
        self._world = world
        self._source = source
        self._lake = lake
        self._fleet = fleet
        self._run = run
        self._faults = {(fault.step, fault.attempt): fault for fault in schedule}
        self._began = time.monotonic()
        self.story: list[str] = []
        self.bit: list[str] = []

    def step(self, step: str) -> Outcome:
        """Try a step as often as Airflow would."""
        for attempt in range(TRIES):
            outcome = self._try(step, self._faults.get((step, attempt)))
            self._tell(f"{step}, try {attempt}: {outcome.how} {outcome.said[:300]}")
            if outcome.how == "done" or (outcome.how == "terminal" and not self._is_denied(step, attempt, outcome)):
                return outcome
            # A denial lasts until someone gives the rights back, and clears the task.
            time.sleep(1.0 if outcome.how == "terminal" else 0.0)
        return Outcome("transient", "no try left")

    def _is_denied(self, step: str, attempt: int, outcome: Outcome) -> bool:
        """Whether a try failed for good because of a fault, which may have begun in an earlier one."""
        faults = (self._faults.get((step, earlier)) for earlier in range(attempt + 1))
        denied = any(fault is not None and fault.kind.endswith("_denied") for fault in faults)
        return denied and "StorageRefused" in outcome.said

    def _tell(self, what: str) -> None:
        self.story.append(f"{time.monotonic() - self._began:.1f} s: {what}")

    def _try(self, step: str, fault: Fault | None) -> Outcome:
        driver = self._fleet.take()
        driver.begin(step, self._run)
        if fault is None:
            outcome = self._end_of(driver)
            self._fleet.give_back(driver)
            return outcome
        self._tell(str(fault))
        if (early := self._until_due(driver, fault)) is not None:
            self._fleet.give_back(driver)
            return early
        if fault.kind == "freeze":
            self.bit.append(fault.kind)
            self._fleet.freeze(driver, fault.lasts)
            return Outcome("killed", "taken for dead")
        if fault.kind == "twice":
            self.bit.append(fault.kind)
            other = self._fleet.take()
            other.begin(step, self._run)
            return self._first_of(driver, other)
        with ExitStack() as stack:
            has_bitten = self._happen(driver, fault, stack)
            outcome = self._end_of(driver, ends=time.monotonic() + min(fault.lasts, MOMENT_SECONDS), then=stack)
        if has_bitten(outcome):
            self.bit.append(fault.kind)
        self._fleet.give_back(driver)
        return outcome

    def _until_due(self, driver: Driver, fault: Fault) -> Outcome | None:
        """Wait for the fault's instant; the outcome of the try if that comes before."""
        began = time.monotonic()
        seen, changes = self._names(), 0
        while True:
            self._fleet.wake()
            if (outcome := driver.outcome(0.003 if fault.changes else 0.02)) is not None:
                self._tell(f"it ended before that, after {changes} changes")
                return outcome
            if fault.seconds is not None and time.monotonic() - began >= fault.seconds:
                return None
            if fault.changes is not None:
                names = self._names()
                changes += len(names ^ seen)
                seen = names
                if changes >= fault.changes:
                    return None
            if time.monotonic() - began > TRY_SECONDS:
                pytest.fail(f"the try hangs before its fault: {fault}\n{driver.log.read_text()[-3000:]}")

    def _names(self) -> set[str]:
        return self._lake.names() if isinstance(self._lake, Disk) else set()

    def _happen(self, driver: Driver, fault: Fault, stack: ExitStack) -> Callable[[Outcome], bool]:
        """Let it happen; what ends it goes onto ``stack``. Returns what tells, in the end, whether it had an effect."""
        proxy = self._lake.proxy if fault.kind.startswith("store_") and isinstance(self._lake, Store) else self._source
        hits = proxy.hits
        match fault.kind:
            case "cut" | "store_cut":
                proxy.cut()
            case "outage" | "store_outage":
                proxy.go_down(fault.lasts)
            case "source_slow" | "store_slow":
                proxy.slow_down(fault.lasts, PAUSES[fault.kind])
            case "store_busy" | "store_broken" | "store_denied":
                assert isinstance(self._lake, Store)
                self._lake.answer(STATUSES[fault.kind], fault.lasts)
            case "source_crash":
                self._world.crash()
                return lambda outcome: True
            case "disk_full" | "no_files":
                what, most, usual = LIMITS[fault.kind]
                driver.limit(what, most)
                stack.callback(driver.limit, what, usual)
                return lambda outcome: outcome.how != "done" or driver.says(REFUSED[fault.kind])
            case "no_space":
                assert isinstance(self._lake, Disk)
                filled = self._lake.fill()
                stack.callback(self._lake.make_room)
                return lambda outcome: filled and (outcome.how != "done" or driver.says("No space left"))
            case "disk_denied":
                assert isinstance(self._lake, Disk)
                denied = self._lake.deny()
                stack.callback(self._lake.allow)
                return lambda outcome: denied and (outcome.how != "done" or driver.says("denies access"))
            case kind:
                killed = driver.kill(kind.removeprefix("kill_"))
                return lambda outcome: killed
        return lambda outcome: proxy.hits > hits

    def _first_of(self, *drivers: Driver) -> Outcome:
        """The outcome of the first of two tries that succeeds, else of the last one."""
        waiting = list(drivers)
        deadline = time.monotonic() + TRY_SECONDS
        outcome = Outcome("transient")
        while waiting and time.monotonic() < deadline:
            self._fleet.wake()
            for driver in list(waiting):
                if (ended := driver.outcome(0.05)) is not None:
                    outcome = ended
                    waiting.remove(driver)
                    self._fleet.give_back(driver)
                    if ended.how == "done":
                        for other in waiting:
                            self._fleet.keep_running(other)
                        return ended
                    self._tell(f"one of two tries: {ended.how} {ended.said[:300]}")
        assert not waiting, f"a try hangs:\n{waiting[0].log.read_text()[-3000:]}"
        return outcome

    def _end_of(self, driver: Driver, ends: float = 0.0, then: ExitStack | None = None) -> Outcome:
        """Wait for the end of a try; once it is past ``ends``, do what ``then`` holds."""
        deadline = time.monotonic() + TRY_SECONDS
        while time.monotonic() < deadline:
            self._fleet.wake()
            if then is not None and time.monotonic() >= ends:
                then.close()
            if (outcome := driver.outcome(0.2)) is not None:
                return outcome
        log = driver.log.read_text()[-3000:]
        driver.end()
        pytest.fail(f"a try hangs; so far: {self.story}\n{log}")
