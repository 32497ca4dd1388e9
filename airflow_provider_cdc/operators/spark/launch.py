"""Functions for starting Spark on this machine: the checks of the Spark installation, and the environment of the Spark
driver."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.jobs.runtime.driver import JVM_VARIABLE, check_pyspark, driver_jvm, to_environment
from airflow_provider_cdc.sinks.catalog import CatalogSettings
from airflow_provider_cdc.sources.api.connection import ConnectionSettings


def check_spark(conn_id: str, properties: Mapping[str, Any]) -> str:
    """Check that Spark apps can be submitted, and return the URL of the Spark master.

    :raises ConfigurationError: the connection does not exist (spark-submit would then use YARN), the connection's
        deploy mode is cluster, a package for this kind of master is not installed, or the installation of PySpark is
        incomplete.
    """
    where = f"spark_conn_id {conn_id!r}"
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            "the connection does not exist",
            where=where,
            hint="create the connection with the type spark (host local[2] or spark://host, port 7077), or correct "
            "the option `spark_conn_id`",
        ) from error
    mode = properties.get("spark.submit.deployMode") or connection.extra_dejson.get("deploy-mode")
    if mode == "cluster":
        raise ConfigurationError(
            "the deploy mode of the connection is cluster, which is not supported",
            where=where,
            hint="set the deploy mode to client: the driver gets the source's credentials from its environment only",
        )
    master = connection.host or ""
    if master.startswith("k8s") and find_spec("kubernetes") is None:
        raise ConfigurationError(
            "the master of the connection is Kubernetes, but Airflow's Spark hook lacks the package for Kubernetes",
            where=where,
            hint="pip install apache-airflow-providers-cncf-kubernetes where Airflow's tasks run",
        )
    binary = connection.extra_dejson.get("spark-binary", "spark-submit")
    if shutil.which(binary, path=_path()) is None:
        raise ConfigurationError(
            f"{binary} was not found on this machine", where=where, hint="install pyspark where Airflow's tasks run"
        )
    check_pyspark()
    return master


def driver_environment(
    settings: ConnectionSettings, master: str, catalog: CatalogSettings | None = None
) -> dict[str, str]:
    """Return the environment variables that a Spark driver needs.

    The variables hold the credentials, the options of the driver's JVM, and the path of the Python interpreter in which
    this package is installed.
    """
    variables = {
        **to_environment(settings, catalog),
        **driver_jvm(),
        "PATH": _path(),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        # On a cluster, the cluster's own configuration selects the Python of the executors.
        variables["PYSPARK_PYTHON"] = sys.executable
    return variables


def scratch_environment(folder: Path, variables: Mapping[str, str], more: str = "") -> dict[str, str]:
    """Return environment variables with which the driver's processes write all local files into ``folder``.

    :param more: additional options of the driver's JVM.
    """
    # If an option occurs twice, the JVM uses the last value. So the options that the user has set come last.
    jvm = f'"-Djava.io.tmpdir={folder}" -XX:-UsePerfData {more} {variables.get(JVM_VARIABLE, "")}'.strip()
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), JVM_VARIABLE: jvm}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside the block.

    The Spark hook has its own argument for environment variables, but on YARN and Kubernetes the hook would expose them
    in the process list.
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _path() -> str:
    # spark-submit is in the folder of the Python interpreter, but PATH lacks this folder if the virtual environment is
    # not activated.
    return os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))
