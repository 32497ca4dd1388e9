"""Waits for a server's clock to reach a time that a run asked for.

Airflow schedules a run at the end of its interval by a clock of its own. The server's clock may be behind: the time in
``as_of`` then lies in the future for a few seconds, and the run would be refused for good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from airflow_provider_cdc.errors import PreflightError, Problem

SKEW = timedelta(seconds=60)
"""How far the clocks of Airflow and of the server may be apart."""
_POLL_SECONDS = 1.0

_log = logging.getLogger(__name__)


def wait_for_clock(as_of: datetime, server_time: Callable[[], datetime]) -> None:
    """Wait until ``server_time`` has reached ``as_of``, if it is at most `SKEW` away.

    :raises PreflightError: it is further away.
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
                        "let the run begin after that time",
                    )
                ]
            )
        if not logged:
            _log.info(
                "The server's clock is %.1f s behind as_of (%s): waiting for it", (as_of - now).total_seconds(), as_of
            )
            logged = True
        time.sleep(min(_POLL_SECONDS, (as_of - now).total_seconds() + 0.01))
