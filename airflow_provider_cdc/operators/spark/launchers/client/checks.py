"""Checks, without starting an application, that Spark can start on this machine.

A check reports only what must fail. What Spark reads from elsewhere is not known here: if there is a file
``spark-env.sh``, it may set every environment variable, so the variables are not checked.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any
from urllib.parse import unquote, urlsplit

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_provider_cdc.compat import master_of_connection
from airflow_provider_cdc.errors import ConfigurationError, Problem, SparkFailed
from airflow_provider_cdc.jobs.runtime.driver import check_pyspark, has_user_entry

# Checks the Java runtime that ``spark-submit`` would use.


OLDEST = 17
"""The oldest Java on which Spark 4 starts."""
_ANSWER_SECONDS = 60.0
_INSTALL = f"install Java {OLDEST} or later where Airflow's tasks run, and let JAVA_HOME name its folder"


def java_problems(search_path: str) -> Iterator[Problem]:
    """Yield a problem if there is no Java, or if its version is too old.

    Spark's scripts use the Java in JAVA_HOME. Only if this variable is not set, they use the Java in ``search_path``.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        where, java = "environment variable JAVA_HOME", str(Path(home) / "bin" / "java")
        if not os.access(java, os.X_OK) or not Path(java).is_file():
            hint = f"correct JAVA_HOME, or unset it to use the Java in PATH. Otherwise {_INSTALL}"
            yield Problem(where, f"there is no program {java} on this worker", hint)
            return
    else:
        where, found = "Java", which("java", path=search_path)
        if found is None:
            yield Problem(where, "there is no Java on this worker, and JAVA_HOME is not set", _INSTALL)
            return
        java = found
    try:
        # Java needs none of Airflow's connections.
        environment = {name: os.environ[name] for name in os.environ if not name.startswith("AIRFLOW_")}
        command = [java, "-version"]
        answer = subprocess.run(command, capture_output=True, timeout=_ANSWER_SECONDS, check=False, env=environment)
    except subprocess.TimeoutExpired:
        # A busy machine proves nothing.
        return
    except OSError as error:
        yield Problem(where, f"{java} cannot be started on this worker: {error}", _INSTALL)
        return
    text = (answer.stderr + answer.stdout).decode(errors="replace").strip()
    if answer.returncode:
        last = text.splitlines()[-1] if text else f"status {answer.returncode}"
        yield Problem(where, f"{java} does not start on this worker: {last}", "correct it; `java -version` must work")
        return
    version = re.search(r'version "(?:1\.)?(\d+)', text)
    if version and int(version[1]) < OLDEST:
        yield Problem(where, f"{java} is Java {version[1]}, but Spark 4 needs Java {OLDEST} or later", _INSTALL)


CONNECT_SECONDS = 5.0
LEAST_DRIVER_BYTES = 450 * 2**20
"""Spark's own limit: one and a half times the 300 MiB that it reserves."""

_LOCAL = re.compile(r"local(?:\[(0*[1-9]\d*|\*)(?:\s*,\s*\d+)?\])?")
_HOST_AND_PORT = r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}"
_MASTERS = (
    _LOCAL,
    re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]"),
    re.compile(rf"spark://{_HOST_AND_PORT}(?:,{_HOST_AND_PORT})*"),
    re.compile("yarn"),
    re.compile(r"k8s://(?:https?://)?[^\s/]+(?:/\S*)?"),
)
_UNITS = {unit: 1024**power for power, unit in enumerate(("", "k", "m", "g", "t"))}
_CORRECT = (
    "correct the host and the port of the connection. The host is local[4] (without a port), spark://HOST with a port, "
    "k8s://https://HOST with a port, or yarn. HOST has only letters, digits, hyphens and dots"
)
_HERE = "on this worker"
_FILES = ("spark.jars", "spark.jars.packages", "spark.files", "spark.archives", "spark.submit.pyFiles")
"""Properties with files, for which spark-submit asks Hadoop for the name of the user before any code of this package
runs."""
_INSTALL_SPARK = "pip install 'airflow-provider-cdc[spark]', where Airflow's tasks run"
_UNSET_HOME = "unset SPARK_HOME, so that the installed pyspark is used, or let it name a Spark 4"


def problems_of(conn_id: str, properties: Mapping[str, Any], *, here: bool = True) -> list[Problem]:
    """Return the problems because of which no Spark app can be submitted in client mode.

    :param properties: the Spark properties of the application.
    :param here: whether the application will be submitted on this machine. Otherwise only the settings are checked.
    """
    if not _has_hook():
        # Other workers may have the packages, and check the settings in each step.
        what = f"the packages for Spark are not installed {_HERE}"
        return [Problem(_connection(conn_id), what, _INSTALL_SPARK)] if here else []
    master, problems = _settings(conn_id, properties)
    if here:
        problems += _Machine(conn_id, master, properties).problems()
    return problems


def problems_of_submit(conn_id: str) -> list[Problem]:
    """Return the problems because of which ``spark-submit`` cannot start on this machine, in cluster mode."""
    return _Machine(conn_id, "", {}).problems()


def _has_hook() -> bool:
    """Return whether Airflow's provider for Spark is installed. The extra ``spark`` installs it, with PySpark."""
    try:
        return find_spec("airflow.providers.apache.spark.hooks.spark_submit") is not None
    except ModuleNotFoundError:
        return False


def check_master_answers(conn_id: str) -> None:
    """Check that the master of a standalone cluster, or the API server of Kubernetes, accepts connections. A connection
    that `problems_of` refuses is not checked.

    :raises SparkFailed: no server accepts a connection within `CONNECT_SECONDS`.
    """
    if not _has_hook():
        return
    master, problems = _settings(conn_id, {})
    servers = [] if problems else _servers(master)
    errors = []
    for host, port in servers:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
        except OSError as error:
            errors.append(f"{host}:{port}: {error}")
        else:
            return
    if errors:
        raise SparkFailed(
            f"the master {master} does not accept connections from this worker ({'; '.join(errors)})",
            where=_connection(conn_id),
            hint="start the cluster, or correct the host and the port of the connection",
        )


def _servers(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports to which the driver itself connects; none if they are not known."""
    if master.startswith("spark://"):
        parsed = [urlsplit(f"spark://{server}") for server in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://") and not _goes_through_a_proxy():
        server = master.removeprefix("k8s://")
        parsed = [urlsplit(server if "://" in server else f"https://{server}")]
    else:
        return []
    servers = []
    for url in parsed:
        with suppress(ValueError):
            servers.append((url.hostname or "", url.port or (80 if url.scheme == "http" else 443)))
    return servers


def _goes_through_a_proxy() -> bool:
    """Return whether Spark's client of Kubernetes may use a proxy."""
    names = ("https_proxy", "http_proxy", "all_proxy", "kubeconfig")
    has_file = (Path(os.environ.get("HOME") or "/") / ".kube" / "config").exists()
    return has_file or any(os.environ.get(name) or os.environ.get(name.upper()) for name in names)


def _connection(conn_id: str) -> str:
    return f"spark_conn_id {conn_id!r}"


def _settings(conn_id: str, properties: Mapping[str, Any]) -> tuple[str, list[Problem]]:
    """Return the URL of the master, and the problems of the connection and the properties, which are the same on every
    machine."""
    # Import the hook late: it is slow to import, and a worker that runs no Spark step may lack it.
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    where = _connection(conn_id)
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        hint = (
            "create the connection with the type spark (host local[2] or spark://host, port 7077), or correct the "
            "option `spark_conn_id`"
        )
        return "", [Problem(where, "the connection does not exist", hint)]
    problems = []
    mode = properties.get("spark.submit.deployMode") or connection.extra_dejson.get("deploy-mode")
    if mode == "cluster":
        hint = (
            "set the deploy mode to client, because the driver gets the source's credentials only from its "
            "environment; or let a platform start the driver, with a connection of the type cdc_spark"
        )
        problems.append(Problem(where, "the deploy mode of the connection is cluster, which is not supported", hint))
    if (connection.host or "").startswith("k8s") and find_spec("kubernetes") is None:
        what = "the master of the connection is Kubernetes, but Airflow's Spark hook lacks the package for Kubernetes"
        hint = "pip install apache-airflow-providers-cncf-kubernetes where Airflow's tasks run"
        return connection.host, [*problems, Problem(where, what, hint)]
    try:
        # With a keytab of its own, the hook does not write the connection's keytab to a file.
        master = master_of_connection(SparkSubmitHook(conn_id=conn_id, keytab="-"))
    except (ValueError, TypeError, RuntimeError) as error:
        return "", [*problems, Problem(where, f"Airflow's Spark hook refuses it: {error}", _CORRECT)]
    if any(known.fullmatch(master) for known in _MASTERS):
        problems += _resources(master, properties)
    elif not connection.host:
        problems.append(Problem(where, "the connection has no host, so Spark has no master", _CORRECT))
    elif connection.conn_type != "spark":
        what = f"the connection has the type {connection.conn_type}, and its master would be {master!r}"
        problems.append(Problem(where, what, "use a connection of the type spark"))
    else:
        problems.append(Problem(where, f"Spark cannot use the master {master!r}", _CORRECT))
    if remote := properties.get("spark.remote"):
        what = f"it is {remote}, so Spark would use Spark Connect, which cannot run these steps"
        problems.append(Problem("Spark.conf spark.remote", what, "remove the property"))
    return master, problems


def _resources(master: str, properties: Mapping[str, Any]) -> Iterator[Problem]:
    memory = str(properties.get("spark.driver.memory") or "").strip()
    size = re.fullmatch(r"(\d+)([kmgt]?)", memory.lower())
    if memory and size is None:
        yield Problem("Spark.conf spark.driver.memory", f"{memory!r} is not a size for Java", "write it like 2g")
    elif (
        size is not None
        and int(size[1]) * _UNITS[size[2]] < LEAST_DRIVER_BYTES
        and "spark.testing.reservedMemory" not in properties
    ):
        what = f"{memory} is less than Spark needs to start, which is 450m (a number without a unit is in bytes)"
        yield Problem("Spark.conf spark.driver.memory", what, "set it to 1g or more, or leave it out")
    wanted, cores = _number(properties.get("spark.task.cpus")), _cores(master, properties)
    if wanted is not None and cores is not None and wanted > cores:
        what = f"each task would take {wanted} cores, but an executor has {cores}, so no task could start"
        yield Problem("Spark.conf spark.task.cpus", what, "lower it, or give the executors more cores")


def _cores(master: str, properties: Mapping[str, Any]) -> int | None:
    """Return the number of cores of one executor, if it is known."""
    if local := _LOCAL.fullmatch(master):
        return 1 if master == "local" else _number(local[1])
    return _number(properties.get("spark.executor.cores"))


def _number(value: Any) -> int | None:
    text = str(value if value is not None else "").strip()
    return int(text) if text.isdecimal() else None


@dataclass(frozen=True)
class _Machine:
    """What an application needs on the machine on which it is submitted."""

    conn_id: str
    master: str
    properties: Mapping[str, Any]

    def problems(self) -> list[Problem]:
        binary = which(self._binary(), path=search_path())
        if binary is None:
            what = f"{self._binary()} was not found {_HERE}"
            return [Problem(_connection(self.conn_id), what, _INSTALL_SPARK)]
        problems = []
        try:
            check_pyspark()
        except ConfigurationError as error:
            problems.append(Problem("pyspark", error.message, error.hint))
        home = os.environ.get("SPARK_HOME")
        if home and not (Path(home) / "bin" / "spark-class").is_file():
            what = f"it names {home}, where no Spark is installed {_HERE}"
            problems.append(Problem("environment variable SPARK_HOME", what, _UNSET_HOME))
        folder = Path(home) if home else Path(binary).parent.parent
        problems += _release(folder, home)
        if not _has_spark_env(folder):
            problems += java_problems(search_path())
            problems += self._hadoop()
            problems += self._own_name()
        problems += self._driver_address()
        problems += self._event_log()
        problems += self._user()
        return problems

    def _binary(self) -> str:
        with suppress(AirflowNotFoundException):
            return str(BaseHook.get_connection(self.conn_id).extra_dejson.get("spark-binary") or "spark-submit")
        return "spark-submit"

    def _hadoop(self) -> Iterator[Problem]:
        if self.master == "yarn" and not (os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR")):
            yield Problem(
                _connection(self.conn_id),
                f"the master is yarn, but neither HADOOP_CONF_DIR nor YARN_CONF_DIR is set {_HERE}",
                "set one of them to the folder with the cluster's configuration. Without a YARN cluster, change the "
                "host of the connection: Airflow's own connection spark_default has the host yarn; local[4] needs no "
                "cluster",
            )

    def _own_name(self) -> Iterator[Problem]:
        # With a local master, the driver gets a local address (launch.py).
        named = os.environ.get("SPARK_LOCAL_IP")
        if named and not resolves(named):
            yield Problem(
                "environment variable SPARK_LOCAL_IP",
                f"{named} is no address and no host name that resolves {_HERE}",
                "set it to an address of the worker, or unset it",
            )
        elif not named and not self.master.startswith("local") and not resolves(socket.gethostname()):
            yield Problem(
                _connection(self.conn_id),
                f"the worker's own host name {socket.gethostname()} does not resolve {_HERE}, so Spark fails",
                "add the name to /etc/hosts or to DNS, or set SPARK_LOCAL_IP to an address that executors can reach",
            )

    def _driver_address(self) -> Iterator[Problem]:
        bind = str(self.properties.get("spark.driver.bindAddress") or "")
        host = str(self.properties.get("spark.driver.host") or "")
        if bind and not _is_own_address(bind):
            yield Problem(
                "Spark.conf spark.driver.bindAddress",
                f"{bind} is not an address of this worker",
                "set it to 0.0.0.0, or leave it out",
            )
        # On Kubernetes, the name of a service may resolve only while the pod of the driver runs.
        if host and not self.master.startswith("k8s") and not bind and not resolves(host):
            yield Problem(
                "Spark.conf spark.driver.host",
                f"{host} does not resolve {_HERE}, so the driver cannot listen there",
                "correct the name. If only the executors can resolve it, set spark.driver.bindAddress to 0.0.0.0",
            )

    def _event_log(self) -> Iterator[Problem]:
        if str(self.properties.get("spark.eventLog.enabled", "")).lower() != "true":
            return
        place = str(self.properties.get("spark.eventLog.dir") or "")
        # Spark's configuration may set another default, on every file system.
        url = urlsplit(place)
        if not place or url.scheme not in ("", "file") or url.netloc or (not url.scheme and _has_hadoop()):
            return
        folder = Path(unquote(url.path) if url.scheme else place)
        if not folder.is_dir():
            what = f"{place} is not a folder {_HERE}"
        elif not os.access(folder, os.W_OK | os.X_OK):
            what = f"the user of this task may not write to {place} {_HERE}"
        else:
            return
        hint = "create the folder on every worker that runs Spark steps, or set spark.eventLog.enabled to false"
        yield Problem("Spark.conf spark.eventLog.dir", what, hint)

    def _user(self) -> Iterator[Problem]:
        named = [name for name in _FILES if _fetched(str(self.properties.get(name) or ""))]
        if named and not has_user_entry() and not self.properties.get("spark.kerberos.keytab"):
            yield Problem(
                f"Spark.conf {', '.join(named)}",
                f"the user id {os.getuid()} has no entry in /etc/passwd {_HERE}, so spark-submit cannot copy files",
                "add the entry, as the entry point of Airflow's image does, or leave these properties out",
            )


def _fetched(files: str) -> bool:
    """Return whether a list of files has a file that spark-submit copies."""
    return any(file.strip() and not file.strip().startswith("local:") for file in files.split(","))


def _release(home: Path, named: str | None) -> Iterator[Problem]:
    """Yield a problem if Spark is not of version 4. Without a known version there is none."""
    for jar in (home / "jars").glob("spark-core_*.jar"):
        version = re.search(r"spark-core_[\d.]+-(\d+)\.(.+)\.jar", jar.name)
        if version and version[1] != "4":
            where = "environment variable SPARK_HOME" if named else "spark-submit"
            yield Problem(where, f"{home} has Spark {version[1]}.{version[2]}, but Spark 4 is needed", _UNSET_HOME)
            return


def search_path() -> str:
    """Return the folders with programs: PATH, and the folder of the Python interpreter with ``spark-submit``, which
    PATH lacks if the virtual environment is not activated."""
    return os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))


def _has_spark_env(home: Path) -> bool:
    """Return whether Spark reads a file that may set environment variables."""
    pyspark = find_spec("pyspark")
    homes = [home, *([Path(pyspark.origin).parent] if pyspark and pyspark.origin else [])]
    named = os.environ.get("SPARK_CONF_DIR")
    folders = [Path(named)] if named else [one / "conf" for one in homes]
    return any((folder / "spark-env.sh").is_file() for folder in folders)


def _has_hadoop() -> bool:
    """Return whether Hadoop's configuration may give paths without a scheme another meaning."""
    return bool(os.environ.get("HADOOP_CONF_DIR") or os.environ.get("YARN_CONF_DIR"))


def resolves(host: str) -> bool:
    try:
        socket.getaddrinfo(host.strip("[]"), None)
    except (socket.gaierror, UnicodeError):
        return False
    return True


def _is_own_address(host: str) -> bool:
    try:
        infos = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return False
    for family, kind, protocol, _, address in infos:
        with suppress(OSError), socket.socket(family, kind, protocol) as server:
            server.bind(address)
            return True
    return False
