"""Runs whose records are on S3 are controlled: by conditional writes, by many workers, and with few requests."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_cdc.core.control import acts as events
from airflow_provider_cdc.core.control import effective
from airflow_provider_cdc.core.control.acts import Acts, act_on
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings, using
from airflow_provider_cdc.errors import RunStopped
from airflow_provider_cdc.jobs.runtime import controller, turn
from airflow_provider_cdc.jobs.runtime.controller import check_interrupts, controlled
from harness.http_faults import REFUSED, Faults, http_faults
from harness.s3_server import ADMIN
from tests.jobs.history_run import begin_run
from tests.jobs.history_source import HistorySource, random_history
from tests.soon import soon

WORKERS = 6
EVERY_SECONDS = 0.3


class Separate(dict[str, Any]):
    """Gives each `Turn` what a process of its own would have."""

    def setdefault(self, uri: str, default: Any = None) -> Any:
        return default


@dataclass
class Workers:
    """Threads that read chunks of ten rows, as Spark's workers do."""

    folder: Storage
    chunks: list[int] = field(default_factory=lambda: [0] * WORKERS)
    ending: threading.Event = field(default_factory=threading.Event)

    def _work(self, number: int) -> None:
        task = turn.ReadTurn(self.folder)
        while not self.ending.is_set():
            if not self._may(task):
                return
            task.began()
            time.sleep(0.01)
            self.chunks[number] += 1
            task.ended(10)
        task.leave()

    def _may(self, task: turn.ReadTurn) -> bool:
        while task._must_wait():
            if self.ending.wait(0.02):
                return False
        return True

    @contextmanager
    def working(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._work, args=(number,)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.ending.set()
            for thread in threads:
                thread.join()

    def at_work(self, seconds: float = 5.0) -> int:
        """The number of workers that read something until all of them together have read some more chunks, or until the
        time is over."""
        before, deadline = [*self.chunks], time.monotonic() + seconds
        while sum(self.chunks) < sum(before) + 10 * WORKERS and time.monotonic() < deadline:
            time.sleep(0.01)
        return sum(then != now for then, now in zip(before, self.chunks, strict=True))


@pytest.fixture
def store(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    monkeypatch.setattr(controller, "POLL_SECONDS", EVERY_SECONDS)
    monkeypatch.setattr(turn, "READ_SECONDS", EVERY_SECONDS)
    monkeypatch.setattr(turn, "NOTE_SECONDS", EVERY_SECONDS)
    monkeypatch.setattr(turn, "_workers", Separate())
    with http_faults(s3) as proxy:
        options = {"access_key": ADMIN[0], "secret_key": ADMIN[1], "region": "us-east-1", "endpoint": proxy.endpoint}
        with using(StorageSettings("s3", options)):
            yield proxy


def requests(store: Faults, part: str) -> int:
    return sum(part in request.path for request in store.requests)


@pytest.mark.slow
def test_a_run_on_s3_is_controlled_by_few_requests(store: Faults, request: pytest.FixtureRequest) -> None:
    source: Any = HistorySource(random_history(random.Random(1), 10), 1)
    folder = begin_run(Storage(f"s3://lake/{request.node.name[:20]}-{random.randrange(10**9)}"), source, 5)
    run, workers = Run.load(folder), Workers(folder)
    assert folder.has_conditional_writes

    def said() -> list[str]:
        return [event.what for event in events.read(folder).events]

    def holds(condition: Callable[[], Any]) -> None:
        def now() -> bool:
            check_interrupts()
            return bool(condition())

        soon(now, True)

    def controlled_run() -> None:
        with workers.working(), controlled("snapshot", run, source, "token"):
            holds(lambda: workers.at_work() == WORKERS)
            # Operators act at the same moment: all acts are kept.
            with ThreadPoolExecutor(4) as operators:
                acts = [operators.submit(act_on, folder, "limit", f"ann{n}", max_reads=2) for n in range(4)]
                assert sorted(act.result().by for act in acts) == sorted(act.by for act in Acts(folder).read())
            holds(lambda: len(effective.read(folder).readers) == 2 and workers.at_work() == 2)
            act_on(folder, "pause", "ann")
            holds(lambda: said()[-1:] == ["paused"] and workers.at_work(EVERY_SECONDS) == 0)
            # The store is busy: the run stays paused.
            store.fault = lambda one: REFUSED if "control" in one.path else ""
            assert workers.at_work(2 * EVERY_SECONDS) == 0
            store.fault = lambda one: ""
            # A quiet time, in which requests are counted.
            began, store.requests[:] = time.monotonic(), []
            time.sleep(4 * EVERY_SECONDS)
            rounds = (time.monotonic() - began) / EVERY_SECONDS + 1
            assert requests(store, "effective.json") <= 2 * WORKERS * rounds
            assert len(store.requests) - requests(store, "effective.json") <= 2 * rounds
            act_on(folder, "limit", "ann", max_reads=0)
            act_on(folder, "resume", "ann")
            holds(lambda: workers.at_work() == WORKERS)
            act_on(folder, "stop", "ann", "the wrong tables")
            holds(lambda: False)

    with pytest.raises(RunStopped, match="the wrong tables"):
        controlled_run()
    assert Run.load(folder).ended
