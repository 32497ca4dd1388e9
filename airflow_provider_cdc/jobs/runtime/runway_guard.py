"""Predicts whether the source removes the log that a run needs before the run has read it.

The prediction compares two times: the time until the source removes the log, and the time until the end of the step.
The first time comes from the source's settings and from the measured growth of the log, the second time from the
progress of the step. Both are estimates. So the guard warns early. It stops the step only if the log would be gone long
before the end of the step, and if this has not changed for some time after the first warning. If the log is already
gone, the checks of `source_watch` stop the step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from airflow_provider_cdc.counted import duration
from airflow_provider_cdc.errors import RunwayTooShort
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.sources.api.log import NeededLog

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
        out: Callable[[str], None] = say,
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
                "`on_short_log` = `warn` lets the run go on until the log is gone",
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
