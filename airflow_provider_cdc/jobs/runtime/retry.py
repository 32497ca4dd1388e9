"""How long a step puts up with errors that may pass: a server that restarts, a lost worker, a network that is down.

What counts is time and not tries: a server that is down for seven seconds refuses any number of them in that time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime.progress import say

Result = TypeVar("Result")

BUDGET_SECONDS = 300.0
"""So long nothing may succeed."""
FEWEST_TRIES = 3
"""So many tries there are in any case: one alone may take longer than the budget."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class Patience:
    """Waits between the tries of something, ever longer, until the budget is spent.

    :param what: what is tried, for the log.
    :param budget: seconds since the last success; None: the default.
    """

    def __init__(self, what: str, budget: float | None = None) -> None:
        self._what = what
        self._budget = BUDGET_SECONDS if budget is None else budget
        self._since = time.monotonic()
        self._tries = 0

    def succeeded(self) -> None:
        """Some of it succeeded: the budget is whole again."""
        self._since = time.monotonic()
        self._tries = 0

    def wait(self, error: TransientError) -> None:
        """After a try has failed: wait for the next one.

        :raises TransientError: ``error``; the budget is spent.
        """
        self._tries += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (self._tries - 1), LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        elapsed = time.monotonic() - self._since
        if self._tries >= FEWEST_TRIES and elapsed + pause > self._budget:
            raise error
        seconds_left = max(0.0, self._budget - elapsed)
        say(
            f"{self._what}: {error.where + ': ' if error.where else ''}{error.message}; "
            f"tried again for {seconds_left:.0f} s"
        )
        time.sleep(pause)


def persist(what: str, call: Callable[[], Result]) -> Result:
    """The result of ``call``, which is called again while it raises transient errors and the budget lasts.

    :raises TransientError: the last one, when the budget is spent. Any other error is raised at once.
    """
    patience = Patience(what)
    while True:
        try:
            return call()
        except TransientError as error:
            patience.wait(error)


def may_pass(error: BaseException) -> bool:
    """Whether an error that is not ours is one of storage, network or memory, or came up while one was handled.

    Where no file can be opened any more, a late import raises ImportError, and PySpark UnboundLocalError.
    """
    transient = isinstance(error, OSError | MemoryError)
    earlier = error.__cause__ or error.__context__
    while earlier is not None and not transient:
        # These two are also answers, which say nothing about what went wrong after them.
        answer = isinstance(earlier, FileNotFoundError | FileExistsError)
        transient = isinstance(earlier, OSError | MemoryError) and not answer
        earlier = earlier.__cause__ or earlier.__context__
    return transient
