"""Spark's classes, read and verified once: an archive that the JVM maps into memory (class data sharing, JEP 350).

The tests start some hundred Spark drivers, most of them for a few rows: loading their classes takes each a third of its
processor time. The JVM leaves an archive alone that another Java made, or that is of other jars.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.messages import say

ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
# What is loaded by then is what the archive holds.
_APP = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
assert spark.sparkContext.parallelize([1, 2], 2).map(str).collect() == ["1", "2"]
spark.stop()
"""


def make_archive() -> None:
    """Make the archive unless it is there. What fails here costs time later, and nothing else."""
    if ARCHIVE.exists():
        return
    unfinished = ARCHIVE.with_suffix(f".{os.getpid()}")
    options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={unfinished}"'
    try:
        # The JVM writes it when the app has ended, and holds the app's stdout until then.
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
        say("setup: Java made no archive of Spark's classes; tests take longer without it")
        unfinished.unlink(missing_ok=True)


def jvm_options() -> str:
    """Options for a driver's JVM; none without an archive."""
    return f'"-XX:SharedArchiveFile={ARCHIVE}" -Xlog:cds=off -Xlog:cds+dynamic=off' if ARCHIVE.exists() else ""
