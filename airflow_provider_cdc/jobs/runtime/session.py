"""The Spark session of an app."""

from __future__ import annotations

import os
import sys

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from airflow_provider_cdc.compat import start_jvm
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime.driver import check_pyspark

ENCRYPTION = "spark.io.encryption.enabled"
LOCAL_NETWORK = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
"""For a Spark on this machine alone, which makes up the secret itself. Otherwise it warns in each step's log that the
key of `ENCRYPTION` shows on the wire; on a cluster that warning is true, and the cluster's own settings decide."""


def open_session(name: str) -> SparkSession:
    """The session that ``spark-submit`` configured, else a local one on all cores.

    Tasks carry the source's password. Spark keeps tasks in files when they are large, and when memory is short, so
    whatever it writes is encrypted, with a key that driver and executors have in memory alone.

    :raises ConfigurationError: PySpark is a mixture of two versions, or a session that is there does not encrypt.
    """
    check_pyspark()
    # Without its JVM PySpark does not know what was submitted, and would take every cluster for this machine.
    start_jvm(SparkContext)
    submitted = SparkConf()
    builder = SparkSession.builder.appName(name).config(ENCRYPTION, "true")
    if str(submitted.get("spark.master", "local[*]")).startswith("local"):
        os.environ["PYSPARK_PYTHON"] = sys.executable
        if not any(submitted.contains(setting) for setting in LOCAL_NETWORK):
            builder = builder.config(map=LOCAL_NETWORK)
    spark: SparkSession = builder.getOrCreate()
    check_encryption(spark.sparkContext.getConf().get(ENCRYPTION, "false"))
    return spark


def check_encryption(setting: str) -> None:
    """Make sure that Spark encrypts what it writes.

    :raises ConfigurationError: it does not.
    """
    if setting != "true":
        raise ConfigurationError(
            f"{ENCRYPTION} is {setting}: Spark would write the source's password to its local disks",
            hint="start the app in a Spark session of its own, which sets this itself",
        )
