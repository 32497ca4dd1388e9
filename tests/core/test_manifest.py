"""The run's record is whole or absent, and what one try recorded no other one takes back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_cdc.core.manifest import FILE, Manifest, RunTable
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
