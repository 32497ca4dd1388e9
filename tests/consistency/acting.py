"""Runs that call a function at a chosen moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_provider_cdc.jobs import spool as spooler
from airflow_provider_cdc.jobs.log.log import NAME
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.snapshot import read
from harness.pipeline import Pipeline

PATIENCE = 120
WHEN = ("before the read", "while chunks are read")
DURING = ("the read", "the second read", "the extraction")
"""Moments of a run that reads some tables twice."""


def run_through(run: Pipeline, when: str, act: Callable[[], None]) -> None:
    """Do ``snapshot`` and ``extract_delta``, and ``act`` at one of `WHEN`; raises what a step raises."""
    if when == WHEN[0]:
        act()
        run.snapshot()
    else:
        _snapshot_while(run, act)
    run.extract_delta()


def _snapshot_while(run: Pipeline, act: Callable[[], None]) -> None:
    acted = threading.Event()
    kind = type(run.source)
    bound_reads = kind.bound_reads

    def later(source: Any) -> Any:
        # However slow `act` is: what is done belongs to the time of the reads, and so to the window.
        acted.wait(PATIENCE)
        return bound_reads(source)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(kind, "bound_reads", later)
        step = pool.submit(run.snapshot)
        try:
            # The chunks are cut, and the first ones are read.
            while not step.done() and not run.run.folders("chunks"):
                time.sleep(0.01)
            act()
        finally:
            acted.set()
        step.result()


def act_during(run: Pipeline, during: str, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Call ``act`` once, at the last moment of the first or the second read. If ``during`` is the extraction, the
    caller calls it."""
    kind, calls = type(run.source), {"bound": 0}
    bound_reads = kind.bound_reads

    def bound(source: Any) -> Any:
        if threading.current_thread().name == NAME:
            return bound_reads(source)
        calls["bound"] += 1
        if (during, calls["bound"]) in ((DURING[0], 1), (DURING[1], 2)):
            act()
        return bound_reads(source)

    patch.setattr(kind, "bound_reads", bound)


def spool_at_once(patch: pytest.MonkeyPatch) -> None:
    """Let runs record pieces of their log all the time, and two pieces at least before each read ends. A run that finds
    DDL in its log records no more pieces."""
    patch.setattr(spooler, "POLL_SECONDS", 0.02)
    patch.setattr(spooler, "PIECE_BYTES", 1)
    pause = spooler.pause_spool

    def later(step: Step) -> None:
        spooling = spooler._running.get(step.token)
        until = time.monotonic() + PATIENCE
        while spooling is not None and spooling._thread.is_alive() and time.monotonic() < until:
            if len(step.run.pieces()) > 1:
                break
            time.sleep(0.02)
        pause(step)

    patch.setattr(read, "pause_spool", later)
