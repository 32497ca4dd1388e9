"""Looks, while a step reads for hours, whether the source still has what the run needs."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.optional_capabilities import TellsBacklog

WATCH_SECONDS = 60.0


class Watch:
    """Asks the source by the clock, in a thread of its own: who reads for hours should not learn only at the end that
    the log was thrown away, or a table altered, in the first one.

    ``backlog``: the bytes of log that were there to be read when it last asked; None: it has not, or nobody knows.
    """

    def __init__(self, step: Step) -> None:
        self.backlog: int | None = None
        self._step = step
        self._last = time.monotonic()
        self._asking: threading.Thread | None = None
        self._error: Exception | None = None

    def look(self) -> None:
        """Begin to ask, if that is due, and tell what was answered meanwhile. To be called often: it never waits.

        :raises ExactnessError: the source no longer has what the run needs.
        """
        if self._asking is not None and self._asking.is_alive():
            return
        self._asking, error, self._error = None, self._error, None
        if isinstance(error, TransientError):
            # Whether the step can go on is for those to say who read.
            say(f"snapshot: the source could not be asked whether all is well: {error.message}")
        elif error is not None:
            raise error
        if time.monotonic() - self._last >= WATCH_SECONDS:
            self._last = time.monotonic()
            # A server that does not answer may keep it for a while; nobody waits for it at the end.
            self._asking = threading.Thread(target=self._ask, name="watch", daemon=True)
            self._asking.start()

    def _ask(self) -> None:
        step = self._step
        try:
            step.source.check_identity(step.manifest.identity, step.manifest.initial)
            step.source.check_tables([entry.table for entry in step.tables if not entry.base])
        except Exception as error:
            self._error = error
            return
        # It is for people, and no reason to stop.
        with suppress(Exception):
            if isinstance(step.source, TellsBacklog):
                self.backlog = step.source.backlog(step.manifest.initial, step.manifest.identity)
