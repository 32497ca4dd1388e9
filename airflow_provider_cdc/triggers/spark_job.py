"""Following a job on a Spark platform. A task and the trigger of a deferred task do this in the same way."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent
from asgiref.sync import sync_to_async

from airflow_provider_cdc.compat import is_over
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import StorageSettings
from airflow_provider_cdc.errors import CdcError, SparkFailed, TerminalError, TransientError
from airflow_provider_cdc.hooks.platforms import FollowedJob, JobGoneError, JobState, Phase, Platform
from airflow_provider_cdc.hooks.spark import open_platform
from airflow_provider_cdc.hooks.storage import storage_in_event_loop
from airflow_provider_cdc.jobs.runtime import remote
from airflow_provider_cdc.jobs.runtime.driver import log_line
from airflow_provider_cdc.jobs.runtime.remote import Follower
from airflow_provider_cdc.triggers.waiting import Outage, WaitFailure

Returned = TypeVar("Returned")

POLL_SECONDS = 5.0
"""How often a job is looked at, in seconds."""
RENEW_SECONDS = 60.0
"""How often the try that follows a job renews its record, in seconds."""
PATIENCE_SECONDS = 900.0
"""How long the platform, the store and Airflow may fail to answer before the task fails, in seconds. A job may also
take so much longer than its deadline."""
CANCEL_SECONDS = 20.0
"""How long a trigger that Airflow stops may take to find out whether its job must end, in seconds."""


class JobFollower:
    """Follows a job: keeps its driver at work, and logs its output.

    :param open_platform: returns the platform.
    :param run: the folder of the run.
    :param job: how far the try has followed the job. The attribute ``job`` is up to date.
    :param log: the log that gets the output of the driver.
    """

    def __init__(self, open_platform: Callable[[], Platform], run: Storage, job: FollowedJob, log: Any) -> None:
        self.run = run
        self.job = job
        self.has_request = False
        """Whether a driver has asked for its settings, and no task has answered."""
        self.taken_over = False
        """Whether another try of the task was seen to follow the job."""
        self._open_platform = open_platform
        self._log = log
        self._renewed = -math.inf
        self._outage = Outage(PATIENCE_SECONDS)

    @cached_property
    def _platform(self) -> Platform:
        return self._open_platform()

    def poll(self) -> JobState:
        """Return the state of the job. A short outage counts as a running job.

        :raises SparkFailed: another try follows the job now, or the outage has lasted for too long.
        :raises CdcError: the folder of the run, or a connection, cannot be used.
        """
        try:
            if time.monotonic() - self._renewed >= RENEW_SECONDS:
                self._renew()
            state = self._state()
            if state.phase is Phase.RUNNING:
                self.handle_request()
            self._log_parts()
            if state.phase is not Phase.RUNNING:
                remote.note_ended(self.run, self.job.token)
        except TransientError as error:
            if self.taken_over:
                raise
            failure = error
        except CdcError:
            raise
        except Exception as error:
            # The platforms and Airflow raise the errors of their libraries.
            failure = SparkFailed(
                f"the state of the job {self.job.id} is unknown: {type(error).__name__}: {error}",
                hint="retry the task: it continues the job, which may still run",
            )
        else:
            self._outage.over()
            return state
        self._log.warning("%s", self._outage.bear(failure))
        return JobState(Phase.RUNNING)

    def handle_request(self) -> None:
        """Find out whether the driver asks for its settings."""
        self.has_request = self.run.exists(remote.request_file(self.job.token))

    def _check_own(self) -> None:
        follower = records.read(Follower, self.run, remote.follower_file(self.job.token))
        self.taken_over = follower.token != self.job.follower
        if self.taken_over:
            what = f"another try of this task follows the job {self.job.id}"
            raise SparkFailed(what, hint="see the log of the other try")

    def cancel(self) -> None:
        """End the job, unless another try follows it. If it has ended, do nothing. Errors are only logged."""
        try:
            self._check_own()
            # The driver ends even if the platform does not answer.
            remote.revoke(self.run, self.job.token)
        except (CdcError, OSError) as error:
            if self.taken_over:
                self._log.info("The job goes on: %s", error)
                return
            self._log.warning("Could not revoke the job %s: %s", self.job.id, error)
        try:
            self._platform.cancel(self.job.id)
        except Exception as error:
            self._log.warning("The platform does not end the job %s: %s", self.job.id, error)

    def _renew(self) -> None:
        self._check_own()
        self.job = replace(self.job, renewals=self.job.renewals + 1)
        own = Follower(self.job.follower, self.job.renewals)
        records.write(self.run, remote.follower_file(self.job.token), own)
        self._renewed = time.monotonic()

    def _state(self) -> JobState:
        platform, job = self._platform, self.job
        try:
            state = platform.state(job.id)
        except JobGoneError:
            # Its driver may still run.
            remote.revoke(self.run, job.token)
            return JobState(Phase.FAILED, f"{platform.kind} no longer knows the job {job.id}", "retry the task")
        if state.phase is Phase.RUNNING and time.time() > job.deadline + PATIENCE_SECONDS:
            # For example, a job that waits for resources forever.
            remote.revoke(self.run, job.token)
            platform.cancel(job.id)
            what = f"the {platform.kind} job {job.id} has not ended at its deadline, and was cancelled"
            return JobState(Phase.FAILED, what, "check the resources of the platform, and the limit of the connection")
        return state

    def _log_parts(self) -> None:
        while self.run.exists(name := remote.log_file(self.job.token, self.job.parts)):
            lines = records.read(list[str], self.run, name)
            self.job = replace(self.job, parts=self.job.parts + 1)
            for line in lines:
                log_line(line, self._log)


class SparkJobTrigger(BaseTrigger):
    """Follows a job until the task has to do something: the job has ended, or its driver asks for its settings.

    The event has ``job``, a `FollowedJob`. With ``failure``, a `WaitFailure`, the job cannot be followed. With
    ``timed_out``, the task has reached its time limit.

    If Airflow ends the task meanwhile, this trigger ends the job.

    :param spark_conn_id: connection of type ``cdc_spark``.
    :param storage_conn_id: connection to the object store; empty: the settings in the environment.
    :param job: a `FollowedJob`, as JSON.
    :param until: the Unix time at which the task's ``execution_timeout`` is over; None: it has none.
    """

    def __init__(
        self, *, spark_conn_id: str, storage_conn_id: str, job: Mapping[str, Any], until: float | None
    ) -> None:
        super().__init__()
        self.spark_conn_id = spark_conn_id
        self.storage_conn_id = storage_conn_id
        self.job = dict(job)
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("spark_conn_id", "storage_conn_id", "job", "until")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        follower, failure, timed_out = None, None, False
        try:
            try:
                follower = await _in_thread(self._follower, await self._storage_settings())
                state = JobState(Phase.RUNNING)
                while state.phase is Phase.RUNNING and not follower.has_request and not timed_out:
                    await asyncio.sleep(POLL_SECONDS)
                    state = await _in_thread(follower.poll)
                    timed_out = self.until is not None and time.time() > self.until
            except CdcError as error:
                failure = asdict(WaitFailure(str(error), isinstance(error, TerminalError), type(error).__name__))
            job = self.job if follower is None else asdict(follower.job)
            yield TriggerEvent({"job": job, "failure": failure, "timed_out": timed_out})
        except asyncio.CancelledError:
            if follower is not None:
                await self._cancel_if_over(follower)
            raise

    async def _storage_settings(self) -> StorageSettings | None:
        outage = Outage(PATIENCE_SECONDS)
        while True:
            try:
                return await storage_in_event_loop(self.storage_conn_id)
            except TransientError as error:
                self.log.warning("%s", outage.bear(error))
            await asyncio.sleep(POLL_SECONDS)

    def _follower(self, storage: StorageSettings | None) -> JobFollower:
        # The settings of the process are those of all triggers, so they do not apply here.
        job = FollowedJob(**self.job)
        return JobFollower(lambda: open_platform(self.spark_conn_id), Storage(job.run_uri, storage), job, self.log)

    async def _cancel_if_over(self, follower: JobFollower) -> None:
        """End the job if Airflow will not resume the task. Errors are only logged.

        Airflow also stops a trigger when it stops the triggerer, or moves the trigger to another one, and when a user
        clears the task. The next try then continues the job.
        """
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                if await self._is_over():
                    await _in_thread(follower.cancel)
        except Exception as error:
            self.log.warning("Did not end the job %s: %s: %s", follower.job.id, type(error).__name__, error)

    async def _is_over(self) -> bool:
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        ti: Any = self.task_instance
        names = {"dag_id": ti.dag_id, "task_ids": [ti.task_id], "run_ids": [ti.run_id]}
        states = await _in_thread(lambda: RuntimeTaskInstance.get_task_states(**names))
        return is_over(states.get(ti.run_id, {}), ti.task_id, ti.map_index)


async def _in_thread(call: Callable[..., Returned], *arguments: Any) -> Returned:
    """Call a function in another thread. The function may ask Airflow for connections."""
    return await sync_to_async(call, thread_sensitive=False)(*arguments)
