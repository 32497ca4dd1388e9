"""Runs during which something happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from harness.pipeline import Pipeline

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
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(run.snapshot)
        while not run.run.exists("chunks/plan.json") and not step.done():
            time.sleep(0.01)
        # Now the chunks are cut, and the first ones are read.
        time.sleep(0.3)
        act()
        step.result()
