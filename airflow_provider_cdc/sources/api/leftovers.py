"""Objects that a server still keeps for runs, such as replication slots, and the DAG runs to which these objects
belong."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class LeftByRun:
    """A run for which the server still keeps objects, and the names by which Airflow identifies the DAG run."""

    run_id: str
    dag_id: str
    dag_run_id: str


@runtime_checkable
class TellsLeft(Protocol):
    """A source that can list the runs for which its server keeps objects."""

    def left_by_runs(self) -> list[LeftByRun]:
        """Return the runs for which the server keeps objects, including runs in progress.

        :raises SourceUnavailable: the server cannot be reached.
        """


SLOT, PUBLICATION = "replication slot", "publication"


@dataclass(frozen=True)
class KeptObject:
    """An object that a server keeps for a run.

    :param kind: `SLOT` or `PUBLICATION`.
    :param run_id: the run; empty: unknown.
    :param dag_id: the names of the task that created the object; empty: unknown.
    :param pid: the session that uses the object; 0: none.
    :param bytes: the size of the log that the server keeps because of the object.
    """

    kind: str
    name: str
    run_id: str
    dag_id: str = ""
    dag_run_id: str = ""
    task_id: str = ""
    pid: int = 0
    bytes: int = 0


@runtime_checkable
class DropsLeft(Protocol):
    """A source that can list and drop the single objects that its server keeps for runs."""

    def kept_objects(self, run_ids: Collection[str]) -> list[KeptObject]:
        """Return the objects that the server keeps for runs, including runs in progress.

        :param run_ids: the runs that are known. An object may have a name that only the run's id explains.
        :raises SourceUnavailable: the server cannot be reached, or is a standby.
        """

    def drop_unused(self, one: KeptObject) -> str:
        """Drop an object unless a session uses it. Return why the object stays; empty: it no longer exists."""
