"""Commits whose outcome the catalog does not tell, runs that end anywhere, and several runs at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import requests
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ServiceUnavailableError

from airflow_provider_cdc.errors import CommitUnknown
from airflow_provider_cdc.sinks.iceberg import commit, cut_table
from airflow_provider_cdc.sinks.iceberg.cut_table import read_cut
from tests.interrupting import Interrupted, commits_fail
from tests.seeds import some
from tests.sinks.catalogs import plain_catalog
from tests.sinks.iceberg.runs import iceberg_table, rows_at, snapshots_of
from tests.sinks.test_contract import LINES, ORDERS, TABLES, Lake, read_iceberg

COMMITS = ("shop.orders", "shop.lines", "cdc.cdc_cuts")
ERRORS = [CommitStateUnknownException("502"), requests.ReadTimeout("no answer"), ServiceUnavailableError("503")]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_PAUSE_SECONDS", 0)
    monkeypatch.setattr(cut_table, "_PAUSE_SECONDS", 0)


def cut_numbers(lake: Lake, run_id: str) -> set[int]:
    rows = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    return {row["cut"] for row in rows if row["run_id"] == run_id}


def check_once(lake: Lake, run_id: str) -> None:
    """One snapshot of each table, with its tag, and one cut that names them."""
    rows = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    named = {row["table"]: row["snapshot_id"] for row in rows if row["run_id"] == run_id}
    assert len({row["cut"] for row in rows if row["run_id"] == run_id}) == 1
    for table in TABLES:
        assert snapshots_of(lake, run_id, table) == [named[str(table)]]
        tag = iceberg_table(lake, table).metadata.refs[f"cdc-{run_id}"]
        assert tag.snapshot_id == named[str(table)]


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("at", COMMITS)
@pytest.mark.parametrize("first", some(False, True))
def test_an_unknown_outcome_is_looked_up_and_nothing_is_committed_twice(
    lake: Lake, at: str, landed: bool, first: bool
) -> None:
    if not first:
        lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    errors = list(ERRORS)

    def fail(commit: Callable[[], Any], table: str) -> Any:
        if table != at or not errors:
            return commit()
        error = errors.pop()
        if landed:
            errors.clear()
            commit()
        raise error

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, fail)
        lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5]] * 2
    check_once(lake, publication.run_id)


@pytest.mark.parametrize("at", COMMITS)
def test_a_request_that_lands_late_or_twice_changes_nothing(lake: Lake, at: str) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    late: list[Callable[[], Any]] = []

    def lose(commit: Callable[[], Any], table: str) -> Any:
        if table == at and not late:
            late.append(commit)
            raise requests.ReadTimeout("no answer")
        return commit()

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, lose)
        lake.sink.publish(publication)
    with pytest.raises((CommitFailedException, ValueError)):
        late[0]()
    assert lake.seen() == [[5, 5, 5]] * 2
    check_once(lake, publication.run_id)


def test_a_catalog_that_stays_silent_is_unknown_and_the_next_try_completes(lake: Lake) -> None:
    publication = lake.stage(5)

    def fail(commit: Callable[[], Any], table: str) -> Any:
        raise requests.ReadTimeout("no answer")

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, fail)
        with pytest.raises(CommitUnknown, match="ReadTimeout"):
            lake.sink.publish(publication)
    lake.sink.publish(publication)
    check_once(lake, publication.run_id)


@pytest.mark.slow
@pytest.mark.parametrize("then", some("newer, then late", "same", "newer"))
@pytest.mark.parametrize("at", range(6))
def test_a_run_that_ends_at_any_commit_leaves_readers_of_cuts_one_whole_run(lake: Lake, at: int, then: str) -> None:
    first = lake.stage(3)
    lake.sink.publish(first)
    publication = lake.stage(5, before=first)
    count = 0

    def end(commit: Callable[[], Any], table: str) -> Any:
        nonlocal count
        for step in (None, commit):
            answer = step() if step is not None else None
            if count == at:
                count += 1
                raise Interrupted
            count += 1
        return answer

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, end)
        with pytest.raises(Interrupted):
            lake.sink.publish(publication)
    for metadata in (iceberg_table(lake, table).metadata for table in TABLES):
        # Otherwise another program may expire a snapshot.
        tagged = {ref.snapshot_id for name, ref in metadata.refs.items() if name != "main"}
        assert {snapshot.snapshot_id for snapshot in metadata.snapshots} == tagged
    landed = at == 5
    assert lake.seen() == ([[3, 3, 5, 5, 5]] * 2 if landed else [[3, 3, 3]] * 2)
    if then == "same":
        lake.sink.publish(publication)
        assert lake.seen() == [[3, 3, 5, 5, 5]] * 2
        check_once(lake, publication.run_id)
        return
    newer = lake.stage(7, before=first)
    lake.sink.publish(newer)
    assert lake.seen() == [[3, 3, 7, 7, 7]] * 2
    if then != "newer":
        copies = lake.sink.publish(publication)
        assert not any(copy.is_latest for copy in copies.values())
        assert lake.seen() == [[3, 3, 7, 7, 7]] * 2
        check_once(lake, publication.run_id)
    for run, ids in ((first, [3] * 3), (newer, [3, 3, 7, 7, 7])):
        assert [sorted(row["id"] for row in rows_at(lake, run.run_id, table)) for table in TABLES] == [ids] * 2
    # The plain tables, too, are at the newest run.
    assert [sorted(iceberg_table(lake, table).scan().to_arrow()["id"].to_pylist()) for table in TABLES] == [
        [3, 3, 7, 7, 7]
    ] * 2


def test_an_older_run_that_ends_late_has_its_own_rows_only_and_leaves_main_alone(lake: Lake) -> None:
    older, newer = lake.stage(3), lake.stage(5)
    lake.sink.publish(newer)
    lake.sink.publish(older)
    assert [row["id"] for row in rows_at(lake, older.run_id)] == [3, 3, 3]
    assert iceberg_table(lake).scan().to_arrow()["id"].to_pylist() == [5, 5, 5]
    assert lake.seen() == [[5, 5, 5]] * 2
    cut = read_cut(lake.storage.uri)
    assert cut is not None
    assert cut.run_id == newer.run_id
    lake.sink.publish(newer)
    check_once(lake, older.run_id)
    check_once(lake, newer.run_id)


@pytest.mark.slow
@pytest.mark.parametrize("groups", [("a", "a"), ("a", "b")])
def test_an_older_and_a_newer_run_at_once(lake: Lake, groups: tuple[str, str]) -> None:
    lake.sink.publish(lake.stage(1))
    older, newer = (replace(lake.stage(number), group=group) for number, group in zip((3, 5), groups, strict=True))
    with ThreadPoolExecutor(2) as runs:
        list(runs.map(lake.sink.publish, (older, newer)))
    for run, number in ((older, 3), (newer, 5)):
        check_once(lake, run.run_id)
        assert [[row["id"] for row in rows_at(lake, run.run_id, table)] for table in TABLES] == [[number] * 3] * 2
    assert lake.seen() == [[5, 5, 5]] * 2
    assert cut_numbers(lake, older.run_id) != cut_numbers(lake, newer.run_id)


@pytest.mark.slow
def test_a_table_that_a_run_leaves_out_is_never_newer_than_its_cut(lake: Lake) -> None:
    lake.sink.publish(lake.stage(1))
    late = lake.stage(3)
    late = replace(late, tables=late.tables[:1], skipped=(LINES,))
    lake.sink.publish(lake.stage(5))
    lake.sink.publish(late)
    rows = plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    carried = next(row for row in rows if row["run_id"] == late.run_id and row["table"] == str(LINES))
    assert carried["table_position"].endswith(":1-1")
    assert not carried["latest"]
    assert lake.seen() == [[5, 5, 5]] * 2


def test_a_table_that_is_left_out_does_not_replace_a_merged_table_of_the_same_name(lake: Lake) -> None:
    """Otherwise, the cut would also have the earlier copy of the merged table, and readers of the cut would read it."""
    lake.sink.publish(lake.stage(1))
    lake.sink.publish(replace(lake.stage(3), skipped=(LINES,)))
    cut = read_cut(lake.storage.uri)
    assert cut is not None
    assert {table.position for table in cut.tables.values()} == {cut.position}
    assert len(plain_catalog(lake.storage).load_table("cdc.cdc_cuts").scan().to_arrow()) == 4


@pytest.mark.slow
def test_readers_of_cuts_never_see_two_positions_and_readers_of_plain_tables_do(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    seen: list[tuple[Any, Any]] = []

    def read(commit: Callable[[], Any], table: str) -> Any:
        for step in (None, commit):
            answer = step() if step is not None else None
            plain = [iceberg_table(lake, one).scan().to_arrow()["id"].to_pylist()[0] for one in TABLES]
            through_cuts = [(read_iceberg(lake.storage, one) or [0])[0] for one in TABLES]
            seen.append((tuple(plain), tuple(through_cuts)))
        return answer

    with pytest.MonkeyPatch.context() as patch:
        commits_fail(patch, read)
        lake.sink.publish(lake.stage(5))
    assert (5, 3) in {plain for plain, _ in seen}
    assert {through_cuts for _, through_cuts in seen} == {(3, 3), (5, 5)}


def test_the_tag_that_somebody_removed_is_set_again_and_a_moved_one_is_refused(lake: Lake) -> None:
    first, second = lake.stage(3), lake.stage(5)
    lake.sink.publish(first)
    lake.sink.publish(second)
    iceberg_table(lake, ORDERS).manage_snapshots().remove_tag(f"cdc-{second.run_id}").commit()
    lake.sink.publish(second)
    check_once(lake, second.run_id)
