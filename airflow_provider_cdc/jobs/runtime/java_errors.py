"""Explains failures of Spark: finds the last cause in the text of a Java exception, and says what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CLASS = r"(?:[a-z_$][\w$]*\.)+[A-Z][\w$.]*"
_EXCEPTION = re.compile(
    # A message that repeats the name of an exception is shown without this name. Py4J's own exception and the traceback
    # of a Python worker explain nothing in their first line.
    rf"(?:Caused by: |: |Exception in thread \"[^\"]*\" )?(?!py4j\.)({_CLASS})"
    rf"(?:: (?:{_CLASS}: )*(?:Traceback \(most recent call last\):|(\S.*))?)?"
)
_JAVA = "install Java 17 or later where Airflow's tasks run, and let JAVA_HOME name its folder"

HINTS = (
    (
        r"INVALID_DRIVER_MEMORY|Too small maximum heap|Invalid maximum heap size",
        "set spark.driver.memory to 1g or more, in `Spark.conf` or in Spark's own configuration",
    ),
    (
        r"OutOfMemoryError|insufficient memory|Cannot allocate memory|unable to create native|reserve enough space",
        "give Spark's driver more memory (spark.driver.memory in `Spark.conf`), or run fewer tasks at once here",
    ),
    (r"No space left on device", "free disk space in Spark's work folder: the temporary folder, or spark.local.dir"),
    (
        r"JAVA_HOME is not set|java: (?:command )?not found|bin/java: No such file|UnsupportedClassVersionError",
        _JAVA,
    ),
    (
        r"getSubject is (?:not supported|supported only if)",
        "use a Java version that this version of Spark supports: 17 or 21",
    ),
    (r"HADOOP_CONF_DIR", "set HADOOP_CONF_DIR where Airflow's tasks run"),
    (
        r"Invalid UID, could not determine effective user|invalid null input: name|basedir must be absolute: \?",
        "add an entry for the user id of Airflow's tasks to /etc/passwd, as the entry point of Airflow's image does",
    ),
    (
        r"has to be >= the number of cpus per task",
        "lower spark.task.cpus, or give each executor more cores",
    ),
    (
        r"Could not parse Master URL|Invalid master URL|Master must either be yarn",
        "correct the host and the port of the connection in `spark_conn_id`",
    ),
    (
        r"Remote cannot be specified with master",
        "remove spark.remote and SPARK_REMOTE: Spark Connect cannot run these steps",
    ),
    (
        r"Cannot assign requested address|Can't assign requested address|BindException",
        "correct spark.driver.bindAddress and SPARK_LOCAL_IP: both must name an address of the machine of the driver",
    ),
    (
        r"All masters are unresponsive|Failed to connect to master|Connection refused",
        "check that the cluster is up, and that the connection in `spark_conn_id` has the cluster's host and port",
    ),
    (
        r"UnknownHostException",
        "check that this name resolves on Airflow's workers: of the worker itself, of the master, or spark.driver.host",
    ),
    (
        r"EventLog|spark\.eventLog\.dir|spark-events",
        "create the folder of spark.eventLog.dir, or set spark.eventLog.enabled to false",
    ),
)
"""Pairs of a pattern of Spark's or Java's text, and what to do. The first pattern that matches applies."""


def last_cause(text: str) -> str:
    """Return the last Java exception with a message in a text: its class without the package, and its message. Empty if
    the text has no Java exception.

    Java prints an exception first, and then its causes, so the last one is usually the reason.
    """
    found = [match for line in text.splitlines() if (match := _EXCEPTION.fullmatch(line.strip()))]
    with_message = [match for match in found if match[2]]
    if not found:
        return ""
    name, message = (with_message or found)[-1].groups("")
    return ": ".join(filter(None, (name.rpartition(".")[2], message)))


def hint_for(lines: Iterable[str], otherwise: str = "") -> str:
    """Return what to do about a failure whose text has these lines; ``otherwise`` if no known cause occurs in them."""
    kept = list(lines)
    return next((hint for pattern, hint in HINTS if any(re.search(pattern, line) for line in kept)), otherwise)
