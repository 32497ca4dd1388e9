"""Whatever fails, and whenever: the copy is exact, or the run has failed and nothing of it is published.

Each seed draws a database, a history of writes, and a schedule of faults (`faults.KINDS`) that hit the tries of the
steps at random instants. Tries are repeated as Airflow repeats them: after a transient error, and after whatever killed
them. Tries thought dead go on beside their successors. At the end an independent oracle judges what readers see: every
file in the folder of the copy, whoever put it there.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.storage import Storage
from harness.pipeline import Pipeline, published
from harness.proxy import Proxy
from tests.chaos import faults
from tests.chaos.driver import Driver, Outcome
from tests.chaos.faults import STEPS, Fault
from tests.chaos.worlds import MysqlWorld, PostgresWorld, World

SEEDS = int(os.environ.get("CDC_CHAOS_SEEDS", "30"))
FIRST_SEED = int(os.environ.get("CDC_CHAOS_FIRST_SEED", "0"))

TRIES = 8
"""More than faults that a schedule can have for one step: without a fault a try must succeed."""
TRY_SECONDS = 150.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[str, World]]:
    with tempfile.TemporaryDirectory(prefix="cdc-chaos-") as directory:
        opened: dict[str, Any] = {
            "mysql": MysqlWorld(Path(directory, "mysql")),
            "postgres": PostgresWorld(Path(directory, "postgres")),
        }
        yield opened
        for world in opened.values():
            world.close()


class Fleet:
    """Drivers: some that are ready, and those that were taken for dead and are not."""

    def __init__(self) -> None:
        self._ready: list[Driver] = []
        self._zombies: list[tuple[Driver, float]] = []

    def take(self) -> Driver:
        while self._ready:
            driver = self._ready.pop()
            if driver.alive():
                return driver
            driver.end()
        return Driver()

    def give_back(self, driver: Driver, outcome: Outcome) -> None:
        # Airflow makes a new process for each try; ours live on only where nothing can have happened to them.
        if outcome.how in ("killed", "transient") or not driver.alive():
            driver.end()
        else:
            self._ready.append(driver)

    def freeze(self, driver: Driver, seconds: float) -> None:
        driver.signal("group", signal.SIGSTOP)
        self._zombies.append((driver, time.monotonic() + seconds))

    def keep_running(self, driver: Driver) -> None:
        """Another try has finished the step: what becomes of this one is for `settle` to see."""
        self._zombies.append((driver, 0.0))

    def wake(self, *, everyone: bool = False) -> None:
        """Let those go on whose time it is."""
        for driver, at in self._zombies:
            if everyone or at <= time.monotonic():
                driver.signal("group", signal.SIGCONT)

    def settle(self) -> list[Outcome]:
        """Wait until every zombie has ended its try."""
        self.wake(everyone=True)
        outcomes = []
        for driver, _ in self._zombies:
            outcome = driver.outcome(TRY_SECONDS)
            assert outcome is not None, f"a try that woke up late hangs:\n{driver.log.read_text()[-3000:]}"
            outcomes.append(outcome)
            self.give_back(driver, outcome)
        self._zombies = []
        return outcomes

    def close(self) -> None:
        for driver in [*self._ready, *(driver for driver, _ in self._zombies)]:
            driver.end()


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    fleet = Fleet()
    yield fleet
    fleet.close()


class Chaos:
    """One run under one schedule."""

    def __init__(self, world: World, proxy: Proxy, fleet: Fleet, run: dict[str, Any], schedule: list[Fault]) -> None:
        self._world = world
        self._proxy = proxy
        self._fleet = fleet
        self._run = run
        self._faults = {(fault.step, fault.attempt): fault for fault in schedule}
        self._lake = Path(Storage(run["run_uri"]).parent().parent().path())
        self.story: list[str] = []

    def step(self, step: str) -> Outcome:
        """Try a step as often as Airflow would."""
        for attempt in range(TRIES):
            outcome = self._try(step, self._faults.get((step, attempt)))
            self.story.append(f"{step}, try {attempt}: {outcome.how} {outcome.said[:300]}")
            if outcome.how in ("done", "terminal"):
                return outcome
        return Outcome("transient", "no try left")

    def _try(self, step: str, fault: Fault | None) -> Outcome:
        driver = self._fleet.take()
        driver.begin(step, self._run)
        if fault is not None:
            self.story.append(str(fault))
            if (outcome := self._until_due(driver, fault)) is not None:
                self._fleet.give_back(driver, outcome)
                return outcome
            if fault.kind == "freeze":
                self._fleet.freeze(driver, fault.lasts)
                return Outcome("killed", "taken for dead")
            if fault.kind == "twice":
                other = self._fleet.take()
                other.begin(step, self._run)
                return self._first_of(driver, other)
            self._happen(driver, fault)
        return self._end_of(driver)

    def _until_due(self, driver: Driver, fault: Fault) -> Outcome | None:
        """Wait for the fault's instant; the outcome of the try if that comes before."""
        began = time.monotonic()
        seen, changes = self._names(), 0
        while True:
            self._fleet.wake()
            if (outcome := driver.outcome(0.0 if fault.changes else 0.02)) is not None:
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
        return {os.path.join(folder, name) for folder, _, names in os.walk(self._lake) for name in names}  # noqa: PTH118

    def _happen(self, driver: Driver, fault: Fault) -> None:
        match fault.kind:
            case "cut":
                self._proxy.cut()
            case "outage":
                self._proxy.go_down(fault.lasts)
            case "source_crash":
                self._world.crash()
            case "disk":
                driver.limit_files(64)
                threading.Timer(min(fault.lasts, 3.0), driver.limit_files, [2**40]).start()
            case kind:
                driver.signal(kind.removeprefix("kill_"), signal.SIGKILL)

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
                    self._fleet.give_back(driver, ended)
                    if ended.how == "done":
                        for other in waiting:
                            self._fleet.keep_running(other)
                        return ended
                    self.story.append(f"one of two tries: {ended.how} {ended.said[:300]}")
        assert not waiting, f"a try hangs:\n{waiting[0].log.read_text()[-3000:]}"
        return outcome

    def _end_of(self, driver: Driver) -> Outcome:
        deadline = time.monotonic() + TRY_SECONDS
        while time.monotonic() < deadline:
            self._fleet.wake()
            if (outcome := driver.outcome(0.2)) is not None:
                self._fleet.give_back(driver, outcome)
                return outcome
        log = driver.log.read_text()[-3000:]
        driver.end()
        pytest.fail(f"a try hangs; so far: {self.story}\n{log}")


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_the_copy_is_exact_or_the_run_has_failed(
    seed: int, worlds: dict[str, World], fleet: Fleet, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    world = worlds[("mysql", "postgres")[seed % 2]]
    schedule = faults.draw(chance)
    schema = f"t_{uuid.uuid4().hex[:12]}"
    tables = world.create(schema, seed, chance.choice([50, 300]))
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(world.port))
        settings = world.settings(proxy.port)
        consistency = chance.choice(["auto", "auto", "lock" if world.kind == "mysql" else "exported"])
        run = Pipeline(
            None,  # the steps run in processes of their own
            settings,
            tmp_path.as_uri(),
            tables,
            consistency=consistency,
            chunk_rows=chance.choice([15, 60]),
            chunk_pause=chance.choice([0.0, 0.02]),
        )
        writers = stack.enter_context(world.writing(schema, seed))
        time.sleep(0.2)
        initial = run.record()
        request = {"run_uri": run.run.uri, "settings": asdict(settings)}
        chaos = Chaos(world, proxy, fleet, request, schedule)
        outcome = Outcome("done")
        for step in STEPS:
            outcome = chaos.step(step)
            if outcome.how != "done":
                break
        chaos.story += [f"late: {late.how} {late.said[:200]}" for late in fleet.settle()]
        if outcome.how != "done":
            run.release()
    story = f"seed {seed}, {world.kind}, {consistency}: " + "; ".join(chaos.story)
    assert not writers.failures, story
    if outcome.how == "done":
        latest = {name: Storage(tmp_path.as_uri()).read_json(f"{name}/_latest.json") for name in tables}
        for name, said in latest.items():
            columns, rows = published(said["path"])
            assert len(rows) == said["rows"], f"{story}: {name} has {len(rows)} rows, said to be {said['rows']}"
            difference = world.differences(name, initial, columns, rows)
            assert not difference, f"{story}: {difference}"
    else:
        # Only a server that crashed may make a run fail for good.
        assert any(fault.kind == "source_crash" for fault in schedule), story
        assert outcome.how == "terminal", story
        assert not list(tmp_path.glob("*/_latest.json")), story
    assert not world.left_behind(), f"{story}: {world.left_behind()} are left"
