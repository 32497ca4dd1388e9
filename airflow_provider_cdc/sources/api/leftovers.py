"""What a server still keeps for runs, as far as it tells which DAG runs these are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class LeftByRun:
    """That the server keeps something for a run, and Airflow's names of the DAG run that it is of."""

    run_id: str
    dag_id: str
    dag_run_id: str


@runtime_checkable
class TellsLeft(Protocol):
    """A source whose server says what it keeps for which run."""

    def left_by_runs(self) -> list[LeftByRun]:
        """The runs that it keeps something for, those in progress among them.

        :raises SourceUnavailable: the server cannot be reached.
        """
