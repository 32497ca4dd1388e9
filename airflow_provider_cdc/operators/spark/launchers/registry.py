"""Chooses the launcher of a Spark connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_cdc.errors import ConfigurationError, PreflightError
from airflow_provider_cdc.operators.spark.launchers.base import SparkLauncher

_log = logging.getLogger(__name__)


def open_launcher(
    conn_id: str, properties: Mapping[str, Any], arguments: Mapping[str, Any] | None = None, log: Any = _log
) -> SparkLauncher:
    """Return the launcher of the connection ``conn_id``.

    :param properties: the Spark properties of the application.
    :param arguments: arguments of Airflow's ``SparkSubmitHook`` that the DAG's author gave.
    :param log: the log that gets the output of the application.
    """
    # Import a launcher late: a DAG file is parsed where Spark may not be installed.
    from airflow_provider_cdc.operators.spark.launchers.client.launcher import ClientLauncher

    return ClientLauncher(conn_id, properties, arguments or {}, log)


def check_spark(launcher: SparkLauncher, *, here: bool = True) -> None:
    """Check that the launcher can start an application.

    :param here: whether the application will be submitted on this machine. Otherwise only the settings are checked.
    :raises ConfigurationError: there is one problem, for example because the connection does not exist (spark-submit
        would then use YARN).
    :raises PreflightError: there are several problems.
    """
    problems = launcher.check(here=here)
    if len(problems) == 1:
        (problem,) = problems
        raise ConfigurationError(problem.what, where=problem.where, hint=problem.hint)
    if problems:
        raise PreflightError(problems)
