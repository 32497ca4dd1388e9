"""Retries after transient errors: a server that restarts, a lost worker, a network that is down.

The limit is a time and not a number of tries, because a server that is down for seven seconds can reject any number of
tries in these seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime.progress import log

Result = TypeVar("Result")

BUDGET_SECONDS = 300.0
"""The number of seconds without a success after which the error is raised."""
FEWEST_TRIES = 3
"""The least number of tries, because a single try may take longer than the budget."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0


class RetryBudget:
    """Waits between tries, with increasing pauses, until the budget is spent.

    :param what: a description of the tries, for the log.
    :param budget: the maximum number of seconds since the last success; None: the default.
    """

    def __init__(self, what: str, budget: float | None = None) -> None:
        self._what = what
        self._budget = BUDGET_SECONDS if budget is None else budget
        self._since = time.monotonic()
        self._tries = 0

    def succeeded(self) -> None:
        """Reset the budget after a success."""
        self._since = time.monotonic()
        self._tries = 0

    def wait(self, error: TransientError) -> None:
        """Wait after a failed try.

        :raises TransientError: ``error``, if the budget is spent.
        """
        self._tries += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (self._tries - 1), LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        elapsed = time.monotonic() - self._since
        if self._tries >= FEWEST_TRIES and elapsed + pause > self._budget:
            raise error
        seconds_left = max(0.0, self._budget - elapsed)
        log(
            f"{self._what}: {error.where + ': ' if error.where else ''}{error.message}; "
            f"retrying for up to {seconds_left:.0f} s"
        )
        time.sleep(pause)


def retry(what: str, call: Callable[[], Result]) -> Result:
    """Return the result of ``call``. If it raises transient errors, call it again until the budget is spent.

    :raises TransientError: the last error, when the budget is spent. Any other error is raised at once.
    """
    patience = RetryBudget(what)
    while True:
        try:
            return call()
        except TransientError as error:
            patience.wait(error)


def is_transient(error: BaseException) -> bool:
    """Return whether an error that is not a `CdcError` is an error of storage, network or memory, or was raised while
    such an error was handled.

    For example, if no more files can be opened, a late import raises ImportError, and PySpark raises UnboundLocalError.
    """
    transient = isinstance(error, OSError | MemoryError)
    earlier = error.__cause__ or error.__context__
    while earlier is not None and not transient:
        # These two exceptions also occur in normal operation, so they do not explain the error that followed.
        answer = isinstance(earlier, FileNotFoundError | FileExistsError)
        transient = isinstance(earlier, OSError | MemoryError) and not answer
        earlier = earlier.__cause__ or earlier.__context__
    return transient
