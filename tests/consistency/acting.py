"""Runs that call a function at a chosen moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from harness.pipeline import Pipeline

PATIENCE = 120
WHEN = ("before the read", "while chunks are read")


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
