"""The Spark session of an app, and the settings it is started with."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.connection import ConnectionSettings

SOURCE_VARIABLE = "CDC_SOURCE"
"""The environment variable that carries the source's settings, password included, to the driver. Never argv or conf,
which show in process lists and in Spark's event log."""
TRY_VARIABLE = "CDC_TRY"
"""The one that carries the token of the try."""
JVM_VARIABLE = "SPARK_SUBMIT_OPTS"
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
    SparkContext._ensure_initialized()
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


def check_pyspark() -> None:
    """Make sure that ``pyspark`` and ``pyspark-client``, which write the same folder, are of one version.

    :raises ConfigurationError: they are not, so that some files are from one and some from the other.
    """
    try:
        client = version("pyspark-client")
        full = version("pyspark")
    except PackageNotFoundError:
        return
    if client != full:
        raise ConfigurationError(
            f"pyspark {full} and pyspark-client {client} are installed, and both write the folder pyspark/",
            hint=f"pip install --force-reinstall pyspark=={full} pyspark-client=={full}",
        )


def driver_jvm(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable with options for the driver's JVM, by which ``spark-submit`` and PySpark start it.

    It plans and schedules some dozens of tasks, for seconds as a rule, each step in a JVM of its own: its optimizing
    compiler would take more processor time than it ever gives back. User-set values win.
    """
    return {JVM_VARIABLE: f"-XX:TieredStopAtLevel=1 {environment.get(JVM_VARIABLE, '')}".strip()}


def to_environment(settings: ConnectionSettings) -> dict[str, str]:
    """The variables that `settings_from_environment` reads."""
    return {SOURCE_VARIABLE: json.dumps(asdict(settings))}


def error_file(task_id: str, token: str) -> str:
    """Where a step leaves why it failed: a file of each try's own, since one that was presumed dead may fail later.

    :param token: that of the try; empty where nobody gave one.
    """
    return f"errors/{task_id}-{token}.json" if token else f"errors/{task_id}.json"


def settings_from_environment(environment: Mapping[str, str] = os.environ) -> ConnectionSettings:
    """The settings that ``spark-submit`` was given.

    :raises ConfigurationError: there are none, or they are not settings.
    """
    text = environment.get(SOURCE_VARIABLE)
    if not text:
        raise ConfigurationError(
            f"the environment variable {SOURCE_VARIABLE} is not set",
            hint="start the app through its operator, which sets it from the Airflow connection",
        )
    try:
        return ConnectionSettings(**json.loads(text))
    except (TypeError, ValueError):
        # Neither the text nor the parser's message about it may show: it holds the password.
        raise ConfigurationError(
            f"the environment variable {SOURCE_VARIABLE} does not hold connection settings",
            hint="start the app through its operator, which sets it from the Airflow connection",
        ) from None
