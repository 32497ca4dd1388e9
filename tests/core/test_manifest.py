"""The run's record is whole or absent, and what one try recorded no other one takes back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_cdc.core.manifest import FILE, Commit, Manifest, RunTable
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import Column, Table, TableName
from airflow_provider_cdc.errors import ManifestError

TABLE = Table(TableName("s", "t"), (Column("id", "int", False, {"charset": "ascii"}),), ("id",), "PRIMARY", 5, 80)


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri()).folder("_runs", "r1")


def manifest() -> Manifest:
    return Manifest("r1", "mysql", "initial_gtid_set", "a:1", {"id": "x"}, "now", [RunTable(TABLE, "lock", "why")])


def test_what_is_saved_is_loaded(run: Storage) -> None:
    manifest().save(run)
    assert Manifest.exists(run)
    assert Manifest.load(run) == manifest()


def test_the_first_to_finish_a_step_is_the_one_that_counts(run: Storage) -> None:
    manifest().save(run)
    slow, quick = Manifest.load(run), Manifest.load(run)
    assert quick.finish_step(run, "snapshot", {"rows": 1}) == {"rows": 1}
    assert quick.finish_step(run, "extract_delta", {"keys": 2}) == {"keys": 2}
    assert slow.finish_step(run, "snapshot", {"rows": 9}) == {"rows": 1}
    assert Manifest.load(run).steps == {"snapshot": {"rows": 1}, "extract_delta": {"keys": 2}}


def test_no_manifest(run: Storage) -> None:
    with pytest.raises(ManifestError, match="no manifest"):
        Manifest.load(run)


@pytest.mark.parametrize("text", ["", "{", "[]x", "[]", "{}", "3", '{"format": 2}'])
def test_a_damaged_manifest_is_named(run: Storage, text: str) -> None:
    run.make_folder()
    Path(run.path(FILE)).write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.json|has format None"):
        Manifest.load(run)


@pytest.mark.parametrize(
    "change", [{"format": 99}, {"tables": [{}]}, {"tables": None}, {"identity": []}, {"run_id": 1}, {"more": 1}]
)
def test_a_manifest_of_another_shape_is_refused(run: Storage, change: dict[str, object]) -> None:
    manifest().save(run)
    path = Path(run.path(FILE))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ManifestError):
        Manifest.load(run)


def test_of_two_manifests_at_the_same_time_one_counts(run: Storage) -> None:
    def save(number: int) -> Manifest:
        return replace(manifest(), initial_position=f"a:{number}").save(run)

    with ThreadPoolExecutor(8) as tries:
        counting = list(tries.map(save, range(8)))
    assert {one.initial_position for one in counting} == {Manifest.load(run).initial_position}


def test_of_two_tries_of_a_step_at_the_same_time_one_counts_and_nothing_else_is_lost(run: Storage) -> None:
    begun = manifest().save(run)
    tries = [Manifest.load(run) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda at: tries[at].finish_step(run, f"step-{at % 2}", {"by": at}), range(8)))
    steps = Manifest.load(run).steps
    assert found == [steps[f"step-{at % 2}"] for at in range(8)]
    assert Manifest.load(run).digest == begun.digest


def test_a_run_that_begins_anew_leaves_all_steps_of_its_first_beginning_behind(run: Storage) -> None:
    first = manifest().save(run)
    zombie = Manifest.load(run)
    first.finish_step(run, "snapshot", {"rows": 1})
    anew = replace(manifest(), initial_position="a:9").save(run, instead_of=Manifest.load(run))
    assert (anew.generation, anew.steps, anew.commit) == (2, {}, None)
    assert zombie.finish_step(run, "extract_delta", {"keys": 1}) == {"keys": 1}
    assert zombie.decide(run, Commit("z", zombie.rests_on, "commit/files-0.json")).abandoned
    assert Manifest.load(run) == anew
    third = replace(manifest(), initial_position="a:10").save(run, instead_of=anew)
    assert Manifest.load(run).initial_position == third.initial_position == "a:10"


def test_what_is_published_is_not_begun_anew(run: Storage) -> None:
    first = manifest().save(run)
    assert not first.decide(run, Commit("a", first.rests_on, "commit/files-0.json")).abandoned
    anew = replace(manifest(), initial_position="a:9").save(run, instead_of=manifest().save(run))
    assert (anew.initial_position, anew.committed) == ("a:1", True)
    # A second commit does not count.
    assert Manifest.load(run).decide(run, Commit("b", {}, "commit/files-1.json")).token == "a"


def test_steps_of_a_manifest_that_was_altered_are_not_its_own(run: Storage) -> None:
    manifest().save(run).finish_step(run, "snapshot", {"rows": 1})
    path = Path(run.path(FILE))
    path.write_text(path.read_text().replace("a:1", "a:2"))
    assert Manifest.load(run).steps == {}
