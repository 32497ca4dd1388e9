"""What a task and the Spark driver that it starts agree on. It is imported without PySpark, whose import takes longer
than all else that a task does when there is nothing to submit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings

SOURCE_VARIABLE = "CDC_SOURCE"
"""The environment variable that carries the source's settings, password included, to the driver. Never argv or conf,
which show in process lists and in Spark's event log."""
TRY_VARIABLE = "CDC_TRY"
"""The one that carries the token of the try."""
JVM_VARIABLE = "SPARK_SUBMIT_OPTS"


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


def done_file(task_id: str) -> str:
    """What an application leaves of a step that it did for that step's task, and to its end."""
    return f"done/{task_id}.json"


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
