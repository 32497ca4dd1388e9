"""An archive of Spark's loaded classes, which the JVM maps into memory (class data sharing, JEP 350).

The tests start some hundred Spark drivers, most of them for a few rows. Loading the classes takes a third of a driver's
processor time. The JVM ignores an archive of another Java or of other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.messages import say

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# The archive contains the classes that this application has loaded at its end.
_APP = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
assert spark.sparkContext.parallelize([1, 2], 2).map(str).collect() == ["1", "2"]
spark.stop()
"""


def make_archive() -> None:
    """Make the archive if it does not exist. A failure only makes the tests slower."""
    if ARCHIVE.exists():
        return
    unfinished = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={unfinished}"'
    try:
        # The JVM writes the archive after the end of the application, and keeps its stdout open until then.
        subprocess.run(
            [sys.executable, "-c", _APP],
            env={**os.environ, "SPARK_SUBMIT_OPTS": options},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=300,
        )
        unfinished.rename(ARCHIVE)
    except (subprocess.SubprocessError, OSError):
        say("setup: Java made no archive of Spark's classes; the tests take longer without it")
        unfinished.unlink(missing_ok=True)


def jvm_options() -> str:
    """Return options for the JVM of a driver; empty if there is no archive."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off' if ARCHIVE.exists() else ""
