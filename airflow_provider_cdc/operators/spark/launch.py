"""How Spark is started on this machine: what has to be there, and the environment of its driver."""

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
from airflow_provider_cdc.sources.api.connection import ConnectionSettings


def check_spark(conn_id: str, properties: Mapping[str, Any]) -> str:
    """Make sure that Spark apps can be submitted, and return the master.

    :raises ConfigurationError: there is no such connection (for spark-submit that would mean YARN), its deploy mode is
        cluster, what its master needs is not installed, or PySpark is not whole.
    """
    where = f"spark_conn_id {conn_id!r}"
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            "there is no such connection",
            where=where,
            hint="create it, with the type spark (host local[2] or spark://host, port 7077), or correct spark_conn_id",
        ) from error
    mode = properties.get("spark.submit.deployMode") or connection.extra_dejson.get("deploy-mode")
    if mode == "cluster":
        raise ConfigurationError(
            "its deploy mode is cluster",
            where=where,
            hint="set it to client: the source's credentials reach the driver by its environment, and by nothing else",
        )
    master = connection.host or ""
    if master.startswith("k8s") and find_spec("kubernetes") is None:
        raise ConfigurationError(
            "its master is Kubernetes, and Airflow's Spark hook needs a package for that which is not installed",
            where=where,
            hint="pip install apache-airflow-providers-cncf-kubernetes, where Airflow's tasks run",
        )
    binary = connection.extra_dejson.get("spark-binary", "spark-submit")
    if shutil.which(binary, path=_path()) is None:
        raise ConfigurationError(
            f"there is no {binary} here", where=where, hint="install pyspark where Airflow's tasks run"
        )
    check_pyspark()
    return master


def driver_environment(settings: ConnectionSettings, master: str) -> dict[str, str]:
    """The variables that a Spark driver needs: the credentials, options of its JVM, and the Python that has our
    packages."""
    variables = {**to_environment(settings), **driver_jvm(), "PATH": _path(), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if master.startswith("local"):
        # On a cluster it is the cluster's own business.
        variables["PYSPARK_PYTHON"] = sys.executable
    return variables


def scratch_environment(folder: Path, variables: Mapping[str, str], more: str = "") -> dict[str, str]:
    """The variables by which all that the driver's processes write on this machine lies in ``folder``.

    :param more: options of the driver's JVM.
    """
    # A later option wins, so user-set values do.
    jvm = f'"-Djava.io.tmpdir={folder}" -XX:-UsePerfData {more} {variables.get(JVM_VARIABLE, "")}'.strip()
    return {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder), JVM_VARIABLE: jvm}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes started meanwhile.

    The hook's own argument for that would put them into argv on YARN and Kubernetes.
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
    # spark-submit lies beside the interpreter, whose environment need not be activated.
    return os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))
