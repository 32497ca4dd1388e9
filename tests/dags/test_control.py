"""The shipped DAG `control`: from the form's params to the record that a run follows."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.core.control.acts import Acts
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.storage.folder import Storage
from harness.dag_runner import DagRunner
from tests.runs import manifest_of

pytestmark = pytest.mark.slow


def test_the_form_controls_a_run(dag_runner: DagRunner, tmp_path: Path) -> None:
    run = Run.create(manifest_of(Storage(tmp_path.as_uri()))).folder
    paused = dag_runner.run("control", {"run_uri": run.uri, "reason": "a sale"})
    assert paused.state == "success", paused.log[-5000:]
    assert "pause, by" in paused.xcoms["act"]["act"]
    unknown = dag_runner.run("control", {"act": "resume", "dag_id": "control", "run_id": "never"})
    assert unknown.state == "failed"
    assert "has no XCom run_uri of a task 'lock_and_record'" in unknown.log
    assert unknown.tries == {"act": 1}
    (pause,) = Acts(run).read()
    assert (pause.verb, pause.reason) == ("pause", "a sale")
    assert "DAG run control " in pause.by
