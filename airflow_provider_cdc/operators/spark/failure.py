"""The error for a ``spark-submit`` that failed without writing an error record. The error has the exit status, the last
lines of the output, and a hint."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator

from airflow_provider_cdc.errors import SparkFailed
from airflow_provider_cdc.jobs.runtime.java_errors import hint_for, last_cause

_KEPT = 200
_SHOWN = 12
_FRAME = re.compile(r"\s+at \S+\(|\s+\.\.\. \d+ more")
_KILLED = "the machine may have run out of memory: check its kernel log, and run fewer tasks at once on it"
_TERMINATED = (
    "its processes got SIGTERM, and not from Airflow: the machine, its container or its service was stopped. Finished "
    "work is kept; retry the task when the machine is up"
)
_ENDED = (
    "the task or its DAG run was marked or cleared, a timeout passed, or the worker was stopped: Airflow's audit log "
    "says which. Clear the task to run it again"
)
_ABOVE = "see the whole output above, in the log of this task; fix the cause, then clear the task"

_BY_SIGNAL = {-signal.SIGKILL: _KILLED, -signal.SIGTERM: _TERMINATED}
"""The hints for signals, as negative numbers. A shell adds 128 to the number of a signal."""


class LastLines:
    """Keeps the last lines of an output."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT)

    def passing(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines unchanged, and keep the last lines."""
        for line in lines:
            self._kept.append(line.rstrip())
            yield line

    def told(self) -> list[str]:
        """Return the kept lines that may explain the failure, without the frames of Java's stack traces."""
        return [line for line in self._kept if line.strip() and not _FRAME.match(line)]


def spark_failed(step: str, status: int, lines: LastLines, *, ended_by_airflow: bool = False) -> SparkFailed:
    """Return the error of a step whose ``spark-submit`` failed.

    :param status: the exit status of ``spark-submit``. A negative number means that this signal killed
        ``spark-submit``.
    :param ended_by_airflow: whether Airflow ended the task, which also ends the application.
    """
    if ended_by_airflow:
        return SparkFailed("Airflow ended this task while its Spark application was running", where=step, hint=_ENDED)
    output = lines.told()
    hint = hint_for(output, _BY_SIGNAL.get(status if status < 0 else 128 - status, _ABOVE))
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    if cause := last_cause("\n".join(output)):
        how = f"{how}: {cause}"
    shown = "".join(f"\n    {line}" for line in output[-_SHOWN:])
    ending = f". Its last lines:{shown}" if shown else " without any output"
    return SparkFailed(f"spark-submit {how}{ending}", where=step, hint=hint)
