"""Watches whether a Spark application has executors, because a job without executors waits without end.

A standalone cluster gives an application no new executors after its master was restarted, because the new master does
not know the application. The same applies while the master is down. So the step ends with an error some minutes after
it has lost its last executor. A new application continues the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError

from airflow_provider_cdc.compat import executor_count
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import BUDGET_SECONDS

LOOK_SECONDS = 5.0
LOST_SECONDS = BUDGET_SECONDS
"""The time after which an application that has lost all its executors ends."""
TOLD_SECONDS = 60.0
"""How often the lack of executors is reported."""


class ExecutorWatch:
    """Watches the executors of one application.

    :param count: returns the number of executors.
    :param gives_up: whether an application that has lost all executors ends. Otherwise, the lack is only reported,
        because the cluster may still give executors: a queue may be busy.
    """

    def __init__(
        self, count: Callable[[], int], *, gives_up: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count = count
        self._gives_up = gives_up
        self._clock = clock
        self._looked = float("-inf")
        self._had_some = False
        self._since: float | None = None
        self._told = 0.0

    def look(self, title: str) -> None:
        """Call this often while a job runs.

        :param title: the name of the job.
        :raises TransientError: the application has lost all executors for too long.
        """
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        # Time between two jobs does not count, because an application without work may release its executors.
        jobs_paused = now - self._looked > 4 * LOOK_SECONDS
        self._looked = now
        if self._count():
            self._had_some, self._since = True, None
            return
        if self._since is None or jobs_paused:
            self._since = self._told = now
            return
        missing = now - self._since
        if self._had_some and self._gives_up and missing >= LOST_SECONDS:
            raise TransientError(
                f"Spark lost all executors {duration(missing)} ago, and the cluster gave no other ones",
                where=title,
                hint="check that the cluster's master and workers are up, and retry the task; finished work is kept",
            )
        if now - self._told >= TOLD_SECONDS:
            self._told = now
            how = "has lost all its executors" if self._had_some else "has no executor yet"
            say(f"{title}: the Spark application {how} and waits for the cluster, for {duration(missing)} so far")


_watches: WeakKeyDictionary[Any, ExecutorWatch] = WeakKeyDictionary()


def look_for_executors(context: Any, title: str) -> None:
    """Check that the application of a ``SparkContext`` has executors; see `ExecutorWatch.look`."""
    if context.master.startswith("local"):
        return
    if context not in _watches:
        properties = context.getConf()
        dynamic = properties.get("spark.dynamicAllocation.enabled", "false") == "true"
        gives_up = context.master.startswith("spark://") and not dynamic
        _watches[context] = ExecutorWatch(lambda: executor_count(context), gives_up=gives_up)
    # If Spark itself has ended, the job reports it.
    with suppress(Py4JError, OSError):
        _watches[context].look(title)
