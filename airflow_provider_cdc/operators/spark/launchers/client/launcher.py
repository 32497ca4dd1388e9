"""The launcher of client mode."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow_provider_cdc
from airflow_provider_cdc.compat import master_of_connection, spark_submit_command, supervisor_channel
from airflow_provider_cdc.errors import ConfigurationError, Problem
from airflow_provider_cdc.jobs.runtime.driver import PACKAGE_VARIABLE, TRY_VARIABLE, has_user_entry, package_zip
from airflow_provider_cdc.operators.spark.launchers.base import JobState, Phase, SparkRequest
from airflow_provider_cdc.operators.spark.launchers.client import guardian
from airflow_provider_cdc.operators.spark.launchers.client.checks import check_master_answers, problems_of
from airflow_provider_cdc.operators.spark.launchers.client.driver_log import log4j_option, log_line
from airflow_provider_cdc.operators.spark.launchers.client.launch import (
    UNSET,
    LastLines,
    driver_environment,
    failed,
    scratch,
    scratch_environment,
    scratch_parent,
    text_environment,
)


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

    def submit(self, request: SparkRequest) -> str:
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
            job = str(process.pid)
            self._jobs[job] = _Job(process, LastLines(), until_ended.pop_all())
        return job

    def poll(self, job: str) -> JobState:
        """Return the state of a job. This method returns when the job has ended, because until then the output of the
        job must be read."""
        running = self._jobs[job]
        assert running.process.stdout is not None
        with running.until_ended:
            for line in running.last_lines.passing(running.process.stdout):
                log_line(line, self._log)
            status = running.process.wait()
        return failed(status, running.last_lines) if status else JobState(Phase.SUCCEEDED)

    def cancel(self, job: str, *, wait_seconds: float = 0.0) -> None:
        guarding = self._jobs[job].process
        # Send SIGTERM and not SIGKILL, because the guardian must survive long enough to kill its children and clean up.
        guarding.terminate()
        if wait_seconds:
            try:
                guarding.wait(wait_seconds)
            except subprocess.TimeoutExpired:
                guarding.kill()

    def _hook(self, request: SparkRequest, package: str | None) -> Any:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        return SparkSubmitHook(
            **self._arguments,
            conn_id=self._conn_id,
            conf=self._properties,
            name=request.name,
            application_args=list(request.arguments),
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
