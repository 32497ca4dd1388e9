"""The clean-up on S3: pages of keys, uploads that never ended, folder markers, and runs of other deployments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from airflow_provider_cdc.cleaning.findings import RUN
from airflow_provider_cdc.core.liveness import DagRunNames, note_dag_run
from airflow_provider_cdc.core.storage.folder import Storage
from tests.cleaning.conftest import Target, night_id

HOUR = timedelta(hours=1)
FILES = 1100
"""More than a store lists, or deletes, in one answer."""


@pytest.mark.slow
def test_a_run_with_many_files_goes_and_a_run_of_another_deployment_stays(
    target_on_s3: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_on_s3
    target.night(1)
    failed = target.night(2, steps=1, dag_run=True)
    # The Airflow of this clean-up does not know the DAG run. The run works, or waits for its next try.
    alive = target.night(3, steps=2)
    note_dag_run(alive.run, DagRunNames("elsewhere", night_id(3)))
    with ThreadPoolExecutor(16) as writers:
        list(writers.map(lambda number: failed.run.write_text(f"chunks/more/{number}.json", "{}"), range(FILES)))
    # Other programs, and pyarrow itself, mark folders by empty objects.
    target.lake.filesystem.create_dir(target.lake.path("_runs/20260108T000000Z-00000000"))
    target.lake.filesystem.create_dir(failed.run.path("delta/empty"))
    target.states, target.later = {night_id(2): "failed"}, HOUR
    planned = target.clean(dry_run=True, days=0)
    assert len(failed.run.files("chunks/more")) == FILES
    report = target.clean(days=0)
    assert (report.removed, report.kept) == (planned.removed, planned.kept)
    assert [(one.kind, one.run_id) for one in report.removed] == [(RUN, night_id(2))]
    assert report.bytes > 2 * FILES
    assert "Airflow does not know its DAG" in next(one.why for one in report.kept if one.run_id == night_id(3))
    assert target.runs() == [1, 3]
    alive.steps()[2]()
    assert target.copies() == [1, 3]
    assert target.published() == target.source.history.state(15)
    # The removal was complete, also for whoever lists markers.
    left = Storage(f"{target.lake.uri}/_runs")
    assert [one for one in left.folders() if one == night_id(2) and left.files(one)] == []
    assert target.clean(days=0).removed == ()
