"""Checks, while a step reads for hours, that the source still has the log and the tables that the run needs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from airflow_provider_cdc.core.options.log import STOP
from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.runway_guard import RunwayGuard
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.log import NeededLog

WATCH_SECONDS = 60.0


class Watch:
    """Checks the source periodically in its own thread. So a step that reads for hours stops soon after the log was
    removed or a table was altered, and not only at its end. The thread also asks when the source will remove the log
    (`runway_guard`).

    :param title: the name of the step.

    ``backlog`` is the number of bytes of log that were still to be read at the last check; None: unknown, or there was
    no check.
    """

    def __init__(self, step: Step, title: str = SNAPSHOT) -> None:
        self.backlog: int | None = None
        self.guard = RunwayGuard(title, step.manifest.options.log.on_short_log == STOP)
        self._title = title
        self._step = step
        self._last = time.monotonic()
        self._asking: threading.Thread | None = None
        self._error: Exception | None = None
        self._needed: NeededLog | None = None

    def look(self, seconds_left: float | None = None) -> None:
        """Start a check if a check is due, and report the result of the last check. Call this often. It never waits.

        :param seconds_left: the time until the end of the step, according to its progress. None: unknown.
        :raises ExactnessError: the source no longer has the log or the tables that the run needs.
        :raises RunwayTooShort: the source will remove the log long before the end of the step.
        """
        if self._asking is not None and self._asking.is_alive():
            return
        self._asking, error, self._error = None, self._error, None
        if isinstance(error, TransientError):
            # A failed check does not stop the step. If the source is down, the reads fail.
            say(f"{self._title}: could not check the source: {error.message}")
        elif error is not None:
            raise error
        needed, self._needed = self._needed, None
        if needed is not None:
            self.guard.note(needed)
            self.guard.judge(seconds_left)
        if time.monotonic() - self._last >= WATCH_SECONDS:
            self._last = time.monotonic()
            # Use a daemon thread, so that the step can end while a check still waits for the server.
            self._asking = threading.Thread(target=self._ask, name="watch", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        step = self._step
        try:
            step.source.check_identity(step.run.expected_identity(), step.manifest.initial)
            step.source.check_tables(
                [entry.table for entry in step.tables if entry.live and str(entry.table.name) not in step.altered]
            )
        except Exception as error:
            self._error = error
            return
        # The backlog is only for display, so errors are ignored.
        with suppress(Exception):
            self.backlog = step.source.backlog(step.manifest.initial, step.manifest.identity)
        # The prediction is an additional service. The checks above find the loss itself.
        with suppress(Exception):
            bases = [base.identity for base in step.manifest.bases.values()]
            self._needed = step.source.needed_log(step.run.expected_identity(), bases)
