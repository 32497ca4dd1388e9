"""Checks, while a step reads for hours, that the source still has the log and the tables that the run needs."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from airflow_provider_cdc.core.options.run import STOP
from airflow_provider_cdc.core.run.results import SNAPSHOT
from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import LoginRefused, RunwayTooShort, TransientError
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.sources.api.source import NeededLog

# Predicts whether the source removes the log that a run needs before the run has read it.
#
# The prediction compares two times: the time until the source removes the log, and the time until the end of the step.
# The first time comes from the source's settings and from the measured growth of the log, the second time from the
# progress of the step. Both are estimates. So the guard warns early. It stops the step only if the log would be gone
# long before the end of the step, and if this has not changed for some time after the first warning. If the log is
# already gone, the checks of `source_watch` stop the step.


MARGIN = 1.5
"""The guard warns if the log is kept for less than this multiple of the time that is left."""
CERTAIN = 3.0
"""The guard stops the step only if the time that is left is more than this multiple of the time for which the log is
kept. Estimates of the time that is left can be wrong by a factor of two, if tables differ much."""
SHORT_SECONDS = 600.0
"""If the log is kept for less than this, the guard warns whatever time is left."""
GRACE_SECONDS = 1800.0
"""The time from the first of several successive warnings until the step is stopped. In this time, an operator can make
the source keep its log for longer."""
FOLLOWED_SECONDS = 900.0
"""If the beginning of the needed log moved in this time, the spool follows the log (`jobs.spool`). The spool records a
piece at least every ten minutes, if any log was written."""
REPEATED_SECONDS = 600.0
"""The period in which a warning is repeated."""
GROWTH_SECONDS = 600.0
"""The period over which the growth of the log is measured."""


class RunwayGuard:
    """Predicts the loss of the log for one step.

    :param title: the name of the step.
    :param stops: whether the step may be stopped before the log is gone (the option ``on_short_log``).
    """

    def __init__(
        self,
        title: str,
        stops: bool,
        clock: Callable[[], float] = time.monotonic,
        out: Callable[[str], None] = log,
    ) -> None:
        self._title = title
        self._stops = stops
        self._clock = clock
        self._out = out
        self._seen: deque[tuple[float, NeededLog]] = deque()
        self._warned_since: float | None = None
        self._warned_at = 0.0
        self._moved_at = float("-inf")

    def note(self, needed: NeededLog) -> None:
        """Record the state of the needed log, as the source has just reported it."""
        now = self._clock()
        if self._seen and self._seen[-1][1].begins != needed.begins:
            self._moved_at = now
        self._seen.append((now, needed))
        while len(self._seen) > 2 and self._seen[1][0] <= now - GROWTH_SECONDS:
            self._seen.popleft()

    @property
    def growth(self) -> float | None:
        """The growth of the log in bytes per second. None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return max(0, last.written - first.written) / (ended - began) if ended > began else None

    def kept_for(self) -> float | None:
        """Return for how many seconds the source will keep the needed log. None: without a limit, or unknown."""
        if not self._seen:
            return None
        noted, needed = self._seen[-1]
        limits = [] if needed.seconds is None else [needed.seconds]
        if needed.room is not None and (growth := self.growth):
            limits.append(needed.room / growth)
        return max(0.0, min(limits) - (self._clock() - noted)) if limits else None

    def judge(self, seconds_left: float | None) -> None:
        """Warn if the source will remove the log too early, and stop the step if that is certain.

        :param seconds_left: the time until the end of the step, according to its progress. None: unknown.
        :raises RunwayTooShort: the source will remove the log long before the end of the step.
        """
        kept, now = self.kept_for(), self._clock()
        if now - self._moved_at < FOLLOWED_SECONDS:
            # The run lets the beginning of the log go while it reads, so the log need not outlive the step.
            seconds_left = None
        if kept is None or not (kept < SHORT_SECONDS or (seconds_left is not None and kept < MARGIN * seconds_left)):
            self._warned_since = None
            return
        if self._warned_since is None:
            self._warned_since, self._warned_at = now, now - REPEATED_SECONDS
        needed = self._seen[-1][1]
        certain = needed.certain and seconds_left is not None and seconds_left > CERTAIN * kept
        if self._stops and certain and now - max(self._warned_since, self._moved_at) >= GRACE_SECONDS:
            raise RunwayTooShort(
                f"the source will remove the log that the run needs in about {duration(kept)}, but the step "
                f"{self._title} needs about {duration(seconds_left or 0)} more ({self._numbers(needed)})",
                where=needed.limit,
                hint=f"{needed.hint}, then clear the task: finished work is kept as long as the log exists. "
                "`On.short_log` = `warn` lets the run go on until the log is gone",
            )
        if now - self._warned_at >= REPEATED_SECONDS:
            self._warned_at = now
            ends = "unknown" if seconds_left is None else f"about {duration(seconds_left)}"
            self._out(
                f"{self._title}: WARNING: the source may remove the log that the run needs in about {duration(kept)}. "
                f"Time left for this step: {ends} ({needed.limit}; {self._numbers(needed)}). To keep the log: "
                f"{needed.hint}"
            )

    def _numbers(self, needed: NeededLog) -> str:
        parts = [f"{needed.kept / 2**20:,.1f} MiB of log since the run began"]
        if (growth := self.growth) is not None:
            parts.append(f"growing by {growth * 3600 / 2**20:,.1f} MiB per hour")
        if needed.room is not None:
            parts.append(f"room for {needed.room / 2**20:,.1f} MiB more")
        return ", ".join(parts)


WATCH_SECONDS = 60.0


class SourceWatch:
    """Checks the source periodically in its own thread. So a step that reads for hours stops soon after the log was
    removed or a table was altered, and not only at its end. The thread also asks when the source will remove the log
    (`RunwayGuard`).

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

    def poll(self, seconds_left: float | None = None) -> None:
        """Start a check if a check is due, and report the result of the last check. Call this often. It never waits.

        :param seconds_left: the time until the end of the step, according to its progress. None: unknown.
        :raises ExactnessError: the source no longer has the log or the tables that the run needs.
        :raises RunwayTooShort: the source will remove the log long before the end of the step.
        """
        if self._asking is not None and self._asking.is_alive():
            return
        self._asking, error, self._error = None, self._error, None
        if isinstance(error, TransientError | LoginRefused):
            # A failed check does not stop the step. If the source is down, or the password was changed, the reads fail.
            log(f"{self._title}: could not check the source: {error.message}")
            if isinstance(error, LoginRefused):
                # More wrong logins could lock the account.
                self._last = math.inf
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
                [entry.table for entry in step.tables if entry.is_read and str(entry.table.name) not in step.altered]
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
