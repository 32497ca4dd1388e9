"""Waits until a server's clock reaches the time that a run requests.

Airflow starts a run at the end of its interval, according to Airflow's own clock. If the server's clock is behind, the
time in ``as_of`` is in the future for the server for a few seconds. Without the wait, the run would fail for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from airflow_provider_cdc.errors import PreflightError, Problem

SKEW = timedelta(seconds=60)
"""The maximum accepted difference between the clocks of Airflow and the server."""
FINAL_SECONDS = 600.0
"""Seconds to wait until a position in the past is final and visible. A run waits for longer than a moment only if
something is wrong: no replica acknowledges a commit, or the server's clock was set back."""
_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def wait_for_clock(as_of: datetime, server_time: Callable[[], datetime]) -> None:
    """Wait until ``server_time`` has reached ``as_of``. The function waits only if the difference is at most `SKEW`.

    :raises PreflightError: the difference is greater than `SKEW`.
    """
    logged = False
    while as_of > (now := server_time()):
        if as_of - now > SKEW:
            raise PreflightError(
                [
                    Problem(
                        "parameter as_of",
                        f"{as_of:%Y-%m-%d %H:%M:%S} UTC is in the future: by the server's clock it is "
                        f"{now:%Y-%m-%d %H:%M:%S} UTC",
                        "start the run after that time",
                    )
                ]
            )
        if not logged:
            _log.info(
                "The server's clock is %.1f s behind the time in `as_of` (%s): waiting until the clock reaches this "
                "time",
                (as_of - now).total_seconds(),
                as_of,
            )
            logged = True
        time.sleep(min(_POLL_SECONDS, (as_of - now).total_seconds() + 0.01))
