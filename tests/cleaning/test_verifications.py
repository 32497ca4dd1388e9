"""The rows that a killed verification left go once it has ended; results and verifications at work stay."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_cdc.cleaning.findings import VERIFICATION, CleaningReport
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import entries
from airflow_provider_cdc.jobs.verify.request import FOLDER, REQUEST, RESULT, CopyAsked, VerifyRequest, VerifyResult
from tests.cleaning.conftest import AnyTarget, Target, night_id

HOUR, WEEK = timedelta(hours=1), timedelta(days=7, hours=1)


def verify(target: Target, number: int, *, result: bool = False, rows: bool = True, **more: object) -> str:
    """Leave the folder of a verification, as a kill leaves it, or as it stays after its end."""
    copies = (CopyAsked("s.a"), CopyAsked("s.b"))
    request = VerifyRequest(**{"what": "source", "id": night_id(number), "copies": copies, **more})  # type: ignore[arg-type]
    folder = target.lake.folder(FOLDER, request.id)
    records.write(folder, REQUEST, request)
    if rows:
        for run_id in request.run_ids:
            folder.write_text(f"{run_id}/chunks/part-0.parquet", "rows")
    if result:
        records.write(folder, RESULT, VerifyResult(request.id, "source", "", ()))
    return folder.uri


def removed(report: CleaningReport) -> list[str]:
    return [one.run_id for one in report.removed if one.kind == VERIFICATION]


def why(report: CleaningReport, number: int) -> str:
    (reason,) = [one.why for one in report.kept if one.run_id == night_id(number)]
    return reason


@pytest.mark.parametrize("store", ["disk", pytest.param("s3", marks=pytest.mark.long)])
def test_what_a_killed_verification_left_goes_after_a_week(store: str, target_on: AnyTarget) -> None:
    target = target_on(store)
    target.night(1)
    verify(target, 2)
    verify(target, 3, result=True, rows=False)
    verify(target, 4, result=True)
    verify(target, 5, source_conn_id="another")
    verify(target, 6, rows=False)
    target.lake.write_text(f"{FOLDER}/{night_id(7)}/{REQUEST}", "of another version")
    target.lake.write_text(f"{FOLDER}/notes/ideas.txt", "of somebody")
    target.later = HOUR
    early = target.clean(days=0)
    assert removed(early) == []
    assert "it may still work" in why(early, 2)
    target.later = WEEK
    planned = target.clean(dry_run=True, days=0)
    found = target.clean(days=0)
    assert (found.removed, found.kept) == (planned.removed, planned.kept)
    assert removed(found) == [night_id(2), night_id(4), night_id(6)]
    assert "has not ended by itself, and nothing was written since" in found.removed[0].why
    assert found.bytes > 0
    assert "another connection" in why(found, 5)
    assert "cannot be read" in why(found, 7)
    left = [one for one in target.lake.folders(FOLDER) if target.lake.files(one)]
    assert left == [f"{FOLDER}/{name}" for name in (*map(night_id, (3, 4, 5, 7)), "notes")]
    assert target.lake.exists(f"{FOLDER}/{night_id(4)}/{RESULT}")
    assert not [file for file in entries(target.lake, f"{FOLDER}/{night_id(4)}", recursive=True) if "part" in file.name]
    assert target.clean(days=0).removed == ()
    assert target.published() == target.source.history.state(5)


def test_a_verification_of_a_server_that_cannot_be_asked_stays(target: Target) -> None:
    target.night(1)
    verify(target, 2)
    assert "no connection to the source" in why(target.clean(source=None), 2)
