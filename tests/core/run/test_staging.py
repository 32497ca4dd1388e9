"""Staged files are of bounded size, have one schema, and match their records."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.parquet import writer as parquet_writer
from airflow_provider_cdc.core.parquet.writer import ParquetWriter
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage.folder import Storage

SCHEMA = pa.schema([("id", pa.int64()), ("state", pa.dictionary(pa.int16(), pa.string())), ("text", pa.string())])


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


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


def stage(run: Storage, name: str, *batches: pa.RecordBatch) -> list[StagedFile]:
    with Staging(run).writer(name, SCHEMA) as writer:
        for batch in batches:
            writer.write(batch)
    return writer.files


def fail_after(write: Callable[[pa.RecordBatch], None], batch: pa.RecordBatch) -> None:
    write(batch)
    raise RuntimeError


def test_files_and_row_groups_are_bounded_and_hold_every_row_once(
    run: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_ROWS", 100)
    writer = ParquetWriter(run, "chunks/t/part-000000", SCHEMA, file_bytes=2000)
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
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_BYTES", 10_000)
    schema = pa.schema([("text", pa.string())])
    writer = ParquetWriter(run, "chunks/t/part-000000", schema)
    writer.write(pa.record_batch([["x" * 1000] * 95], schema=schema))
    writer.write(pa.record_batch([["y" * 50_000]], schema=schema))
    writer.close()
    metadata = pq.read_metadata(run.path(writer.files[0].name))
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 10
    assert metadata.num_rows == 96


def test_values_survive_when_every_batch_has_a_dictionary_of_its_own(run: Storage) -> None:
    files = stage(run, "chunks/t/p", rows(0, 3, ["a", "b"]), rows(3, 3, ["c", "a"]))
    table = pq.read_table(run.path(files[0].name))
    assert table.schema.equals(SCHEMA)
    assert table["state"].to_pylist() == ["a", "b", "a", "a", "c", "a"]


def test_columns_without_a_value_and_files_without_a_row_have_the_schema(run: Storage) -> None:
    nothing = pa.record_batch([pa.nulls(2, field.type) for field in SCHEMA], schema=SCHEMA)
    with_nulls = stage(run, "chunks/t/p", nothing)[0]
    empty = Staging(run).write_empty("staged/t/part-empty", SCHEMA)
    for file, count in ((with_nulls, 2), (empty, 0)):
        table = pq.read_table(run.path(file.name))
        assert table.schema.equals(SCHEMA)
        assert (table.num_rows, file.rows) == (count, count)


def test_no_rows_make_no_file(run: Storage) -> None:
    assert stage(run, "chunks/t/p", rows(0, 0)) == []


def test_a_dictionary_is_used_only_where_values_repeat(run: Storage) -> None:
    (file,) = stage(run, "chunks/t/p", rows(0, 5000))
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


def test_a_writer_that_fails_leaves_no_open_file(run: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_ROWS", 2)
    writer = Staging(run).writer("chunks/t/p", SCHEMA)
    with pytest.raises(RuntimeError), writer as files:
        fail_after(files.write, rows(0, 5))
    assert files.files == []
    assert run.files("chunks/t") == []


@pytest.mark.parametrize(
    ("what", "says"),
    [("cut", "bytes, not"), ("flipped", "checksum"), ("gone", "gone"), ("counted", "rows, not"), ("none", "")],
)
def test_whatever_became_of_a_file_is_told(what: str, says: str, run: Storage) -> None:
    (file,) = stage(run, "chunks/t/part-0", rows(0, 500))
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
    found = Staging(run).difference(file)
    assert says in found
    assert bool(found) == bool(says)
