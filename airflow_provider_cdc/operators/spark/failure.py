"""What became of a ``spark-submit`` that ended without a word of ours: how it ended, its last lines, what may help."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Iterator

from airflow_provider_cdc.errors import SparkFailed

_KEPT = 200
_SHOWN = 12
_FRAME = re.compile(r"\s+at \S+\(|\s+\.\.\. \d+ more")
_SERVER = r"All masters are unresponsive|Failed to connect to master|UnknownHostException|Connection refused"
_CAUSES = (
    (
        r"OutOfMemoryError|insufficient memory|Cannot allocate memory|unable to create native thread",
        "give Spark's driver more memory (spark.driver.memory in spark_conf), or the machine fewer tasks at once",
    ),
    (r"No space left on device", "make room where Spark works: the folder for temporary files, or spark.local.dir"),
    (
        r"JAVA_HOME is not set|java: (?:command )?not found|UnsupportedClassVersionError",
        "install Java 17 or later where Airflow's tasks run, and set JAVA_HOME",
    ),
    (r"HADOOP_CONF_DIR", "set HADOOP_CONF_DIR where Airflow's tasks run"),
    (_SERVER, "is the cluster up, and does the connection spark_conn_id name its host and port?"),
)
_KILLED = "the machine may have run out of memory: look into its kernel's log, and give it fewer tasks at once"
_ENDED = (
    "somebody marked or cleared the task or its DAG run, a timeout passed, or the worker was stopped: Airflow's audit "
    "log says which. Clear the task to run it again"
)
_ABOVE = "all that it said is above, in the log of this task; clear the task once that is put right"


class LastLines:
    """The last lines that went by."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT)

    def passing(self, lines: Iterable[str]) -> Iterator[str]:
        """The lines, unchanged."""
        for line in lines:
            self._kept.append(line.rstrip())
            yield line

    def told(self) -> list[str]:
        """Those that may say what went wrong: not the frames of Java's traces."""
        return [line for line in self._kept if line.strip() and not _FRAME.match(line)]


def spark_failed(step: str, status: int, lines: LastLines, *, ended_by_airflow: bool = False) -> SparkFailed:
    """The error of a step whose ``spark-submit`` failed.

    :param status: its exit status; negative: the signal that killed it.
    :param ended_by_airflow: Airflow had the task end, and so its application.
    """
    if ended_by_airflow:
        return SparkFailed("Airflow ended this task while its Spark application was at work", where=step, hint=_ENDED)
    output = lines.told()
    hint = next((hint for pattern, hint in _CAUSES if any(re.search(pattern, line) for line in output)), "")
    if not hint:
        hint = _KILLED if status in (-signal.SIGKILL, 128 + signal.SIGKILL) else _ABOVE
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    shown = "".join(f"\n    {line}" for line in output[-_SHOWN:])
    ending = f". Its last lines:{shown}" if shown else " and said nothing"
    return SparkFailed(f"spark-submit {how}{ending}", where=step, hint=hint)
