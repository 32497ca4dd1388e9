"""The DAG `control` acts only on runs in folders that the administrator allows, and says who acted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_cdc.core.control.acts import Acts
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.operators.control import ControlOperator
from tests.runs import manifest_of


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Run.create(manifest_of(Storage((tmp_path / "lake").as_uri()))).folder


def context(xcoms: dict[tuple[str, str, str], str], user: str | None = "ann") -> Any:
    def pull(*, dag_id: str, run_id: str, task_ids: str, key: str) -> str | None:
        assert key == "run_uri"
        return xcoms.get((dag_id, run_id, task_ids))

    return {
        "ti": SimpleNamespace(xcom_pull=pull, xcom_push=lambda **_: None),
        "dag_run": SimpleNamespace(dag_id="control", run_id="r", triggering_user_name=user),
    }


@pytest.mark.parametrize("user", ["ann", None])
def test_a_run_is_found_by_its_dag_run_and_the_act_names_the_user(run: Storage, user: str | None) -> None:
    task = ControlOperator(
        task_id="act", act="pause", dag_to_control="d", run_to_control="m", recording_task="g.rec", reason="a sale"
    )
    task.execute(context({("d", "m", "g.rec"): run.uri}, user))
    (act,) = Acts(run).read()
    assert (act.verb, act.reason) == ("pause", "a sale")
    assert act.by == ("ann (DAG run control r)" if user else "DAG run control r")
    with pytest.raises(AirflowFailException, match=r"has no XCom run_uri of a task 'g\.rec'"):
        task.execute(context({}, user))


def test_only_runs_in_allowed_folders_are_controlled(run: Storage, tmp_path: Path) -> None:
    given: dict[str, Any] = {"act": "limit", "run_uri": run.uri, "max_reads": 1}
    for targets in ([], [(tmp_path / "lak").as_uri()]):
        with pytest.raises(AirflowFailException, match="does not allow"):
            ControlOperator(task_id="act", targets=targets, **given).execute(context({}))
    outside = f"{(tmp_path / 'lake').as_uri()}/../elsewhere/_runs/r"
    with pytest.raises(AirflowFailException):
        ControlOperator(task_id="act", targets=[run.parent().uri], **given | {"run_uri": outside}).execute(context({}))
    assert not Acts(run).read()
    for targets in ([tmp_path.as_uri()], [f"{tmp_path.as_uri()}/{{source}}"], ["*"]):
        ControlOperator(task_id="act", targets=targets, **given).execute(context({}))
    assert [act.max_reads for act in Acts(run).read()] == [1, 1, 1]


@pytest.mark.parametrize("wrong", [{"max_reads": "2"}, {"max_rows_per_second": True}, {"max_reads": -1}])
def test_limits_that_are_no_counts_are_refused(run: Storage, wrong: dict[str, Any]) -> None:
    with pytest.raises(AirflowFailException, match="is not a whole number"):
        ControlOperator(task_id="act", act="limit", run_uri=run.uri, **wrong).execute(context({}))
    assert not Acts(run).read()
