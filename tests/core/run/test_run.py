"""The run's records are complete or absent, and no try reverses what another try recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.retention import is_over
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.results import DeltaResult, SnapshotResult, StepResult
from airflow_provider_cdc.core.run.run import FILE, Commit, Run
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable
from tests.runs import delta_result, manifest_of, run_folder, snapshot_result

TABLE = Table(TableName("s", "t"), (Column("id", "int", False, {"charset": "ascii"}),), ("id",), "PRIMARY", 5, 80)


@pytest.fixture
def lake(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.fixture
def folder(lake: Storage) -> Storage:
    return run_folder(lake)


@pytest.fixture
def manifest(lake: Storage) -> Manifest:
    tables = (RunTable(TABLE, "lock", "why"),)
    return manifest_of(lake, initial_position="a:1", identity=Facts({"id": "x"}), tables=tables)


def test_what_is_created_is_loaded(manifest: Manifest, folder: Storage) -> None:
    assert not Run.exists(folder)
    Run.create(manifest)
    assert Run.exists(folder)
    assert Run.load(folder).manifest == manifest


def test_the_scratch_of_a_run_may_lie_outside_of_the_lake(manifest: Manifest, tmp_path: Path) -> None:
    elsewhere = Storage((tmp_path / "elsewhere").as_uri())
    run = Run.create(replace(manifest, scratch=elsewhere.uri))
    assert run.folder.uri == f"{elsewhere.uri}/{manifest.run_id}"
    assert Run.load(run.folder).manifest.lake == manifest.lake


def test_the_first_to_finish_a_step_is_the_one_that_counts(manifest: Manifest, folder: Storage) -> None:
    Run.create(manifest)
    slow, quick = Run.load(folder), Run.load(folder)
    assert quick.finish_step("snapshot", snapshot_result(1)).rows == 1
    assert quick.finish_step("extract_delta", delta_result(2)).transactions == 2
    assert slow.finish_step("snapshot", snapshot_result(9)).rows == 1
    found = Run.load(folder)
    assert (found.result_of(SnapshotResult).rows, found.result_of(DeltaResult).transactions) == (1, 2)


def test_no_manifest(folder: Storage) -> None:
    with pytest.raises(ManifestError, match="no manifest"):
        Run.load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]x", "[]", "{}", "3", '{"format": 5}'])
def test_a_damaged_manifest_is_named(folder: Storage, text: str) -> None:
    folder.make_folder()
    Path(folder.path(FILE)).write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json|has format None"):
        Run.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": 99},
        {"tables": [{}]},
        {"tables": None},
        {"identity": []},
        {"identity": {"id": 1}},
        {"run_id": 1},
        {"more": 1},
        {"scratch": "file:///elsewhere"},
        {"run_id": "r2"},
    ],
)
def test_a_manifest_of_another_shape_version_or_place_is_refused(
    manifest: Manifest, folder: Storage, change: dict[str, object]
) -> None:
    Run.create(manifest)
    path = Path(folder.path(FILE))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError):
        Run.load(folder)


def test_of_two_manifests_at_the_same_time_one_counts(manifest: Manifest, folder: Storage) -> None:
    def create(number: int) -> Run:
        return Run.create(replace(manifest, initial_position=f"a:{number}"))

    with ThreadPoolExecutor(8) as tries:
        counting = list(tries.map(create, range(8)))
    assert {one.manifest.initial_position for one in counting} == {Run.load(folder).manifest.initial_position}


def test_of_two_tries_of_a_step_at_the_same_time_one_counts_and_nothing_else_is_lost(
    manifest: Manifest, folder: Storage
) -> None:
    begun = Run.create(manifest)
    tries = [Run.load(folder) for _ in range(8)]

    def finish(at: int) -> StepResult:
        if at % 2:
            return tries[at].finish_step("snapshot", snapshot_result(at))
        return tries[at].finish_step("extract_delta", delta_result(at))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(finish, range(8)))
    run = Run.load(folder)
    assert found == [run.steps["snapshot" if at % 2 else "extract_delta"] for at in range(8)]
    assert run.digest == begun.digest


def test_a_run_that_begins_anew_leaves_all_steps_of_its_first_beginning_behind(
    manifest: Manifest, folder: Storage
) -> None:
    first = Run.create(manifest)
    zombie = Run.load(folder)
    first.finish_step("snapshot", snapshot_result(1))
    again = replace(manifest, initial_position="a:9")
    anew = Run.create(again, instead_of=Run.load(folder))
    assert (anew.generation, anew.steps, anew.commit, anew.manifest) == (2, {}, None, again)
    assert zombie.finish_step("extract_delta", delta_result(1)).transactions == 1
    assert zombie.record_commit(Commit("z", zombie.rests_on, "commit/files-0.json")).abandoned
    assert Run.load(folder).digest == anew.digest
    third = Run.create(replace(manifest, initial_position="a:10"), instead_of=anew)
    assert Run.load(folder).manifest == third.manifest
    assert third.manifest.initial_position == "a:10"


def test_a_run_goes_on_with_the_manifest_that_its_commit_names(
    manifest: Manifest, folder: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt is killed when it has abandoned a manifest, but has not written the following one. Another attempt
    wants a third manifest."""
    first = Run.create(manifest)
    create = Storage.create_json

    def killed(storage: Storage, name: str, *arguments: Any, **options: Any) -> bool:
        if name == "manifest-2.json":
            raise KeyboardInterrupt
        return create(storage, name, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", killed)
        with pytest.raises(KeyboardInterrupt):
            Run.create(replace(manifest, initial_position="a:9"), instead_of=first)
    killed_run = Run.load(folder)
    assert (killed_run.abandoned, killed_run.continues, is_over(killed_run)) == (True, True, False)
    other = Run.create(replace(manifest, initial_position="a:10"), instead_of=Run.load(folder))
    assert (other.manifest.initial_position, other.generation) == ("a:9", 2)
    # A run that was stopped does not go on by itself, nor with an attempt that has not seen this yet.
    unaware = Run.load(folder)
    assert other.record_commit(Commit("stop", other.rests_on, abandoned=True)).abandoned
    assert (other.begin_following(), is_over(other), Run.load(folder).generation) == (False, True, 2)
    overtaken = Run.create(replace(manifest, initial_position="a:11"), instead_of=unaware)
    assert (overtaken.generation, is_over(overtaken)) == (2, True)
    assert Run.create(replace(manifest, initial_position="a:11"), instead_of=other).generation == 3


def test_what_is_published_is_not_begun_anew(manifest: Manifest, folder: Storage) -> None:
    first = Run.create(manifest)
    assert not first.record_commit(Commit("a", first.rests_on, "commit/files-0.json")).abandoned
    anew = Run.create(replace(manifest, initial_position="a:9"), instead_of=Run.create(manifest))
    assert (anew.manifest.initial_position, anew.committed) == ("a:1", True)
    # A second commit does not count.
    assert Run.load(folder).record_commit(Commit("b", {}, "commit/files-1.json")).token == "a"


def test_steps_of_a_manifest_that_was_altered_are_not_its_own(manifest: Manifest, folder: Storage) -> None:
    Run.create(manifest).finish_step("snapshot", snapshot_result(1))
    path = Path(folder.path(FILE))
    path.write_text(path.read_text().replace("a:1", "a:2"))
    assert Run.load(folder).steps == {}


def test_a_step_that_this_version_does_not_know_is_named(manifest: Manifest, folder: Storage) -> None:
    run = Run.create(manifest)
    folder.write_json(f"steps/{run.digest[:16]}/compact.json", {})
    with pytest.raises(ManifestError, match="an unknown step: compact"):
        Run.load(folder)


@pytest.mark.parametrize("arrived", [False, True])
def test_a_commit_that_the_store_does_not_confirm_is_unknown_until_it_is_looked_for(
    manifest: Manifest, folder: Storage, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(manifest)
    create = Storage.create_json

    def unconfirmed(*arguments: Any) -> bool:
        if arrived:
            create(*arguments)
        raise StorageUnavailable("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", unconfirmed)
        with pytest.raises(CommitUnknown, match="was stored: timed out"):
            run.record_commit(Commit("a", run.rests_on, "commit/files-0.json"))
    again = Run.load(folder)
    assert again.committed == arrived
    assert again.record_commit(Commit("b", again.rests_on, "commit/files-1.json")).token == ("a" if arrived else "b")


def dropping(calls: list[str]) -> Callable[[str], bool]:
    """A source that keeps something for runs, and drops it."""

    def drop(run_id: str) -> bool:
        calls.append(run_id)
        return True

    return drop


@pytest.mark.parametrize(("keep", "committed", "dropped"), [(1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 0, 1)])
def test_what_the_source_keeps_is_released_unless_it_is_to_stay_with_what_is_published(
    manifest: Manifest, folder: Storage, keep: bool, committed: bool, dropped: int
) -> None:
    """The commit decides: a run may fail for good after it, and be published all the same."""
    run = Run.create(replace(manifest, options=replace(manifest.options, keep_slot=bool(keep))))
    if committed:
        run.record_commit(Commit("a", run.rests_on, "commit/files-0.json"))
    calls: list[str] = []
    release(folder, dropping(calls))
    assert calls == [manifest.run_id] * dropped


def test_what_a_try_left_that_was_killed_before_the_manifest_is_released(folder: Storage) -> None:
    calls: list[str] = []
    release(folder, dropping(calls))
    assert calls == [folder.uri.rpartition("/")[2]]
