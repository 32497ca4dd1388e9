"""The contract of every sink for the changes that lead to a copy: they appear and disappear with the copy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.run.commit_record import Feed, feed_schema
from airflow_provider_cdc.core.run.manifest import INSERT
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.sinks.base import Publication
from tests.interrupting import Interrupted, interrupt_at
from tests.sinks.test_contract import LINES, ORDERS, SCHEMA, TABLES, Lake

CHANGES = feed_schema(SCHEMA)


def stage(lake: Lake, number: int, before: Publication, first: int = 1) -> Publication:
    """`Lake.stage`, with three changes of each table since the copy ``before``, each in its own file."""
    publication = lake.stage(number)
    tables = []
    for change in publication.tables:
        files = []
        for order in range(first, first + 3):
            name = f"staged/{folder_name(change.table)}/changes/part-{order:012}"
            with publication.staging.writer(name, CHANGES) as writer:
                row = {"operation": INSERT, "position": "0", "order": order, "after": {"id": number}}
                writer.write(pa.Table.from_pylist([row], CHANGES))
            files += writer.files
        feed = Feed(before.run_id, before.position, first, tuple(files))
        tables.append(replace(change, base=before.run_id, feed=feed))
    return replace(publication, tables=tuple(tables))


def told(lake: Lake, publication: Publication, table: TableName = ORDERS) -> list[int] | None:
    """The order numbers of the changes that readers see; None: they see no changes."""
    feed = lake.sink.feed(publication.run_id, table)
    if feed is None:
        return None
    found: list[int] = []
    for uri in feed.files:
        folder, _, name = uri.rpartition("/")
        store = Storage(folder)
        rows = pq.read_table(store.path(name), filesystem=store.filesystem, partitioning=None)
        assert rows.schema.equals(CHANGES)
        found += rows["order"].to_pylist()
    assert (feed.first_order, feed.rows) == (found[0], len(found))
    return found


def remove(lake: Lake, publication: Publication) -> list[str]:
    """Remove the copy of the first table."""
    change = publication.tables[0]
    assert change.feed is not None
    return lake.sink.remove(publication.run_id, change.table, change.added, change.feed.files)


@pytest.fixture
def first(lake: Lake) -> Publication:
    """A published copy without changes."""
    publication = lake.stage(1)
    lake.sink.publish(publication)
    return publication


@pytest.mark.slow
def test_changes_are_published_with_their_copy_and_are_no_part_of_it(lake: Lake, first: Publication) -> None:
    second = stage(lake, 5, first)
    copies = lake.sink.publish(second)
    assert lake.seen() == [[5, 5, 5]] * 2
    for table in TABLES:
        latest, feed = lake.sink.latest(table), lake.sink.feed(second.run_id, table)
        assert latest is not None
        assert feed is not None
        assert not {*latest.files} & {*feed.files}
        assert (feed.run_id, feed.position) == (second.run_id, second.position)
        assert (feed.from_run_id, feed.from_position) == (first.run_id, first.position)
        assert told(lake, second, table) == [1, 2, 3]
        assert lake.sink.feed(first.run_id, table) is None
    assert lake.sink.publish(second) == copies
    third = stage(lake, 7, second, 4)
    lake.sink.publish(third)
    assert (told(lake, second), told(lake, third)) == ([1, 2, 3], [4, 5, 6])


@pytest.mark.slow
def test_no_copy_can_be_seen_before_its_changes(lake: Lake, first: Publication) -> None:
    """Wherever publishing is interrupted: readers of the changes would mistake it for a copy without changes."""
    number, interrupted, before = 0, True, first
    while interrupted:
        number += 1
        publication = stage(lake, 1 + number, before)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                lake.sink.publish(publication)
                interrupted = False
            except Interrupted:
                pass
        for table, seen in zip(TABLES, lake.seen(), strict=True):
            assert seen != [1 + number] * 3 or told(lake, publication, table) == [1, 2, 3]
        lake.sink.publish(publication)
        assert lake.seen() == [[1 + number] * 3] * 2, f"interrupted at change {number}"
        assert [told(lake, publication, table) for table in TABLES] == [[1, 2, 3]] * 2
        before = publication
    assert number > 8


@pytest.mark.slow
def test_several_tries_may_publish_the_same_changes_at_the_same_time(lake: Lake, first: Publication) -> None:
    publication = stage(lake, 5, first)
    with ThreadPoolExecutor(4) as tries:
        outcomes = list(tries.map(lambda _: lake.sink.publish(publication), range(4)))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert [told(lake, publication, table) for table in TABLES] == [[1, 2, 3]] * 2


@pytest.mark.parametrize("what", ["gone", "cut"])
def test_changes_that_are_damaged_are_published_by_no_call(lake: Lake, first: Publication, what: str) -> None:
    publication = stage(lake, 5, first)
    feed, folder = publication.tables[1].feed, publication.staging.folder
    assert feed is not None
    damaged = feed.files[1].name
    folder.delete_file(damaged)
    if what == "cut":
        with folder.filesystem.open_output_stream(folder.path(damaged)) as stream:
            stream.write(b"PAR1")
    for _ in range(2):
        with pytest.raises(FileDamaged, match="is gone" if what == "gone" else "has 4 bytes"):
            lake.sink.publish(publication)
        assert lake.seen() == [[1, 1, 1]] * 2
        assert told(lake, publication, LINES) is None


@pytest.mark.slow
def test_changes_go_with_their_copy_and_take_nothing_from_others(lake: Lake, first: Publication) -> None:
    second = stage(lake, 5, first)
    third = stage(lake, 7, second, 4)
    for publication in (second, third):
        lake.sink.publish(publication)
    for _ in range(2):
        assert remove(lake, second) == []
        assert told(lake, second) is None
    assert told(lake, second, LINES) == [1, 2, 3]
    assert [told(lake, third, table) for table in TABLES] == [[4, 5, 6]] * 2
    assert lake.seen() == [[7, 7, 7]] * 2


@pytest.mark.slow
def test_a_removal_that_is_interrupted_anywhere_leaves_no_part_of_changes_that_is_told(
    lake: Lake, first: Publication
) -> None:
    number, interrupted, before = 0, True, first
    while interrupted:
        number += 1
        publication = stage(lake, 1 + number, before)
        lake.sink.publish(publication)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                remove(lake, publication)
                interrupted = False
            except Interrupted:
                pass
        assert told(lake, publication) in (None, [1, 2, 3]), f"interrupted at change {number}"
        assert remove(lake, publication) == []
        assert told(lake, publication) is None
        assert publication.run_id not in lake.sink.copies(ORDERS)
        before = publication
    assert number > 6


def test_what_is_none_of_the_changes_stays_when_they_are_removed(lake: Lake, first: Publication) -> None:
    publication = stage(lake, 5, first)
    lake.sink.publish(publication)
    feed = lake.sink.feed(publication.run_id, ORDERS)
    assert feed is not None
    folder = feed.files[0].rpartition("/")[0]
    Storage(folder).write_text("notes.txt", "mine")
    for _ in range(2):
        assert remove(lake, publication) == [f"{folder}/notes.txt"]
        assert told(lake, publication) is None
