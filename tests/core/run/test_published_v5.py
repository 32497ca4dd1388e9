"""Runs of format 5: what they published is read as before, and what they did not publish is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_cdc.core.run.commit_record import base_of, published_run, write_published
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.run import Run, RunRestarted, remove_state
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import ManifestError
from tests.format_5 import digest, to_format_5
from tests.runs import commit, manifest_of, publish, run_folder, snapshot_result

TABLE = Table(TableName("s", "t"), (Column("id", "int", False),), ("id",), "PRIMARY", 5, 80)


@pytest.fixture
def lake(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.fixture
def folder(lake: Storage) -> Storage:
    return run_folder(lake)


@pytest.fixture
def manifest(lake: Storage) -> Manifest:
    return manifest_of(lake, initial_position="a:1", identity={"id": "x"}, tables=(RunTable(TABLE, "lock", "why"),))


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("at_upper", [False, True])
def test_a_published_run_is_the_same_as_it_was(
    manifest: Manifest, folder: Storage, number: int, at_upper: bool
) -> None:
    manifest = replace(manifest, tables=(replace(manifest.tables[0], at_upper=at_upper),))
    run = Run.create(manifest)
    run.finish_step("snapshot", snapshot_result(3, snapshot_upper="a:9"))
    publish(run)
    write_published(run)
    new = Run.load(folder)
    assert new.position_text == ("a:9" if at_upper else "a:1")
    quick = published_run(folder.parent(), run.run_id)
    assert (base_of(quick), quick.digest) == (base_of(new), new.digest)
    to_format_5(Path(folder.path()), number=number)
    assert Run.exists(folder)
    old = Run.load(folder)
    assert old.manifest == replace(new.manifest, format=5)
    assert (old.steps, old.generation) == (new.steps, min(number, 2))
    assert base_of(published_run(folder.parent(), run.run_id)) == base_of(new)
    # The marks of removed copies have the digest of the manifest, so it is the same as in format 5.
    assert old.digest == digest(
        json.loads(sorted(Path(folder.path()).glob("manifest*.json"))[-(number == 1)].read_text())
    )
    assert not old.move(manifest, {})
    with pytest.raises(RunRestarted):
        Run.create(manifest, after=old)
    remove_state(folder)
    assert not Run.exists(folder)
    assert folder.files() == []


@pytest.mark.parametrize("reached", ["begun", "snapshot", "commit"])
def test_an_unpublished_run_is_refused_with_a_hint(manifest: Manifest, folder: Storage, reached: str) -> None:
    run = Run.create(manifest)
    if reached == "snapshot":
        run.finish_step("snapshot", snapshot_result(3))
    if reached == "commit":
        commit(run)
    to_format_5(Path(folder.path()))
    assert Run.exists(folder)
    with pytest.raises(ManifestError, match="has format 5; this version reads 6") as told:
        Run.load(folder)
    assert told.value.hint == "finish the run with the version that began it, or trigger a new run"
    with pytest.raises(RunRestarted):
        Run.create(manifest)
    assert not folder.folders() or not folder.exists("ledger")


def test_a_run_of_an_earlier_format_is_refused(manifest: Manifest, folder: Storage) -> None:
    publish(Run.create(manifest))
    to_format_5(Path(folder.path()), format=4)
    with pytest.raises(ManifestError, match="has format 4; this version reads 6"):
        Run.load(folder)


@pytest.mark.parametrize("record", ["manifest.json", "steps/*/snapshot.json", "steps/*/extract_delta.json"])
def test_a_record_that_was_replaced_after_others_were_made_from_it_is_noticed(
    manifest: Manifest, folder: Storage, record: str
) -> None:
    publish(Run.create(manifest))
    to_format_5(Path(folder.path()))
    (path,) = Path(folder.path()).glob(record)
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | ({"created_at": "2027"} if record == "manifest.json" else {"token": "x"})))
    with pytest.raises(ManifestError, match=r"this version reads 6|depends on an earlier version of the record"):
        Run.load(folder)


def test_the_record_for_later_runs_belongs_to_one_beginning(manifest: Manifest, folder: Storage) -> None:
    """A slow attempt writes the record after the run was removed and has begun again under its id."""
    slow = Run.create(manifest)
    publish(slow)
    remove_state(folder)
    Run.create(replace(manifest, initial_position="a:2"))
    write_published(slow)
    with pytest.raises(ManifestError, match="did not publish"):
        published_run(folder.parent(), slow.run_id)
