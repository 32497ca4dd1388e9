"""Copies that go: nothing of those that stay is missing, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.sinks.base import Publication
from airflow_provider_cdc.sinks.iceberg import cut_table as cuts_module
from tests.interrupting import Interrupted, commits_fail, interrupt_at
from tests.seeds import some
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import files_on_disk, iceberg_table, rows_at
from tests.sinks.test_contract import LINES, ORDERS, TABLES, Lake


def chain(lake: Lake, length: int) -> list[Publication]:
    """Runs of which each keeps two files of the one before."""
    runs: list[Publication] = []
    for number in range(1, length + 1):
        runs.append(lake.stage(number, before=runs[-1] if runs else None))
        lake.sink.publish(runs[-1])
    return runs


def named_files(lake: Lake, schema: str = "shop", name: str = "orders") -> set[str]:
    """The data files and manifests that snapshots of a table name, as PyIceberg tells."""
    table = plain_catalog(lake.storage).load_table((schema, name))
    names = set()
    for snapshot in table.metadata.snapshots:
        names.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            names.add(manifest.manifest_path)
            names |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return {name.removeprefix(f"{table.location()}/") for name in names}


def remove(lake: Lake, run: Publication) -> None:
    lake.sink.withdraw([(run.run_id, ORDERS)])
    lake.sink.remove(run.run_id, ORDERS, run.tables[0].added)


def expected(runs: list[Publication], number: int) -> list[int]:
    return sorted([number] * 3 + ([number - 1] * 2 if number > 1 else []))


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", some(4, 8, 9, 11, *(step for step in range(1, 15) if step not in (4, 8, 9, 11)), plain=4)
)
def test_a_removal_that_is_killed_at_any_step_is_completed(lake: Lake, step: int) -> None:
    runs = chain(lake, 4)
    remaining = runs[2:]
    for run in runs[:2]:
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, step)
            try:
                remove(lake, run)
            except Interrupted:
                assert run.run_id in lake.sink.copies(ORDERS)
        for number, other in ((3, runs[2]), (4, runs[3])):
            assert sorted(row["id"] for row in rows_at(lake, other.run_id)) == expected(runs, number)
        remove(lake, run)
        remove(lake, run)
    assert lake.sink.copies(ORDERS) == sorted(run.run_id for run in remaining)
    assert files_on_disk(lake) == named_files(lake)
    for number, other in ((3, runs[2]), (4, runs[3])):
        assert sorted(row["id"] for row in rows_at(lake, other.run_id)) == expected(runs, number)
    assert len(iceberg_table(lake).metadata.snapshots) == 2
    assert not list(Path(lake.storage.path("_removals")).rglob("*.json"))
    # The other table is as it was.
    assert sorted(row["id"] for row in rows_at(lake, runs[0].run_id, LINES)) == [1, 1, 1]


def test_readers_of_cuts_are_led_away_before_anything_goes(lake: Lake) -> None:
    runs = chain(lake, 2)
    lake.sink.withdraw([(runs[0].run_id, ORDERS)])
    rows = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    assert {(row["run_id"], row["table"]) for row in rows} == {
        (runs[0].run_id, str(LINES)),
        (runs[1].run_id, str(LINES)),
        (runs[1].run_id, str(ORDERS)),
    }
    # Who holds on to the cut can read on.
    assert [row["id"] for row in rows_at(lake, runs[0].run_id)] == [1, 1, 1]
    assert lake.sink.grace >= timedelta(days=1)


@pytest.mark.slow
def test_another_program_s_tag_keeps_the_snapshot_and_its_files(lake: Lake) -> None:
    runs = chain(lake, 2)
    table = iceberg_table(lake)
    snapshot = table.metadata.snapshot_by_name(f"cdc-{runs[0].run_id}")
    assert snapshot is not None
    table.manage_snapshots().create_tag(snapshot.snapshot_id, "theirs").commit()
    remove(lake, runs[0])
    assert lake.sink.copies(ORDERS) == [runs[1].run_id]
    ids = iceberg_table(lake).scan(snapshot_id=snapshot.snapshot_id).to_arrow()["id"].to_pylist()
    assert ids == [1, 1, 1]


def once_before_a_commit(act: Callable[[], object]) -> Callable[[Callable[[], Any], str], Any]:
    """Return a wrapper of commits that acts once, right before the first commit of the table ``shop.orders``."""
    began = False

    def meanwhile(commit: Callable[[], Any], table: str) -> Any:
        nonlocal began
        if not began and table == "shop.orders":
            began = True
            act()
        return commit()

    return meanwhile


@pytest.mark.slow
def test_a_run_that_commits_during_a_removal_keeps_its_files(lake: Lake) -> None:
    """The removal of the base requires what the run requires, so one of both comes first."""
    first = lake.stage(1)
    lake.sink.publish(first)
    lake.sink.publish(lake.stage(3))
    # Older than the head, so that the head does not change.
    second = lake.stage(2, before=first)

    lake.sink.withdraw([(first.run_id, ORDERS)])
    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, once_before_a_commit(lambda: lake.sink.publish(second)))
        lake.sink.remove(first.run_id, ORDERS, first.tables[0].added)
    assert sorted(row["id"] for row in rows_at(lake, second.run_id)) == [1, 1, 2, 2, 2]


@pytest.mark.slow
def test_a_removal_during_a_commit_refuses_it(lake: Lake) -> None:
    first = lake.stage(1)
    lake.sink.publish(first)
    lake.sink.publish(lake.stage(3))
    second = lake.stage(2, before=first)

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, once_before_a_commit(lambda: remove(lake, first)))
        with pytest.raises(Exception, match="is gone"):
            lake.sink.publish(second)
    assert f"cdc-{second.run_id}" not in iceberg_table(lake).metadata.refs


@pytest.mark.slow
def test_files_that_a_run_wrote_and_did_not_publish_are_cleaned(lake: Lake) -> None:
    first, second = lake.stage(1), lake.stage(2)
    lake.sink.publish(first)
    given_up = lake.stage(3)

    def lose(commit: Callable[[], Any], table: str) -> Any:
        raise Interrupted

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, lose)
        with pytest.raises(Interrupted):
            lake.sink.publish(given_up)
    lake.sink.publish(second)
    for table in TABLES:
        lake.sink.clean(given_up.run_id, table, ())
        # Also by mistake: what a copy has stays.
        lake.sink.clean(first.run_id, table, ())
    assert files_on_disk(lake) == named_files(lake)
    assert lake.seen() == [[2, 2, 2]] * 2


@pytest.mark.slow
def test_all_copies_of_a_run_are_withdrawn_by_one_commit(lake: Lake) -> None:
    runs = [lake.stage(number, 1) for number in (1, 2, 3)]
    for run in runs:
        lake.sink.publish(run)
    before = plain_catalog(lake.storage).load_table("cdc.cdc_cuts")
    lake.sink.withdraw([(run.run_id, table) for run in runs[:2] for table in TABLES])
    after = plain_catalog(lake.storage).load_table("cdc.cdc_cuts")
    assert len(after.metadata.snapshots) == len(before.metadata.snapshots) + 1
    assert {row["run_id"] for row in after.scan().to_arrow().to_pylist()} == {runs[2].run_id}


@pytest.mark.long
def test_manifests_and_metadata_do_not_grow_with_the_runs(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuts_module, "GRACE", timedelta())
    runs: list[Publication] = []
    for number in range(1, 31):
        runs.append(lake.stage(number, 1, before=runs[-1] if runs else None))
        lake.sink.publish(runs[-1])
        if number > 2:
            lake.sink.withdraw([(runs[-3].run_id, table) for table in TABLES])
            for table in TABLES:
                lake.sink.remove(runs[-3].run_id, table, ())
    loaded = iceberg_table(lake)
    head = loaded.metadata.snapshot_by_name("main")
    assert head is not None
    assert len(head.manifests(loaded.io)) <= 8
    assert len(loaded.metadata.snapshots) == 2
    assert files_on_disk(lake) == named_files(lake)
    # Each withdrawal is a commit to the table of cuts, too.
    cut_table = plain_catalog(lake.storage).load_table("cdc.cdc_cuts")
    assert len(cut_table.metadata.snapshots) <= 30
    assert len(list(Path(lake.storage.path("cdc/cdc_cuts")).rglob("*.parquet"))) <= 30
