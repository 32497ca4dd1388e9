"""The log of a driver: its settings, and the level of each line.

The output of a driver is the log of its task. Airflow's Spark hook would log every line at the same level, so warnings
would not stand out.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG4J = Path(__file__).with_name("log4j2.properties")

_NOISE = re.compile(
    # The JVM and Spark's launcher print these lines, regardless of the log settings.
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
    """Return the JVM option with which the driver uses the log settings of this package.

    The result is empty if the user has configured Spark's logging.
    """
    folder = environment.get("SPARK_CONF_DIR")
    has_user_config = folder and any((Path(folder) / name).is_file() for name in ("log4j2.properties", "log4j2.xml"))
    if has_user_config or "log4j" in str(properties.get("spark.driver.extraJavaOptions", "")):
        return ""
    return f'"-Dlog4j2.configurationFile={LOG4J.as_uri()}"'


def log_line(line: str, log: Any) -> None:
    """Log a line of a driver's output at the level that the line has. Spark's start-up noise is dropped."""
    text = line.rstrip()
    if _NOISE.match(text):
        return
    level = next((level for level, pattern in _LEVELS if pattern.match(text)), logging.INFO)
    log.log(level, "%s", text)
