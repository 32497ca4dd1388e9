"""The run's records are complete or absent, and no try reverses what another try recorded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.core.copies.retention import is_over
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.ledger import FIRST
from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.results import DeltaResult, SnapshotResult
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CommitUnknown, ManifestError, StorageUnavailable
from tests.runs import commit, delta_result, manifest_of, run_folder, snapshot_result

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


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": 5},
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
    begun = folder.read_json(FIRST)
    begun["entry"]["manifest"] |= change
    folder.write_json(FIRST, begun)
    with pytest.raises(ManifestError):
        Run.load(folder)


def test_of_two_manifests_at_the_same_time_one_counts(manifest: Manifest, folder: Storage) -> None:
    def create(number: int) -> Run | None:
        with suppress(RunRestarted):
            return Run.create(replace(manifest, initial_position=f"a:{number}"))
        return None

    with ThreadPoolExecutor(8) as tries:
        (first,) = filter(None, tries.map(create, range(8)))
    assert Run.load(folder).state == first.state


def test_a_run_that_has_begun_is_the_own_one_although_json_has_other_numbers(manifest: Manifest) -> None:
    """An attempt that does not recognize its own beginning drops the slot of the run."""
    limits = replace(manifest.options.limits, governor={"threads_running": 5})
    given = replace(manifest, options=replace(manifest.options, limits=limits))
    run = Run.create(given)
    assert records.digest_of(run.manifest) != records.digest_of(given)


def test_of_two_tries_of_a_step_at_the_same_time_one_counts(manifest: Manifest, folder: Storage) -> None:
    begun = Run.create(manifest)
    tries = [Run.load(folder) for _ in range(8)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: tries[at].finish_step("snapshot", snapshot_result(at)), range(8)))
    run = Run.load(folder)
    assert found == [run.steps["snapshot"]] * 8
    assert run.digest == begun.digest


def test_a_run_that_begins_anew_leaves_all_steps_of_its_first_beginning_behind(
    manifest: Manifest, folder: Storage
) -> None:
    first = Run.create(manifest)
    zombie = Run.load(folder)
    first.finish_step("snapshot", snapshot_result(1))
    again = replace(manifest, initial_position="a:9")
    anew = Run.create(again, after=Run.load(folder))
    assert (anew.generation, anew.steps, anew.commit, anew.manifest) == (2, {}, None, again)
    with pytest.raises(RunRestarted):
        zombie.finish_step("extract_delta", delta_result(1))
    with pytest.raises(RunRestarted):
        zombie.record_commit("commit/files-0.json", "z")
    assert Run.load(folder).digest == anew.digest
    third = Run.create(replace(manifest, initial_position="a:10"), after=anew)
    assert Run.load(folder).manifest == third.manifest
    assert third.manifest.initial_position == "a:10"


def test_a_run_that_was_ended_does_not_go_on_by_itself(manifest: Manifest, folder: Storage) -> None:
    """Nor with an attempt that has not seen this yet."""
    run = Run.create(manifest)
    unaware = Run.load(folder)
    assert run.end("stopped").ended is not None
    assert (run.ended, is_over(run), is_over(Run.load(folder))) == (True, True, True)
    later = replace(manifest, initial_position="a:11")
    assert not unaware.move(later, {})
    with pytest.raises(RunRestarted):
        Run.create(later, after=unaware)
    with pytest.raises(RunRestarted):
        unaware.finish_step("snapshot", snapshot_result(1))
    again = Run.create(later, after=Run.load(folder))
    assert (again.manifest, again.generation, again.ended, is_over(again)) == (later, 2, False, False)
    # The attempt that ended the first beginning does not end this one.
    assert run.end("stopped").ended is None
    assert not Run.load(folder).ended


def test_what_is_committed_is_neither_begun_anew_nor_ended(manifest: Manifest, folder: Storage) -> None:
    first = Run.create(manifest)
    commit(first, token="a")
    with pytest.raises(RunRestarted):
        Run.create(replace(manifest, initial_position="a:9"), after=Run.load(folder))
    anew = Run.load(folder)
    assert (anew.manifest.initial_position, anew.committed) == ("a:1", True)
    assert not anew.move(replace(manifest, initial_position="a:9"), {})
    assert anew.end("stopped").ended is None
    # A second commit does not count.
    assert Run.load(folder).record_commit("commit/files-1.json", "b").token == "a"


def test_a_commit_needs_the_results_of_the_steps(manifest: Manifest) -> None:
    run = Run.create(manifest)
    with pytest.raises(ManifestError, match="an earlier step is not finished"):
        run.record_commit("commit/files-0.json", "a")
    with pytest.raises(ManifestError, match="an earlier step is not finished"):
        run.finish_step("extract_delta", delta_result(1))


def test_steps_of_a_manifest_that_was_altered_are_not_its_own(manifest: Manifest, folder: Storage) -> None:
    Run.create(manifest).finish_step("snapshot", snapshot_result(1))
    path = Path(folder.path(FIRST))
    path.write_text(path.read_text().replace("a:1", "a:2"))
    assert Run.load(folder).steps == {}


@pytest.mark.parametrize("arrived", [False, True])
def test_a_commit_that_the_store_does_not_confirm_is_unknown_until_it_is_looked_for(
    manifest: Manifest, folder: Storage, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(manifest)
    run.finish_step("snapshot", snapshot_result())
    run.finish_step("extract_delta", delta_result())
    create = Storage.create_json

    def unconfirmed(*arguments: Any) -> bool:
        if arrived:
            create(*arguments)
        raise StorageUnavailable("timed out")

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "create_json", unconfirmed)
        with pytest.raises(CommitUnknown, match="was stored: timed out"):
            run.record_commit("commit/files-0.json", "a")
    again = Run.load(folder)
    assert again.committed == arrived
    assert again.record_commit("commit/files-1.json", "b").token == ("a" if arrived else "b")


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
        commit(run)
    calls: list[str] = []
    release(folder, dropping(calls))
    assert calls == [manifest.run_id] * dropped


def test_what_a_try_left_that_was_killed_before_the_manifest_is_released(folder: Storage) -> None:
    calls: list[str] = []
    release(folder, dropping(calls))
    assert calls == [folder.uri.rpartition("/")[2]]
