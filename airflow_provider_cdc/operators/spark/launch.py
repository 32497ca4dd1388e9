"""The environment of a Spark driver that is started on this machine."""

from __future__ import annotations

import locale
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_cdc.jobs.runtime.driver import JVM_VARIABLE, driver_jvm, has_user_entry, to_environment
from airflow_provider_cdc.operators.spark.client_mode import resolves, search_path
from airflow_provider_cdc.sinks.catalog import CatalogSettings
from airflow_provider_cdc.sources.api.connection import ConnectionSettings

UNSET = ("SPARK_REMOTE",)
"""Variables that a driver must not have: ``spark-submit`` refuses a master beside a server of Spark Connect."""


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
        "PATH": search_path(),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    if master.startswith("local"):
        # On a cluster, the cluster's own configuration selects the Python of the executors.
        variables["PYSPARK_PYTHON"] = sys.executable
        if "SPARK_LOCAL_IP" not in os.environ and not resolves(socket.gethostname()):
            # Spark does not start if the machine's own name does not resolve. Here all its connections are local.
            variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    return variables


def scratch_environment(folder: Path, variables: Mapping[str, str], more: str = "") -> dict[str, str]:
    """Return environment variables with which the driver's processes write all local files into ``folder``.

    :param more: additional options of the driver's JVM.
    """
    scratch = {"TMPDIR": str(folder), "SPARK_LOCAL_DIRS": str(folder)}
    if not has_user_entry():
        # Java takes "?" for the user's home, and Spark would fail there.
        more = f'"-Duser.home={folder}" {more}'
        if not os.access(os.environ.get("HOME") or "", os.W_OK):
            scratch["HOME"] = str(folder)
    # If an option occurs twice, the JVM uses the last value. So the options that the user has set come last.
    jvm = f'"-Djava.io.tmpdir={folder}" -XX:-UsePerfData {more} {variables.get(JVM_VARIABLE, "")}'.strip()
    return {**scratch, JVM_VARIABLE: jvm}


def text_environment() -> dict[str, str]:
    """Return environment variables with which the driver's processes use UTF-8 for names of files and for arguments.

    With another locale, the JVM replaces every character that is not ASCII by a question mark.
    """
    if locale.nl_langinfo(locale.CODESET) == "UTF-8":
        return {}
    return {"LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the processes that are started inside the block, and unset `UNSET`.

    The Spark hook has its own argument for environment variables, but on YARN and Kubernetes the hook would expose them
    in the process list.
    """
    before = {name: os.environ.get(name) for name in (*variables, *UNSET)}
    os.environ.update(variables)
    for name in UNSET:
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
