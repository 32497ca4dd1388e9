"""The interface of a service that runs Spark jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from airflow_provider_cdc.errors import Problem


class Phase(Enum):
    """The phase of a job."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True)
class JobState:
    """The state of a job.

    :param details: for a failed job, how it ended.
    :param hint: for a failed job, what to do.
    """

    phase: Phase
    details: str = ""
    hint: str = ""


class JobGoneError(Exception):
    """The platform does not know the job."""


@dataclass(frozen=True)
class FollowedJob:
    """A job, and how far a try of a task has followed it. It has no secrets: Airflow's database stores it.

    :param run_uri: the folder of the run.
    :param id: the id that the platform gave to the job.
    :param token: identifies the job.
    :param follower: identifies the try.
    :param deadline: the Unix time at which the platform ends the job.
    :param renewals: how often the try has renewed its record.
    :param answered: the public key of the driver that has its settings from this try.
    :param parts: the number of parts of the driver's output that have been logged.
    """

    run_uri: str
    id: str
    token: str
    follower: str
    deadline: int
    renewals: int = 0
    answered: str = ""
    parts: int = 0


@dataclass(frozen=True)
class JobSpec:
    """A job to start.

    :param name: for people, and to find the job: it ends with the token.
    :param app: the URI of the app.
    :param package: the URI of the zip file with this package.
    :param deadline: the Unix time at which the platform ends the job.
    """

    name: str
    token: str
    app: str
    package: str
    arguments: Sequence[str]
    properties: Mapping[str, str]
    deadline: int


class Platform(Protocol):
    """A service that runs Spark jobs. Its methods raise their library's errors, which may be temporary."""

    kind: str
    conn_id: str
    """The Airflow connection of type ``cdc_spark``."""
    target: str
    """What runs the jobs, such as the id of an application, or a workspace."""
    limit_seconds: int
    """The longest time that a job may take, in seconds."""
    stores: Sequence[str]
    """The schemes of the URIs that a job can read."""
    needs_spark: bool
    """Whether a job is started with ``spark-submit``, which needs Spark and Java on this machine."""

    def check(self, *, here: bool) -> Sequence[Problem]:
        """Return the problems because of which no job can start."""

    def start(self, spec: JobSpec) -> str:
        """Start a job, and return its id. Called again with the same token, this method starts no second job."""

    def find(self, token: str) -> str:
        """Return the id of the job whose name ends with the token. Empty: there is none."""

    def arguments(self, job: str) -> Sequence[str]:
        """Return the arguments of a job.

        :raises JobGoneError: there is no such job.
        """

    def state(self, job: str) -> JobState:
        """Return the state of a job.

        :raises JobGoneError: there is no such job.
        """

    def cancel(self, job: str) -> None:
        """End a job. If it has ended, or does not exist, do nothing."""
