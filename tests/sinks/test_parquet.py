"""Files of bounded size, one schema in all of them, and a publication that is never half seen."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import TableName
from airflow_provider_cdc.errors import FileDamaged, PublishIncomplete
from airflow_provider_cdc.sinks import parquet
from airflow_provider_cdc.sinks.base import StagedFile, folder_name
from airflow_provider_cdc.sinks.parquet import ParquetSink, ParquetWriter, place_of

TABLE = TableName("shop", "orders")
SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.dictionary(pa.int16(), pa.string())), ("text", pa.string())])


@pytest.fixture
def target(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.fixture
def run(target: Storage) -> Storage:
    return target.folder("_runs", "r1")


def rows(start: int, count: int, states: list[str] | None = None) -> pa.RecordBatch:
    states = states or ["new", "paid"]
    numbers = range(start, start + count)
    index = pa.array([number % len(states) for number in numbers], pa.int16())
    columns = [
        pa.array(numbers),
        pa.DictionaryArray.from_arrays(index, states),
        pa.array([f"row {n}" for n in numbers]),
    ]
    return pa.record_batch(columns, schema=SCHEMA)


def stage(target: Storage, run: Storage, name: str, *batches: pa.RecordBatch) -> list[StagedFile]:
    with ParquetSink(target).writer(run, name, SCHEMA) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.files


def fail_after(write: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> None:
    write(batch)
    raise RuntimeError


def test_files_and_row_groups_are_bounded_and_hold_every_row_once(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 100)
    writer = ParquetWriter(run, "chunks/t/part-000000", SCHEMA, file_bytes=4000)
    for start in range(0, 1000, 30):
        writer.write(rows(start, 30))
    writer.close()
    assert len(writer.files) > 2
    read = []
    for file in writer.files:
        metadata = pq.read_metadata(run.path(file.name))
        assert file.bytes == run.size(file.name)
        assert file.rows == metadata.num_rows
        assert all(metadata.row_group(group).num_rows <= 100 for group in range(metadata.num_row_groups))
        read += pq.read_table(run.path(file.name))["id"].to_pylist()
    assert read == list(range(1020))


def test_a_row_group_is_bounded_in_bytes_too(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_BYTES", 10_000)
    schema = pa.schema([("text", pa.string())])
    writer = ParquetWriter(run, "chunks/t/part-000000", schema)
    writer.write(pa.record_batch([["x" * 1000] * 95], schema=schema))
    writer.write(pa.record_batch([["y" * 50_000]], schema=schema))
    writer.close()
    metadata = pq.read_metadata(run.path(writer.files[0].name))
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 10
    assert metadata.num_rows == 96


def test_values_survive_when_every_batch_has_a_dictionary_of_its_own(target: Storage, run: Storage) -> None:
    files = stage(target, run, "chunks/t/p", rows(0, 3, ["a", "b"]), rows(3, 3, ["c", "a"]))
    table = pq.read_table(run.path(files[0].name))
    assert table.schema.equals(SCHEMA)
    assert table["state"].to_pylist() == ["a", "b", "a", "a", "c", "a"]


def test_columns_without_a_value_and_files_without_a_row_have_the_schema(target: Storage, run: Storage) -> None:
    nothing = pa.record_batch([pa.nulls(2, field.type) for field in SCHEMA], schema=SCHEMA)
    with_nulls = stage(target, run, "chunks/t/p", nothing)[0]
    empty = ParquetSink(target).write_empty(run, "staged/t/part-empty", SCHEMA)
    for file, count in ((with_nulls, 2), (empty, 0)):
        table = pq.read_table(run.path(file.name))
        assert table.schema.equals(SCHEMA)
        assert (table.num_rows, file.rows) == (count, count)


def test_no_rows_make_no_file(target: Storage, run: Storage) -> None:
    assert stage(target, run, "chunks/t/p", rows(0, 0)) == []


def test_a_dictionary_is_used_only_where_values_repeat(target: Storage, run: Storage) -> None:
    (file,) = stage(target, run, "chunks/t/p", rows(0, 5000))
    group = pq.read_metadata(run.path(file.name)).row_group(0)
    used = {group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(3)}
    assert used == {"id": False, "state": True, "text": False}


def test_lists_are_written_and_read_with_the_schema_they_had(run: Storage) -> None:
    kind = pa.list_(pa.field("element", pa.float32(), nullable=False))
    schema = pa.schema([("v", kind)])
    batch = pa.record_batch([pa.array([[1.5, -0.0], None, []], kind)], schema=schema)
    writer = ParquetWriter(run, "chunks/t/part-000000", schema)
    writer.write(batch)
    writer.close()
    (file,) = writer.files
    found = pq.read_table(run.path(file.name))
    assert found.schema == schema
    assert str(found["v"].to_pylist()) == "[[1.5, -0.0], None, []]"


def test_a_writer_that_fails_leaves_no_open_file(
    target: Storage, run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 2)
    writer = ParquetSink(target).writer(run, "chunks/t/p", SCHEMA)
    with pytest.raises(RuntimeError), writer as files:
        fail_after(files.write, rows(0, 5))
    assert files.files == []
    assert run.files("chunks/t") == []


def test_placing_moves_the_files_and_may_be_repeated(target: Storage, run: Storage) -> None:
    sink = ParquetSink(target)
    files = [*stage(target, run, "chunks/t/part-0", rows(0, 2)), *stage(target, run, "staged/t/part-1", rows(2, 2))]
    uri = sink.place(run, TABLE, "r1", files)
    assert uri == f"{target.uri}/shop.orders/snapshot=r1"
    assert sink.place(run, TABLE, "r1", files) == uri
    assert pq.read_table(Storage(uri).path(), partitioning=None)["id"].to_pylist() == [0, 1, 2, 3]
    assert run.files("chunks/t") == []


def test_no_file_that_is_in_a_place_is_ever_touched(target: Storage, run: Storage) -> None:
    """What is there and not of this copy was put there by somebody else, who may be reading it."""
    sink = ParquetSink(target)
    theirs = Path(target.path("shop.orders/snapshot=r1/part-theirs.parquet"))
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    (theirs.parent / "_SUCCESS").write_text("")
    files = stage(target, run, "chunks/t/part-1", rows(5, 2))
    with pytest.raises(FileDamaged, match=r"not of it: shop\.orders/snapshot=r1/part-theirs\.parquet"):
        sink.place(run, TABLE, "r1", files)
    assert theirs.read_text() == "theirs"
    theirs.unlink()
    assert sink.place(run, TABLE, "r1", files)


def test_several_tries_may_place_the_same_files_at_the_same_time(target: Storage, run: Storage) -> None:
    sink = ParquetSink(target)
    files = [file for at in range(60) for file in stage(target, run, f"chunks/t/part-{at}", rows(at, 1))]
    with ThreadPoolExecutor(4) as tries:
        uris = list(tries.map(lambda _: sink.place(run, TABLE, "r1", files), range(4)))
    (uri,) = set(uris)
    assert sorted(Storage(uri).files()) == sorted(file.base_name for file in files)


def test_a_staged_file_that_is_gone_cannot_be_published(target: Storage, run: Storage) -> None:
    files = stage(target, run, "chunks/t/part-0", rows(0, 2))
    run.delete_file(files[0].name)
    with pytest.raises(FileDamaged, match="is gone"):
        ParquetSink(target).place(run, TABLE, "r1", files)


def test_a_file_that_was_cut_short_cannot_be_published(target: Storage, run: Storage) -> None:
    files = stage(target, run, "chunks/t/part-0", rows(0, 2))
    os.truncate(run.path(files[0].name), 100)
    with pytest.raises(FileDamaged, match="has 100 bytes"):
        ParquetSink(target).place(run, TABLE, "r1", files)


@pytest.mark.parametrize(
    ("what", "says"),
    [("cut", "bytes, not"), ("flipped", "checksum"), ("gone", "gone"), ("counted", "rows, not"), ("none", "")],
)
def test_whatever_became_of_a_file_is_told(what: str, says: str, target: Storage, run: Storage) -> None:
    (file,) = stage(target, run, "chunks/t/part-0", rows(0, 500))
    path = Path(run.path(file.name))
    content = bytearray(path.read_bytes())
    assert file.checksum == f"{zlib.crc32(content):08x}"
    if what == "cut":
        path.write_bytes(content[:-1])
    elif what == "flipped":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif what == "gone":
        path.unlink()
    elif what == "counted":
        file = replace(file, rows=file.rows + 1)
    found = ParquetSink(target).check([(run, file.name)], file)
    assert says in found
    assert bool(found) == bool(says)


def test_a_file_is_found_where_it_was_moved_to(target: Storage, run: Storage) -> None:
    sink = ParquetSink(target)
    (file,) = stage(target, run, "chunks/t/part-0", rows(0, 5))
    place = f"{place_of(TABLE, 'r1')}/{file.base_name}"
    sink.place(run, TABLE, "r1", [file])
    assert sink.check([(run, file.name), (target, place)], file) == ""
    os.truncate(target.path(place), 10)
    assert "10 bytes" in sink.check([(run, file.name), (target, place)], file)


def test_a_place_that_cannot_be_written_to_is_a_publication_to_be_completed(target: Storage, run: Storage) -> None:
    files = stage(target, run, "chunks/t/part-0", rows(0, 2))
    Path(target.path("shop.orders")).write_text("a file where the folder should be")
    with pytest.raises(PublishIncomplete):
        ParquetSink(target).place(run, TABLE, "r1", files)


def test_the_latest_copy_never_goes_back(target: Storage) -> None:
    sink = ParquetSink(target)
    latest = Path(target.path("shop.orders/_latest.json"))
    assert sink.announce(TABLE, {"run_id": "20260102T000000Z-aaaaaaaa", "rows": 2})
    assert not sink.announce(TABLE, {"run_id": "20260101T000000Z-ffffffff", "rows": 1})
    assert json.loads(latest.read_text())["rows"] == 2
    assert sink.announce(TABLE, {"run_id": "20260102T000000Z-aaaaaaaa", "rows": 2})
    assert sink.announce(TABLE, {"run_id": "20260103T000000Z-00000000", "rows": 3})
    assert json.loads(latest.read_text())["rows"] == 3


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", "größe", "a b", "a%2Fb", "_x", "a~b", "a:b+c"])
def test_odd_names_become_one_safe_folder_each(target: Storage, run: Storage, name: str) -> None:
    table = TableName("shop", name)
    folder = folder_name(table)
    assert folder.count(".") == 1
    assert not set(folder) & set("/:+% ")
    uri = ParquetSink(target).place(run, table, "r1", stage(target, run, f"chunks/{folder}/part-0", rows(0, 2)))
    filesystem, path = fs.FileSystem.from_uri(uri)
    assert pq.read_table(path, filesystem=filesystem, partitioning=None).num_rows == 2


def test_different_tables_have_different_folders() -> None:
    names = [("a", "b.c"), ("a.b", "c"), ("a~2Eb", "c"), ("A", "b"), ("a", "b")]
    assert len({folder_name(TableName(*name)) for name in names}) == len(names)
