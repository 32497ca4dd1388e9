"""The hook for platforms that run Spark jobs: connections of type ``cdc_spark``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from airflow_provider_cdc.errors import CdcError, ConfigurationError, PreflightError
from airflow_provider_cdc.get_provider_info import SPARK_FIELDS, SPARK_LAUNCHERS
from airflow_provider_cdc.hooks.platforms import Platform

TYPE = "cdc_spark"
_DAY = 1440
_TEXT = (
    *("conn_id", "application_id", "execution_role_arn", "archive", "requirements", "image"),
    *("project_id", "region", "subnetwork_uri", "service_account", "runtime_version", "namespace"),
)


@dataclass(frozen=True)
class SparkPlatformSettings:
    """The settings of a connection of type ``cdc_spark``.

    :param conn_id: the connection to the platform. Empty: what the environment has.
    :param archive: the URI of the archive with the packages of driver and executors. Empty: the image has them.
    :param cluster: what Databricks calls a new cluster.
    :param requirements: the path of the file with the packages of driver and executors. Empty: the cluster has them.
    :param limit_minutes: the longest time that a job may take.
    :param image: the image of driver and executors. Empty: on Google, that of the service.
    :param runtime_version: the version of Google's runtime. Empty: the default.
    :param namespace: the namespace of the pods on Kubernetes.
    """

    spark_conn_id: str
    launcher: str
    conn_id: str
    application_id: str
    execution_role_arn: str
    archive: str
    cluster: Mapping[str, Any]
    requirements: str
    limit_minutes: int
    image: str
    project_id: str
    region: str
    subnetwork_uri: str
    service_account: str
    runtime_version: str
    namespace: str


class CdcSparkHook(BaseHook):
    """A platform that runs Spark jobs.

    :param spark_conn_id: id of a connection of type ``cdc_spark``.
    """

    conn_name_attr = "spark_conn_id"
    conn_type = TYPE
    default_conn_name = "cdc_spark"
    hook_name = "Spark platform (CDC)"

    def __init__(self, spark_conn_id: str) -> None:
        super().__init__()
        self.spark_conn_id = spark_conn_id

    def settings(self) -> SparkPlatformSettings:
        """Return the settings of the connection.

        :raises ConfigurationError: the connection lacks a field, or has unknown fields.
        """
        where = f"spark_conn_id {self.spark_conn_id!r}"
        extra: Mapping[str, Any] = self.get_connection(self.spark_conn_id).extra_dejson
        if unknown := sorted(set(extra) - set(SPARK_FIELDS)):
            raise ConfigurationError(
                f"unknown fields in the extra of the connection: {', '.join(unknown)}",
                where=where,
                hint=f"use only these fields: {', '.join(SPARK_FIELDS)}",
            )
        given = {name: value for name, value in extra.items() if value}
        launcher = str(given.pop("launcher", next(iter(SPARK_LAUNCHERS))))
        if launcher not in SPARK_LAUNCHERS:
            hint = f"choose one of {', '.join(SPARK_LAUNCHERS)}"
            raise ConfigurationError(f"there is no launcher {launcher}", where=where, hint=hint)
        minutes = str(given.pop("limit_minutes", _DAY))
        fields = SPARK_LAUNCHERS[launcher]
        for name in fields["required"]:
            if name not in given:
                raise ConfigurationError(f"it has no {name}", where=where, hint=f"set the field {name}")
        if others := sorted(set(given) - {*fields["required"], *fields["optional"]}):
            what = f"the launcher {launcher} does not use these fields: {', '.join(others)}"
            raise ConfigurationError(what, where=where, hint="remove them, or set the field launcher")
        if not minutes.isdecimal() or not int(minutes):
            raise ConfigurationError(
                f"limit_minutes is {minutes!r}", where=where, hint="give a whole number of minutes above 0"
            )
        cluster = _json_object(given.pop("cluster", {}), f"{where}, cluster")
        text = {name: str(given.get(name, "")) for name in _TEXT}
        return SparkPlatformSettings(self.spark_conn_id, launcher, cluster=cluster, limit_minutes=int(minutes), **text)

    def test_connection(self) -> tuple[bool, str]:
        """Check the rights and the settings. No job is started."""
        try:
            problems = open_platform(self.spark_conn_id).check(here=True)
        except CdcError as error:
            return False, str(error)
        return (False, str(PreflightError(problems))) if problems else (True, "the platform can be used")


def open_platform(conn_id: str) -> Platform:
    """Return the platform that a connection of type ``cdc_spark`` names.

    :raises ConfigurationError: the connection lacks a field, or has unknown fields.
    """
    # Imported late, because the modules of the platforms import this one.
    from airflow_provider_cdc.hooks.databricks import Databricks
    from airflow_provider_cdc.hooks.dataproc_serverless import DataprocServerless
    from airflow_provider_cdc.hooks.emr_serverless import EmrServerless
    from airflow_provider_cdc.hooks.kubernetes import Kubernetes

    settings = CdcSparkHook(conn_id).settings()
    platforms: Mapping[str, Callable[[SparkPlatformSettings], Platform]] = {
        one.kind: one for one in (Databricks, DataprocServerless, EmrServerless, Kubernetes)
    }
    return platforms[settings.launcher](settings)


def _json_object(value: Any, where: str) -> Mapping[str, Any]:
    """Return a JSON object, which Airflow's form and its command line may also give as text."""
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError("it is not a JSON object", where=where, hint='write it as {"name": value, …}')
    return found
