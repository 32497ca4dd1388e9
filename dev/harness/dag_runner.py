"""Runs many DAGs in one separate process, as ``airflow dags test`` does, and returns the state of every task.

Importing Airflow into the caller's process would bind that process to one ``AIRFLOW_HOME``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.airflow_home import ROOT, AirflowHome


@dataclass
class DagRunResult:
    """The result of a DAG run.

    ``tries`` and ``states`` are by task_id, ``xcoms`` by task_id and key. Instances of a mapped task are named
    ``task_id[index]``. ``events`` are the URIs of the assets with events, in alphabetical order, once for each event.
    """

    state: str
    states: dict[str, str]
    tries: dict[str, int]
    xcoms: dict[str, dict[str, Any]]
    rendered: dict[str, Any]
    events: list[str]
    log: str = field(repr=False)


class DagRunner:
    """A process that runs the DAGs in the files ``dags`` in the Airflow ``home``, which must be prepared."""

    def __init__(self, home: AirflowHome, dags: Sequence[Path]) -> None:
        folder = home.home / "dags"
        folder.mkdir()
        for dag in dags:
            (folder / dag.name).symlink_to(dag)
        self.environment = {
            **home.environment,
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "dev"), os.environ.get("PYTHONPATH")])),
        }
        self._log = home.home / "runner.log"
        self._asked = 0
        self.home = home.home

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.dag_runner"],
            env=self.environment,
            cwd=self.home,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log.open("w"),
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(
        self,
        dag_id: str,
        conf: Mapping[str, Any],
        *,
        at: datetime | None = None,
        connections: Mapping[str, Mapping[str, object] | None] | None = None,
    ) -> DagRunResult:
        """Run a DAG to its end.

        :param at: the logical date, which also gives the run its name.
        :param connections: JSON fields by id, for this run only. They override the home's connections; None: the
            connection does not exist.
        """
        return self._ask(dag_id, at or datetime.now(UTC), connections, {"conf": dict(conf)})

    def rerun(
        self,
        dag_id: str,
        at: datetime,
        tasks: Sequence[str],
        *,
        connections: Mapping[str, Mapping[str, object] | None] | None = None,
    ) -> DagRunResult:
        """Clear single tasks of a run that has ended, one after the other, and run each of them again."""
        return self._ask(dag_id, at, connections, {"tasks": list(tasks)})

    def _ask(
        self,
        dag_id: str,
        at: datetime,
        connections: Mapping[str, Mapping[str, object] | None] | None,
        what: Mapping[str, Any],
    ) -> DagRunResult:
        self._asked += 1
        request = {"number": self._asked, "dag_id": dag_id, "at": at.isoformat(), **what}
        request["connections"] = dict(connections or {})
        offset = self._log.stat().st_size
        assert self._process.stdin
        assert self._process.stdout
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            answer = json.loads(line)
            # If an earlier call was interrupted while it waited, its answer comes first and is skipped.
            if answer.pop("number") == self._asked:
                return DagRunResult(**answer, log=self._said_since(offset))
        raise RuntimeError(f"the DAG runner ended:\n{self._said_since(offset)[-5000:]}")

    def _said_since(self, offset: int) -> str:
        with self._log.open("rb") as log:
            log.seek(offset)
            return log.read().decode(errors="replace")


def main() -> None:
    """Answer requests, one JSON object a line, until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    # Everything that is printed goes to the log.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        dag_id, at = request["dag_id"], datetime.fromisoformat(request["at"])
        with _connections(request["connections"]):
            if "conf" in request:
                _run(dag_id, at, request["conf"])
            for task_id in request.get("tasks", ()):
                _rerun(dag_id, at, task_id)
        answer = {"number": request["number"], **_result(dag_id, at)}
        sys.stdout.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


@contextlib.contextmanager
def _connections(connections: Mapping[str, Mapping[str, object] | None]) -> Any:
    before = dict(os.environ)
    for name, fields in connections.items():
        variable = f"AIRFLOW_CONN_{name.upper()}"
        os.environ.pop(variable, None)
        if fields is not None:
            os.environ[variable] = json.dumps(fields)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _run(dag_id: str, at: datetime, conf: dict[str, Any]) -> None:
    from airflow.utils.cli import get_bagged_dag

    # Params keep their values, so load the DAG again for each run, as each real task does.
    get_bagged_dag(None, dag_id).test(run_after=at, logical_date=at, run_conf=conf)


def _rerun(dag_id: str, at: datetime, task_id: str) -> None:
    from airflow.models.taskinstance import clear_task_instances
    from airflow.sdk.definitions.dag import _run_task
    from airflow.utils.cli import get_bagged_dag
    from airflow.utils.session import create_session

    with create_session() as session:
        instance = _dag_run(dag_id, at, session).get_task_instance(task_id, session=session)
        clear_task_instances([instance], session)
        instance.try_number += 1
        session.commit()
        _run_task(ti=instance, task=get_bagged_dag(None, dag_id).task_dict[task_id])


def _result(dag_id: str, at: datetime) -> dict[str, Any]:
    from airflow.models.asset import AssetEvent
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        run = _dag_run(dag_id, at, session)
        instances = run.get_task_instances(session=session)
        xcoms: dict[str, dict[str, Any]] = {_name(instance): {} for instance in instances}
        for xcom in session.scalars(
            select(XComModel).where(XComModel.dag_id == dag_id, XComModel.run_id == run.run_id)
        ):
            xcoms[_name(xcom)][xcom.key] = XComModel.deserialize_value(xcom)
        told = select(AssetEvent).where(AssetEvent.source_dag_id == dag_id, AssetEvent.source_run_id == run.run_id)
        return {
            "state": str(run.state),
            "states": {_name(instance): str(instance.state) for instance in instances},
            "tries": {_name(instance): instance.try_number for instance in instances},
            "xcoms": xcoms,
            "rendered": {
                _name(instance): RenderedTaskInstanceFields.get_templated_fields(instance, session=session)
                for instance in instances
            },
            "events": sorted(event.asset.uri for event in session.scalars(told)),
        }


def _name(one: Any) -> str:
    return str(one.task_id) if one.map_index < 0 else f"{one.task_id}[{one.map_index}]"


def _dag_run(dag_id: str, at: datetime, session: Any) -> Any:
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    return session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.logical_date == at)).one()


if __name__ == "__main__":
    main()
