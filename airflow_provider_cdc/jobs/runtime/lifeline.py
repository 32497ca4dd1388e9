"""A driver whose parent process is gone ends at once: another driver may already be doing its work."""

from __future__ import annotations

import os
import threading
import time

_LOOK_SECONDS = 0.5
_GATEWAY = "PYSPARK_GATEWAY_PORT"
"""Set by the JVM of ``spark-submit`` for the Python that it starts."""


def end_with_parent() -> None:
    """Have this process end when its parent does, if that is ``spark-submit``.

    Nothing else would end it soon: it notices only when it next talks to the JVM, and until then it writes.
    """
    if _GATEWAY in os.environ:
        threading.Thread(target=_watch, args=(os.getppid(),), name="lifeline", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    # No handler, no clean-up: what this process knows is out of date.
    os._exit(1)
