"""The launcher of client mode."""

from __future__ import annotations

import fcntl
import locale
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow_provider_cdc
from airflow_provider_cdc.compat import master_of_connection, spark_submit_command, supervisor_channel
from airflow_provider_cdc.errors import ConfigurationError, Problem
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobState, Phase
from airflow_provider_cdc.jobs.runtime.driver import (
    JVM_VARIABLE,
    PACKAGE_VARIABLE,
    TRY_VARIABLE,
    driver_jvm,
    has_user_entry,
    log_line,
    package_zip,
    to_argument,
    to_environment,
)
from airflow_provider_cdc.jobs.runtime.java_errors import hint_for, last_cause
from airflow_provider_cdc.operators.spark.launchers.client import guardian
from airflow_provider_cdc.operators.spark.launchers.client.checks import (
    check_master_answers,
    problems_of,
    resolves,
    search_path,
)
from airflow_provider_cdc.operators.spark.launchers.client.guardian import LOCK
from airflow_provider_cdc.operators.spark.launchers.registry import Job, SparkRequest
from airflow_provider_cdc.sinks.registry import CatalogSettings
from airflow_provider_cdc.sources.api.source import ConnectionSettings

# The environment of a Spark driver that is started on this machine, its scratch folder, and how it ended.


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


# The state of a ``spark-submit`` that failed: the exit status, the last lines of the output, and a hint.


_KEPT = 200
_SHOWN = 12
_FRAME = re.compile(r"\s+at \S+\(|\s+\.\.\. \d+ more")
_KILLED = "the machine may have run out of memory: check its kernel log, and run fewer tasks at once on it"
_TERMINATED = (
    "its processes got SIGTERM, and not from Airflow: the machine, its container or its service was stopped. Finished "
    "work is kept; retry the task when the machine is up"
)
_ABOVE = "see the whole output above, in the log of this task; fix the cause, then clear the task"

_BY_SIGNAL = {-signal.SIGKILL: _KILLED, -signal.SIGTERM: _TERMINATED}
"""The hints for signals, as negative numbers. A shell adds 128 to the number of a signal."""


class LastLines:
    """Keeps the last lines of an output."""

    def __init__(self) -> None:
        self._kept: deque[str] = deque(maxlen=_KEPT)

    def passing(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines unchanged, and keep the last lines."""
        for line in lines:
            self._kept.append(line.rstrip())
            yield line

    def explanation(self) -> list[str]:
        """Return the kept lines that may explain the failure, without the frames of Java's stack traces."""
        return [line for line in self._kept if line.strip() and not _FRAME.match(line)]


def failed(status: int, lines: LastLines) -> JobState:
    """Return the state of a job whose ``spark-submit`` failed.

    :param status: the exit status of ``spark-submit``. A negative number means that this signal killed
        ``spark-submit``.
    """
    output = lines.explanation()
    hint = hint_for(output, _BY_SIGNAL.get(status if status < 0 else 128 - status, _ABOVE))
    how = f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"
    if cause := last_cause("\n".join(output)):
        how = f"{how}: {cause}"
    shown = "".join(f"\n    {line}" for line in output[-_SHOWN:])
    ending = f". Its last lines:{shown}" if shown else " without any output"
    return JobState(Phase.FAILED, f"spark-submit {how}{ending}", hint)


# Folders for the local files of a step's Spark driver. The folders are removed when the step ends, even if the step is
# killed.
#
# A process that uses a folder holds the lock of the folder, and the kernel releases the lock when the process ends. So
# if the lock of a folder is free, a killed step left the folder, and the next step on the machine removes the folder.


_UNLOCKED_SECONDS = 3600.0
"""A ``making-…`` folder that is older than this number of seconds belongs to no process, and is removed."""


def scratch_parent(properties: Mapping[str, object]) -> Path:
    """Return the parent folder for scratch folders: the local folder that is configured for Spark, otherwise the
    system's temporary folder."""
    named = os.environ.get("SPARK_LOCAL_DIRS") or str(properties.get("spark.local.dir") or "")
    folder = Path(named.split(",")[0].strip() or tempfile.gettempdir())
    return folder if folder.is_dir() else Path(tempfile.gettempdir())


@contextmanager
def scratch(parent: Path) -> Iterator[Path]:
    """Create a folder below ``parent``, and remove it at the end.

    First remove the folders that killed steps of this user left in ``parent``.
    """
    _sweep(parent)
    making = Path(tempfile.mkdtemp(prefix=f"making-{_prefix()}", dir=parent))
    folder = making.with_name(making.name.removeprefix("making-"))
    with (making / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        # Lock the folder before it gets its final name, because other steps remove unlocked folders with such a name.
        making.rename(folder)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _prefix() -> str:
    return f"airflow-provider-cdc-{os.getuid()}-"


def _sweep(parent: Path) -> None:
    for folder in filter(_is_own, parent.glob(f"{_prefix()}*")):
        # Another user could have created any kind of file with the name of the lock. If the file is a pipe, opening it
        # must not block this process. If the file is a link, it must not be followed.
        with suppress(OSError), open(folder / LOCK, "rb", opener=_unhindered) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    for folder in filter(_is_own, parent.glob(f"making-{_prefix()}*")):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Return whether this user owns the folder. In a shared parent folder, another user may have created a folder with
    the same name."""
    with suppress(OSError):
        status = folder.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    return False


def _unhindered(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


# The log settings of a driver.


LOG4J = Path(__file__).with_name("log4j2.properties")


def log4j_option(properties: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> str:
    """Return the JVM option with which the driver uses the log settings of this package.

    The result is empty if the user has configured Spark's logging.
    """
    folder = environment.get("SPARK_CONF_DIR")
    has_user_config = folder and any((Path(folder) / name).is_file() for name in ("log4j2.properties", "log4j2.xml"))
    if has_user_config or "log4j" in str(properties.get("spark.driver.extraJavaOptions", "")):
        return ""
    return f'"-Dlog4j2.configurationFile={LOG4J.as_uri()}"'


@dataclass(frozen=True)
class _Job:
    """A guardian with its ``spark-submit``.

    :param until_ended: removes the scratch folder.
    """

    process: subprocess.Popen[str]
    last_lines: LastLines
    until_ended: ExitStack


class ClientLauncher:
    """Runs ``spark-submit`` and the driver as child processes of this process, below a guardian.

    The driver gets all secrets by its environment. The id of a job is the process id of its guardian.

    :param conn_id: the Spark connection.
    :param properties: the Spark properties of the application.
    :param arguments: more arguments of Airflow's ``SparkSubmitHook``.
    :param log: the log that gets the output of ``spark-submit`` and the driver.
    """

    def __init__(self, conn_id: str, properties: Mapping[str, Any], arguments: Mapping[str, Any], log: Any) -> None:
        self._conn_id = conn_id
        self._properties = dict(properties)
        self._arguments = dict(arguments)
        self._log = log
        self._jobs: dict[str, _Job] = {}

    def check(self, *, here: bool = True) -> Sequence[Problem]:
        return problems_of(self._conn_id, self._properties, here=here)

    def check_reachable(self) -> None:
        check_master_answers(self._conn_id)

    def submit(self, request: SparkRequest) -> Job:
        with ExitStack() as until_ended:
            folder = until_ended.enter_context(scratch(scratch_parent(self._properties)))
            package = str(package_zip(folder))
            sends_package = has_user_entry()
            hook = self._hook(request, package if sends_package else None)
            variables = driver_environment(request.settings, master_of_connection(hook), request.catalog)
            variables[TRY_VARIABLE] = request.token
            if not sends_package:
                # Before spark-submit handles files, it asks for the name of the user, and fails.
                path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
                variables = {**variables, PACKAGE_VARIABLE: package, "PYTHONPATH": path}
            own = scratch_environment(folder, variables, log4j_option(self._properties))
            process = subprocess.Popen(
                [*guardian.command(folder, _supervisor()), *spark_submit_command(hook, str(spark_app(request.step)))],
                # The hook has an argument for environment variables, but on YARN and Kubernetes the hook would expose
                # them in the process list.
                env={
                    **{name: value for name, value in os.environ.items() if name not in UNSET},
                    **variables,
                    **own,
                    **text_environment(),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            job = Job(str(process.pid), request.token)
            self._jobs[job.id] = _Job(process, LastLines(), until_ended.pop_all())
        return job

    def poll(self, job: Job) -> JobState:
        """Return the state of a job. This method returns when the job has ended, because until then the output of the
        job must be read."""
        running = self._jobs[job.id]
        assert running.process.stdout is not None
        with running.until_ended:
            for line in running.last_lines.passing(running.process.stdout):
                log_line(line, self._log)
            status = running.process.wait()
        return failed(status, running.last_lines) if status else JobState(Phase.SUCCEEDED)

    def cancel(self, job: Job, *, wait_seconds: float = 0.0) -> None:
        guarding = self._jobs[job.id].process
        # Send SIGTERM and not SIGKILL, because the guardian must survive long enough to kill its children and clean up.
        guarding.terminate()
        if wait_seconds:
            try:
                guarding.wait(wait_seconds)
            except subprocess.TimeoutExpired:
                guarding.kill()

    def resume(self, request: SparkRequest, followed: FollowedJob) -> Job:
        raise ConfigurationError(
            f"the connection no longer names the platform of the job {followed.id}",
            where=f"spark_conn_id {self._conn_id!r}",
            hint="correct the connection, and clear the task",
        )

    def to_defer(self, job: Job) -> None:
        """Return None, because a job ends with this process."""

    def is_taken_over(self, job: Job) -> bool:
        return False

    def _hook(self, request: SparkRequest, package: str | None) -> Any:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        return SparkSubmitHook(
            **self._arguments,
            conn_id=self._conn_id,
            conf=self._properties,
            name=request.name,
            application_args=["--run-uri", to_argument(request.run.uri), *request.arguments],
            py_files=package,
            # The deploy mode in this argument takes precedence over all other settings.
            deploy_mode="client",
        )


def spark_app(name: str) -> Path:
    """Return the file of a Spark app. If the package was installed from a wheel, the file is inside the package. In a
    checkout, the file is beside the package.

    :raises ConfigurationError: the file is in neither of these places.
    """
    package = Path(airflow_provider_cdc.__file__).parent
    places = [folder / "spark_apps" / f"{name}.py" for folder in (package, package.parent)]
    for place in places:
        if place.is_file():
            return place
    raise ConfigurationError(
        f"the Spark app {name} was not found in any of {', '.join(map(str, places))}", hint="reinstall the package"
    )


def _supervisor() -> int:
    """Return the id of the Airflow process that supervises this task. 0: the task has no supervisor, as in ``dags
    test``.

    If the supervisor dies, the task counts as dead.
    """
    return 0 if supervisor_channel() is None else os.getppid()
