"""Objects that a server still keeps for runs, such as replication slots, and the DAG runs to which these objects
belong."""

from __future__ import annotations

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
