"""The contract of every sink, for each format, on a disk and on an object store.

All tests run for each registered format. `READERS` has the function that reads the copies of a format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.options.lake import CODECS
from airflow_provider_cdc.core.positions.facts import Facts, source_of
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.run import SCRATCH
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage import durable
from airflow_provider_cdc.core.storage.conditional import ObstoreObjects
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import (
    CommitUnknown,
    ConfigurationError,
    FileDamaged,
    PublishIncomplete,
    StorageUnavailable,
)
from airflow_provider_cdc.sinks.base import Prepared, Publication, Sink, TableChange
from airflow_provider_cdc.sinks.registry import LakeSettings, open_sink
from tests.interrupting import Interrupted, commits_fail, interrupt_at
from tests.sinks.catalogs import plain_catalog, settings_of_catalog

ORDERS, LINES = TableName("shop", "orders"), TableName("shop", "lines")
TABLES = (ORDERS, LINES)
SCHEMA = pa.schema([("id", pa.int64())])
SERVER = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
MYSQL = source_of("mysql", Facts({"server_uuid": SERVER}), "shop")
POSTGRES = source_of("postgres", Facts({"system_identifier": "7", "database": "shop", "timeline": "1"}), "pg")


def read_parquet(lake: Storage, table: TableName) -> list[int] | None:
    try:
        latest = lake.read_json(f"{folder_name(table)}/_latest.json")
    except FileNotFoundError:
        return None
    copy = Storage(latest["path"])
    found = [pq.read_table(copy.path(name), filesystem=copy.filesystem, partitioning=None) for name in copy.files()]
    rows = pa.concat_tables(found)["id"].to_pylist()
    assert len(rows) == latest["rows"]
    assert latest["position"] == latest["initial_gtid_set"]
    return sorted(rows)


def read_iceberg(lake: Storage, table: TableName) -> list[int] | None:
    """The rows of a table at the newest cut, by plain PyIceberg."""
    catalog = plain_catalog(lake)
    if not catalog.table_exists("cdc.cdc_cuts"):
        return None
    rows = catalog.load_table("cdc.cdc_cuts").scan().to_arrow().to_pylist()
    rows = [row for row in rows if row["table"] == str(table) and row["latest"]]
    if not rows:
        return None
    newest = max(rows, key=lambda row: int(row["cut"]))
    iceberg = catalog.load_table(newest["identifier"])
    assert str(iceberg.metadata.table_uuid) == newest["table_uuid"]
    ids = iceberg.scan(snapshot_id=newest["snapshot_id"]).to_arrow()["id"].to_pylist()
    assert len(ids) == newest["rows"]
    return sorted(ids)


READERS: dict[str, Callable[[Storage, TableName], list[int] | None]] = {
    "iceberg": read_iceberg,
    "parquet": read_parquet,
}
"""By format: the ids in the copy that readers of a table see; None: they see none."""


def only_parquet(lake: Lake, why: str) -> None:
    """Skip a hazard that only the format Parquet has."""
    if lake.format != "parquet":
        pytest.skip(f"{lake.format}: {why}")


class Lake:
    """A lake, and runs that publish into it."""

    def __init__(self, format: str, storage: Storage) -> None:
        self.storage = storage
        self.scratch = storage.folder(SCRATCH)
        self.format = format
        self.options: dict[str, str] = {}
        """Further settings of the lake."""
        self.codecs: tuple[str, ...] = CODECS[:1]
        """The codecs of the files that a run stages, in turns."""

    @property
    def sink(self) -> Sink:
        catalog = settings_of_catalog(self.storage) if self.format == "iceberg" else None
        return open_sink(LakeSettings(self.format, catalog, **self.options), self.storage)

    def files_of(self, publication: Publication, table: TableName) -> Storage:
        """The folder with the files that a run wrote of a table, before they are published."""
        place = publication.tables[TABLES.index(table)].place
        return publication.staging.folder if place is None else Storage(place.folder)

    def stage(self, number: int, count: int = 3, run_id: str = "", before: Publication | None = None) -> Publication:
        """Stage a run at position ``number``. Its copies have that number ``count`` times, each in its own file, and
        the first two files of the copies ``before``."""
        # The order of the run ids is the reverse of the order of their positions.
        run_id = run_id or f"202601{99 - number:02}T000000Z-00000000"
        staging = Staging(self.scratch.folder(run_id))
        places = self.sink.prepare(run_id, [Prepared(table, SCHEMA) for table in TABLES])
        changes = []
        for table in TABLES:
            place, files = places.get(table), []
            target = staging if place is None else Staging(Storage(place.folder))
            schema = SCHEMA if place is None else place.schema(SCHEMA)
            for at in range(count):
                part = f"part-{at:06}"
                name = f"chunks/{folder_name(table)}/{part}" if place is None else f"{part}-{run_id}"
                with target.writer(name, schema, self.codecs[at % len(self.codecs)]) as writer:
                    writer.write(pa.table({"id": [number]}, schema))
                files += writer.files
            kept = () if before is None else before.tables[TABLES.index(table)].added[:2]
            named = tuple(replace(file, name=file.base_name) for file in kept)
            changes.append(TableChange(table, tuple(files), named, before.run_id if before else "", place=place))
        position = f"{SERVER}:1-{number}"
        when = "2026-01-01T00:00:00+00:00"
        return Publication(run_id, staging, tuple(changes), "initial_gtid_set", position, when, when, MYSQL)

    def seen(self) -> list[list[int] | None]:
        return [READERS[self.format](self.storage, table) for table in TABLES]


def heads_fail(patch: pytest.MonkeyPatch, lake: Lake, around: Callable[[Callable[[], Any]], Any]) -> None:
    """Have ``around`` do in place of whatever a sink shows a copy to readers by, which it is given."""
    if lake.format == "iceberg":
        commits_fail(patch, lambda commit, table: around(commit))
        return
    write, conditional = durable.write, ObstoreObjects.write
    patch.setattr(durable, "write", lambda *arguments: around(lambda: write(*arguments)))
    patch.setattr(ObstoreObjects, "write", lambda *arguments: around(lambda: conditional(*arguments)))


def test_a_format_that_does_not_exist_is_refused(storage: Storage) -> None:
    with pytest.raises(ConfigurationError, match="unknown format 'orc'") as refusal:
        open_sink("orc", storage)
    assert "parquet" in refusal.value.hint


def test_all_tables_are_published_by_one_call_and_may_be_published_again(lake: Lake) -> None:
    assert lake.seen() == [None, None]
    publication = lake.stage(5)
    copies = lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]
    assert list(copies) == list(TABLES)
    assert all(copy.is_latest for copy in copies.values())
    # SeaweedFS's catalog puts tables into a bucket of its own.
    lies_in = "s3://tables-" if lake.format == "iceberg" and lake.storage.uri.startswith("s3:") else lake.storage.uri
    assert all(copy.uri.startswith(lies_in) for copy in copies.values())
    assert lake.sink.publish(publication) == copies
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]


@pytest.fixture
def other_disk() -> Iterator[Storage]:
    with tempfile.TemporaryDirectory(prefix="cdc-scratch-", dir="/dev/shm") as folder:
        yield Storage(Path(folder).as_uri())


def test_what_was_staged_in_another_store_is_published_as_it_was_written(lake: Lake, other_disk: Storage) -> None:
    only_parquet(lake, "data files of table formats are written at their final place")
    lake.scratch = other_disk
    publication = lake.stage(5)
    copies = lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]
    assert lake.sink.publish(publication) == copies
    for change in publication.tables:
        assert not [
            one for file in change.added if (one := lake.sink.difference(publication.run_id, change.table, file))
        ]
    for name in lake.storage.folders():
        assert not [file for copy in lake.storage.folders(name) for file in lake.storage.files(copy) if "tmp" in file]


def test_a_file_that_is_damaged_in_another_store_is_published_by_no_call(lake: Lake, other_disk: Storage) -> None:
    only_parquet(lake, "data files of table formats are written at their final place")
    lake.scratch = other_disk
    publication = lake.stage(5)
    damaged = Path(publication.staging.folder.path(publication.tables[1].added[1].name))
    content = bytearray(damaged.read_bytes())
    content[20] ^= 1
    damaged.write_bytes(content)
    for _ in range(2):
        with pytest.raises(FileDamaged, match="checksum"):
            lake.sink.publish(publication)
    assert lake.seen() == [None, None]


def test_an_older_position_is_published_and_does_not_become_the_latest(lake: Lake) -> None:
    lake.sink.publish(lake.stage(5))
    assert not any(copy.is_latest for copy in lake.sink.publish(lake.stage(3)).values())
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]
    assert all(copy.is_latest for copy in lake.sink.publish(lake.stage(7)).values())
    assert lake.seen() == [[7, 7, 7], [7, 7, 7]]


def test_files_of_the_copy_before_are_kept_and_the_new_copy_stands_alone(lake: Lake) -> None:
    first = lake.stage(5)
    lake.sink.publish(first)
    second = lake.stage(7, before=first)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 5)
        with pytest.raises(Interrupted):
            lake.sink.publish(second)
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]
    lake.sink.publish(second)
    assert lake.seen() == [[5, 5, 7, 7, 7]] * 2
    if lake.format == "iceberg":
        # Copies share files, so one that goes leaves those that another one has.
        for change in first.tables:
            lake.sink.withdraw([(first.run_id, change.table)])
            lake.sink.remove(first.run_id, change.table, change.added)
    else:
        for table in TABLES:
            folder = lake.sink.copy_folder(first.run_id, table)
            for name in folder.files():
                folder.delete_file(name)
    lake.sink.publish(second)
    assert lake.seen() == [[5, 5, 7, 7, 7]] * 2


def test_a_kept_file_that_is_gone_before_it_is_taken_over_publishes_nothing(lake: Lake) -> None:
    first = lake.stage(5)
    lake.sink.publish(first)
    second = lake.stage(7, before=first)
    lake.sink.copy_folder(first.run_id, TABLES[0]).delete_file(second.tables[0].kept[0].name)
    with pytest.raises(FileDamaged, match="is gone"):
        lake.sink.publish(second)
    # Of Iceberg, the first cut stands, with a file that somebody deleted.
    assert lake.format == "iceberg" or READERS[lake.format](lake.storage, TABLES[1]) == [5, 5, 5]


def test_what_is_published_is_never_touched_by_later_runs(lake: Lake) -> None:
    first = lake.stage(5)
    lake.sink.publish(first)
    lake.sink.publish(lake.stage(7))
    for change in first.tables:
        assert [lake.sink.difference(first.run_id, change.table, file) for file in change.added] == [""] * 3


def test_a_copy_that_is_removed_takes_nothing_from_the_others(lake: Lake) -> None:
    first = lake.stage(5)
    lake.sink.publish(first)
    second = lake.stage(7, before=first)
    lake.sink.publish(second)
    assert [lake.sink.copies(table) for table in TABLES] == [sorted([first.run_id, second.run_id])] * 2
    assert lake.sink.copies(TableName("shop", "none")) == []
    assert lake.sink.remove(first.run_id, ORDERS, first.tables[0].added) == []
    assert lake.sink.copies(ORDERS) == [second.run_id]
    assert len(lake.sink.copy_folder(first.run_id, ORDERS).files()) == (5 if lake.format == "iceberg" else 0)
    assert lake.seen() == [[5, 5, 7, 7, 7]] * 2
    assert [lake.sink.difference(first.run_id, LINES, file) for file in first.tables[1].added] == [""] * 3
    assert lake.sink.remove(first.run_id, ORDERS, first.tables[0].added) == []


@pytest.mark.slow
def test_a_removal_that_is_interrupted_anywhere_is_completed_by_the_next_call(lake: Lake) -> None:
    number, interrupted = 0, True
    while interrupted:
        number += 1
        publication = lake.stage(number)
        lake.sink.publish(publication)
        # That of the latest copy stays: main names it.
        newer = lake.stage(50 + number, 1) if lake.format == "iceberg" else None
        others = [newer.run_id] if newer else []
        if newer:
            lake.sink.publish(newer)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                lake.sink.withdraw([(publication.run_id, ORDERS)])
                lake.sink.remove(publication.run_id, ORDERS, publication.tables[0].added)
                interrupted = False
            except Interrupted:
                pass
        assert not (newer and interrupted) or publication.run_id in lake.sink.copies(ORDERS)
        lake.sink.withdraw([(publication.run_id, ORDERS)])
        lake.sink.remove(publication.run_id, ORDERS, publication.tables[0].added)
        assert publication.run_id not in lake.sink.copies(ORDERS), f"interrupted at change {number}"
        assert [*others] <= lake.sink.copies(ORDERS)
        if newer:
            assert not [name for name in lake.sink.copy_folder("", ORDERS).files() if publication.run_id in name]
    assert number > 4


def test_what_is_not_of_the_copy_stays_when_it_is_removed(lake: Lake) -> None:
    only_parquet(lake, "the folder of an Iceberg table is shared by all copies, and stays")
    publication = lake.stage(5)
    uri = lake.sink.publish(publication)[ORDERS].uri
    for name in ("notes.txt", "more/notes.txt"):
        Storage(uri).write_text(name, "mine")
    for _ in range(2):
        left = lake.sink.remove(publication.run_id, ORDERS, publication.tables[0].added)
        assert left == [f"{uri}/notes.txt", f"{uri}/more"]
        assert lake.sink.copies(ORDERS) == [publication.run_id]
    assert Storage(uri).files("more") == ["more/notes.txt"]


@pytest.mark.slow
def test_publishing_that_is_interrupted_anywhere_is_completed_by_the_next_call(lake: Lake) -> None:
    lake.sink.publish(lake.stage(1))
    number = 0
    interrupted = True
    while interrupted:
        number += 1
        publication = lake.stage(1 + number, 1)
        with pytest.MonkeyPatch.context() as patch:
            interrupt_at(patch, number)
            try:
                lake.sink.publish(publication)
                interrupted = False
            except Interrupted:
                pass
        # Of each table, readers see one of the two copies completely.
        old = [number] if number > 1 else [1, 1, 1]
        assert all(seen in (old, [1 + number]) for seen in lake.seen())
        # Where all tables are shown by one change, readers never see two positions.
        assert lake.format != "iceberg" or lake.seen()[0] == lake.seen()[1]
        lake.sink.publish(publication)
        assert lake.seen() == [[1 + number], [1 + number]], f"interrupted at change {number}"
        assert lake.sink.unread(publication.run_id, TABLES) == []
    assert number > 4


def test_what_was_interrupted_before_readers_were_led_to_it_is_named(lake: Lake) -> None:
    only_parquet(lake, "what Iceberg's tables do not name goes with `clean`, and their folders are shared")
    publication = lake.stage(5)
    with pytest.MonkeyPatch.context() as patch:
        heads_fail(patch, lake, lambda write: (_ for _ in ()).throw(Interrupted))
        with pytest.raises(Interrupted):
            lake.sink.publish(publication)
    assert lake.seen() == [None, None]
    left = lake.sink.unread(publication.run_id, TABLES)
    assert len(left) == len(TABLES)
    assert all(uri.startswith(lake.storage.uri) for uri in left)


def test_several_tries_may_publish_the_same_at_the_same_time(lake: Lake) -> None:
    publication = lake.stage(5, 12)
    with ThreadPoolExecutor(4) as tries:
        outcomes = list(tries.map(lambda _: lake.sink.publish(publication), range(4)))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert lake.seen() == [[5] * 12, [5] * 12]


def test_runs_that_publish_at_the_same_time_leave_the_newest(lake: Lake) -> None:
    publications = [lake.stage(number) for number in (4, 9, 2, 7)]
    with ThreadPoolExecutor(4) as runs:
        list(runs.map(lake.sink.publish, publications))
    assert lake.seen() == [[9, 9, 9], [9, 9, 9]]


@pytest.mark.parametrize("arrived", [True, False])
def test_what_the_store_does_not_confirm_once_is_looked_for_and_completed(lake: Lake, arrived: bool) -> None:
    unconfirmed: list[bool] = []

    def once(write: Callable[[], Any]) -> Any:
        first = not unconfirmed
        unconfirmed.append(first)
        result = write() if arrived or not first else None
        if first:
            raise StorageUnavailable("timed out")
        return result

    publication = lake.stage(5)
    with pytest.MonkeyPatch.context() as patch:
        heads_fail(patch, lake, once)
        copies = lake.sink.publish(publication)
    assert len(unconfirmed) >= len(TABLES)
    assert all(copy.is_latest for copy in copies.values())
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]


@pytest.mark.slow
@pytest.mark.parametrize("arrived", [True, False])
def test_what_the_store_does_not_confirm_is_unknown_and_completed_by_the_next_call(lake: Lake, arrived: bool) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)

    def unconfirmed(write: Callable[[], Any]) -> None:
        if arrived:
            write()
        raise StorageUnavailable("timed out")

    with pytest.MonkeyPatch.context() as patch:
        heads_fail(patch, lake, unconfirmed)
        if arrived and (lake.format == "iceberg" or lake.storage.uri.startswith("s3:")):
            # The table, or the head in the store, shows whether the commit has landed.
            lake.sink.publish(publication)
        else:
            with pytest.raises(CommitUnknown, match=r"timed out|StorageUnavailable"):
                lake.sink.publish(publication)
    assert all(seen in ([3, 3, 3], [5, 5, 5]) for seen in lake.seen())
    lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]


@pytest.mark.parametrize("what", ["gone", "cut"])
def test_a_file_that_is_not_what_its_record_says_is_published_by_no_call(lake: Lake, what: str) -> None:
    lake.sink.publish(lake.stage(3))
    publication = lake.stage(5)
    staged = publication.tables[1].added[0]
    folder = lake.files_of(publication, TABLES[1])
    with folder.filesystem.open_input_stream(folder.path(staged.name)) as stream:
        data = stream.read()
    folder.delete_file(staged.name)
    if what == "cut":
        with folder.filesystem.open_output_stream(folder.path(staged.name)) as stream:
            stream.write(data[:100])
    for _ in range(2):
        with pytest.raises(FileDamaged, match="is gone" if what == "gone" else "has 100 bytes"):
            lake.sink.publish(publication)
        assert lake.seen() == [[3, 3, 3], [3, 3, 3]]


def test_another_source_s_copies_are_left_alone(lake: Lake) -> None:
    lake.sink.publish(lake.stage(3))
    other = replace(lake.stage(5), position_key="initial_lsn", position="0/9", source=POSTGRES)
    with pytest.raises(ConfigurationError, match="another source"):
        lake.sink.check_source(TABLES, POSTGRES, Lsn(9))
    with pytest.raises(ConfigurationError, match="another source"):
        lake.sink.publish(other)
    assert lake.seen() == [[3, 3, 3], [3, 3, 3]]
    lake.sink.check_source(TABLES, MYSQL, GtidSet.parse(f"{SERVER}:1-5"))


def test_a_file_is_told_apart_from_its_record_where_it_was_published(lake: Lake) -> None:
    publication = lake.stage(5)
    change = publication.tables[0]
    lake.sink.publish(publication)
    assert lake.sink.difference(publication.run_id, change.table, change.added[0]) == ""
    other = replace(change.added[0], rows=7)
    assert "1 row, not 7" in lake.sink.difference(publication.run_id, change.table, other)
    missing = replace(change.added[0], name="chunks/x/part-none.parquet")
    assert lake.sink.difference(publication.run_id, change.table, missing) == "it is gone"


def test_a_lake_that_cannot_be_written_to_is_a_publication_to_be_completed(tmp_path: Path) -> None:
    lake = Lake("parquet", Storage(tmp_path.as_uri()))
    publication = lake.stage(5)
    in_the_way = Path(lake.storage.path(folder_name(ORDERS)))
    in_the_way.write_text("a file where the folder should be")
    with pytest.raises(PublishIncomplete):
        lake.sink.publish(publication)
    in_the_way.unlink()
    lake.sink.publish(publication)
    assert lake.seen() == [[5, 5, 5], [5, 5, 5]]


def test_every_file_is_as_its_writer_left_it(tmp_path: Path) -> None:
    """Publishing changes no byte of the files that were checked before the commit."""
    lake = Lake("parquet", Storage(tmp_path.as_uri()))
    publication = lake.stage(5)
    staged = publication.staging.folder
    before = [Path(staged.path(file.name)).read_bytes() for file in publication.tables[0].added]
    copy = Storage(lake.sink.publish(publication)[ORDERS].uri)
    after = [Path(copy.path(file.base_name)).read_bytes() for file in publication.tables[0].added]
    assert after == before


def test_readers_are_told_of_the_latest_copy_and_of_all_its_files(lake: Lake) -> None:
    assert lake.sink.latest(ORDERS) is None
    as_of, missed = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"
    publication = replace(lake.stage(5, count=4), as_of=as_of, missed_as_of=missed)
    lake.sink.publish(publication)
    lake.sink.publish(lake.stage(3))
    told = lake.sink.latest(ORDERS)
    assert told is not None
    assert (told.table, told.run_id, told.rows, len(told.files)) == ("shop.orders", publication.run_id, 4, 4)
    assert (told.position, told.source) == (publication.position, MYSQL)
    assert (told.as_of, told.missed_as_of) == (as_of, missed)
    for uri in told.files:
        folder, _, name = uri.rpartition("/")
        assert Storage(folder).size(name) > 0
