"""What a Spark driver prints, as a task's log: Spark's own noise left out, and the rest with the level that it has.

Airflow's Spark hook logs every line alike, so a warning would look like everything else.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

LOG4J = Path(__file__).with_name("log4j2.properties")

_NOISE = re.compile(
    # Printed by the JVM and by Spark's launcher, before and beside all settings.
    r"WARNING: Using incubator modules: |"
    r"Using Spark's default log4j profile: |"
    r'Setting default log level to "|'
    r"To adjust logging level use sc\.setLogLevel"
)
_LEVELS = (
    (logging.ERROR, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d (?:ERROR|FATAL) |\w+ failed: ")),
    (logging.WARNING, re.compile(r"(?:\d\S* )?\d\d:\d\d:\d\d WARN |(?:\w+: )?WARNING: ")),
)


def log4j_option(properties: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """The option of the driver's JVM by which Spark logs as we want; empty: somebody has said how it is to log."""
    folder = environment.get("SPARK_CONF_DIR")
    has_user_config = folder and any((Path(folder) / name).is_file() for name in ("log4j2.properties", "log4j2.xml"))
    if has_user_config or "log4j" in str(properties.get("spark.driver.extraJavaOptions", "")):
        return ""
    return f'"-Dlog4j2.configurationFile={LOG4J.as_uri()}"'


def levelled(lines: Iterable[str], log: Any) -> Iterator[str]:
    """The lines for Airflow's hook to log as it does. What it would log with a wrong level is logged here; noise is
    logged by nobody."""
    for line in lines:
        text = line.rstrip()
        if _NOISE.match(text):
            continue
        for level, pattern in _LEVELS:
            if pattern.match(text):
                log.log(level, "%s", text)
                break
        else:
            yield line
