"""The Spark session of an app."""

from __future__ import annotations

import os
import re
import sys
import threading
from typing import Any, cast

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from airflow_provider_cdc.compat import has_context, name_user, start_jvm
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime.driver import PACKAGE_VARIABLE, check_pyspark, has_user_entry

ENCRYPTION = "spark.io.encryption.enabled"


LOCAL_NETWORK = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
"""Settings for a local Spark session, which generates the encryption secret itself. Without these settings, Spark warns
in each step's log that the key of `ENCRYPTION` is visible on the network. On a cluster, this warning is true, and the
settings of the cluster apply."""
_existing: list[SparkSession] = []
"""The sessions that this process had before `open_session`."""


class DeferredSession:
    """A local session that opens when it is first used. Opening takes seconds of processor time. A run with
    little to do does without (`jobs.runtime.tasks`).

    :param slots: the number of tasks that the session will run at the same time.
    """

    def __init__(self, name: str, slots: int) -> None:
        self._name = name
        self._opened: SparkSession | None = None
        self._lock = threading.Lock()
        self.slots = slots

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def __getattr__(self, name: str) -> Any:
        # The thread that reads the log beside the tables may need the session at the same time.
        with self._lock:
            if self._opened is None:
                self._opened = open_session(self._name)
        return getattr(self._opened, name)


def defer_session(name: str) -> SparkSession:
    """Return a `DeferredSession` if Spark is local. Otherwise open the session now, because only the cluster knows its
    slots."""
    if has_context(SparkContext):
        return open_session(name)
    check_pyspark()
    start_jvm(SparkContext)
    submitted = SparkConf()
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:\s*,\s*\d+)?\])?", str(submitted.get("spark.master", "local[*]")))
    if local is None or submitted.contains("spark.default.parallelism"):
        return open_session(name)
    cores = os.cpu_count() or 1 if local[1] == "*" else int(local[1] or 1)
    return cast(SparkSession, DeferredSession(name, cores))


def slots_of(spark: SparkSession) -> int:
    """Return the number of tasks that a session runs at the same time."""
    if isinstance(spark, DeferredSession):
        return spark.slots
    return max(1, int(spark.sparkContext.defaultParallelism))


def open_session(name: str) -> SparkSession:
    """Open the session that ``spark-submit`` configured. Without ``spark-submit``, open a local session on all cores.
    A session that the process has, as on Databricks, is used as it is.

    Tasks contain the source's password. Spark writes tasks to files if they are large or if memory is short. So
    everything that Spark writes is encrypted with a key that exists only in the memory of the driver and the executors.

    :raises ConfigurationError: PySpark is a mixture of two versions, or an existing session does not encrypt.
    """
    check_pyspark()
    if has_context(SparkContext):
        spark: SparkSession = SparkSession.builder.getOrCreate()
        _existing.append(spark)
    else:
        spark = _new_session(name)
    check_encryption(spark.sparkContext.getConf().get(ENCRYPTION, "false"))
    if package := os.environ.get(PACKAGE_VARIABLE):
        spark.sparkContext.addPyFile(package)
    return spark


def _new_session(name: str) -> SparkSession:
    # Start the JVM first. Without a JVM, PySpark does not know the submitted settings, and would treat a cluster as
    # local.
    start_jvm(SparkContext)
    if not has_user_entry():
        name_user(SparkContext, os.environ.get("HADOOP_USER_NAME") or f"uid{os.getuid()}")
    submitted = SparkConf()
    builder = SparkSession.builder.appName(name).config(ENCRYPTION, "true")
    if str(submitted.get("spark.master", "local[*]")).startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if not any(submitted.contains(setting) for setting in LOCAL_NETWORK):
            builder = builder.config(map=LOCAL_NETWORK)
    spark: SparkSession = builder.getOrCreate()
    return spark


def close_session(spark: SparkSession) -> None:
    """Stop a session of `open_session`, unless the process had it before: a job of Databricks would then not end."""
    is_unused = isinstance(spark, DeferredSession) and not spark.is_open
    if not is_unused and spark not in _existing:
        spark.stop()


def check_encryption(setting: str) -> None:
    """Check that Spark encrypts the files that it writes.

    :raises ConfigurationError: Spark does not encrypt its files.
    """
    if setting != "true":
        raise ConfigurationError(
            f"{ENCRYPTION} is {setting}: Spark would write the source's password to its local disks",
            hint="start the app in a process without a Spark session. The app then creates a session with "
            f"{ENCRYPTION}=true",
        )
