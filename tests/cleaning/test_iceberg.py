"""The files in the folder of an Iceberg table that no snapshot names."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException

from airflow_provider_cdc.cleaning.findings import FILE, RUN
from airflow_provider_cdc.core.copies import retention
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.sinks.iceberg.sink import IcebergSink
from tests.cleaning.conftest import Target, night_id
from tests.interrupting import Interrupted, commits_fail
from tests.jobs.history_source import NAMES
from tests.jobs.iceberg_nights import seen
from tests.sinks.catalogs import plain_catalog

EMPTY = NAMES[3]


@pytest.fixture
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IcebergSink, "grace", timedelta(0))
    monkeypatch.setattr(retention, "was_announced", lambda run: True)


def on_disk(target: Target, name: str) -> set[str]:
    """The data files and manifests in a table's folder."""
    root = Path(target.lake.path(name))
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}


def named(target: Target, name: str) -> set[str]:
    """The files that the table's snapshots name, as PyIceberg tells."""
    table = plain_catalog(target.lake).load_table(tuple(name.split(".")))

    def names() -> Iterator[str]:
        for snapshot in table.metadata.snapshots:
            yield snapshot.manifest_list
            for manifest in snapshot.manifests(table.io):
                yield manifest.manifest_path
                yield from (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))

    return {uri.removeprefix(f"{table.location()}/") for uri in names()}


@pytest.mark.slow
def test_data_files_of_a_failed_run_go_and_a_zombie_of_it_commits_nothing(target: Target) -> None:
    one = target.night(1, format="iceberg")
    target.night(2, steps=2, format="iceberg")
    zombie = target.night(3, steps=2, format="iceberg")
    record_commit = Run.record_commit

    def after_cleaning(self: Run, record: str, token: str) -> Any:
        report = target.clean()
        assert [(found.kind, found.run_id) for found in report.removed] == [(RUN, night_id(2)), (RUN, night_id(3))]
        return record_commit(self, record, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "record_commit", after_cleaning)
        with pytest.raises(CdcError):
            zombie.steps()[2]()
    for name in NAMES:
        assert on_disk(target, name) == named(target, name) | _empty(target, name, 1)
    assert seen(one, NAMES[0]) == target.source.history.state(5)[0]
    target.clean()
    assert target.runs() == [1], "the entry of the zombie, which counts for nothing, is cleaned up, too"
    later = target.night(4, base=1, format="iceberg")
    assert seen(later, NAMES[0]) == target.source.history.state(20)[0]


def _empty(target: Target, name: str, *numbers: int) -> set[str]:
    """The files without rows, which no snapshot names, of these nights."""
    ids = [night_id(number) for number in numbers]
    return {file for file in on_disk(target, name) if "part-empty" in file and any(one in file for one in ids)}


@pytest.mark.slow
def test_files_without_rows_stay_as_long_as_a_copy_needs_them(target: Target, without_grace: None) -> None:
    target.night(1, format="iceberg")
    assert _empty(target, EMPTY, 1)
    # Night 2 keeps the file of night 1. Nights 3 and 4 write files of their own.
    target.night(2, base=1, format="iceberg")
    assert target.clean().removed == ()
    target.night(3, base=0, format="iceberg", keep=1)
    target.night(4, base=3, format="iceberg", keep=1)
    assert target.runs() == [3, 4] or target.runs() == [4]
    report = target.clean()
    assert {(found.kind, found.run_id) for found in report.removed} == {(FILE, night_id(1))}
    assert on_disk(target, EMPTY) == named(target, EMPTY) | _empty(target, EMPTY, 3)
    assert _empty(target, EMPTY, 3)
    last = target.night(5, base=4, format="iceberg", refresh="changes")
    assert [seen(last, name) for name in NAMES] == target.source.history.state(25)


@pytest.mark.slow
def test_manifests_of_rejected_commits_go(target: Target) -> None:
    target.night(1, format="iceberg")
    rejected: list[str] = []

    def fails_once(commit: Any, table: str) -> Any:
        if table == NAMES[0] and not rejected:
            rejected.append(table)
            raise CommitFailedException("another writer was faster")
        return commit()

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, fails_once)
        two = target.night(2, format="iceberg")
    left = on_disk(target, NAMES[0]) - named(target, NAMES[0])
    assert rejected
    target.later = timedelta(0)
    target.clean()
    assert on_disk(target, NAMES[0]) - named(target, NAMES[0]) == left, "another try may be at its commit"
    target.later = timedelta(days=2)
    target.clean()
    assert on_disk(target, NAMES[0]) == named(target, NAMES[0])
    assert seen(two, NAMES[0]) == target.source.history.state(10)[0]


@pytest.mark.slow
def test_files_stay_if_the_runs_of_the_table_are_in_another_scratch(target: Target, without_grace: None) -> None:
    target.night(1, format="iceberg")
    stray = target.lake.folder(f"{EMPTY}/data")
    for name in _empty(target, EMPTY, 1):
        data = Path(target.lake.path(f"{EMPTY}/{name}")).read_bytes()
        path = Path(stray.path(name.rpartition("/")[2].replace(night_id(1), night_id(8))))
        path.write_bytes(data)
    theirs = Path(stray.path("part-of-mine.parquet"))
    theirs.write_bytes(b"")
    target.night(2, steps=0, format="iceberg", dag_run=True)
    target.states[night_id(2)] = "running"
    target.lake.make_folder("elsewhere")
    assert target.lake.rename_folder(f"_runs/{night_id(1)}", f"elsewhere/{night_id(1)}")
    report = target.clean()
    assert report.removed == ()
    assert any("is scratch right?" in found.why for found in report.kept)
    assert target.lake.rename_folder(f"elsewhere/{night_id(1)}", f"_runs/{night_id(1)}")
    assert [found.run_id for found in target.clean().removed] == [night_id(8)]
    assert theirs.exists()


@pytest.mark.slow
def test_a_committed_run_stays_and_can_be_completed(target: Target) -> None:
    def dies(commit: Any, table: str) -> Any:
        if table == NAMES[1]:
            raise Interrupted
        return commit()

    slow = target.night(1, steps=2, format="iceberg")
    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, dies)
        with pytest.raises(Interrupted):
            slow.steps()[2]()
    target.night(2, format="iceberg")
    report = target.clean()
    assert report.removed == ()
    assert "clear the task `consolidate`" in report.kept[0].why
    slow.steps()[2]()
    assert seen(slow, NAMES[0]) == target.source.history.state(5)[0]
