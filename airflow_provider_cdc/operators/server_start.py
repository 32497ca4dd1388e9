"""Waits for a server that is starting up, shutting down to restart, or recovering from a crash.

Such a server rejects a session at once. Without the wait, a task would use up its retries within seconds, although the
server is available again after some minutes. If the server does not answer at all, this module does not wait, because
the address may be wrong.
"""

from __future__ import annotations

import logging
import time

from airflow_provider_cdc.errors import CdcError, SourceUnavailable
from airflow_provider_cdc.sources.api.source import Source

WAIT_SECONDS = 600.0
_POLL_SECONDS = 5.0

_log = logging.getLogger(__name__)


def wait_until_started(source: Source, wait_seconds: float = WAIT_SECONDS) -> None:
    """Wait until the server accepts a session, or until a session fails for a reason other than a restart.

    In the second case, the caller's next session raises the error.

    :raises SourceUnavailable: the server was still restarting after ``wait_seconds``.
    """
    deadline = time.monotonic() + wait_seconds
    is_restarting = False
    while True:
        try:
            source.here()
        except SourceUnavailable as error:
            # For a moment during a restart, no process listens on the port.
            is_restarting = is_restarting or error.is_starting
            if not is_restarting:
                return
            if time.monotonic() > deadline:
                raise
            _log.info("%s: %s; waiting for up to %.0f s", error.where, error.message, deadline - time.monotonic())
            time.sleep(_POLL_SECONDS)
        except CdcError:
            return
        else:
            return
