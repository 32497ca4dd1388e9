"""A touched row is removed from its file, whatever the type of its key, and no other row is."""

from __future__ import annotations

import datetime as dt
import json
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.digest.digest import digest
from airflow_provider_cdc.core.parquet import writer as parquet_writer
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.net_change import bring_counts
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import CopyMismatch
from airflow_provider_cdc.jobs.apply import rewind
from airflow_provider_cdc.jobs.apply import touched_rows as touched
from airflow_provider_cdc.jobs.apply.touched_rows import MarkedFile
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles
from tests.seeds import examples

EPOCH = dt.datetime(1970, 1, 1)
KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "signed": (pa.int64(), [-(2**63), -5, -1, 0, 1, 7, 2**40, 2**63 - 1]),
    "narrow": (pa.int8(), [-128, -1, 0, 1, 127]),
    "unsigned": (pa.uint64(), [0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]),
    "unsigned narrow": (pa.uint32(), [0, 1, 2**31 - 1, 2**31, 2**32 - 1]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (pa.timestamp("us"), [EPOCH - dt.timedelta(days=9), EPOCH, EPOCH + dt.timedelta(microseconds=1)]),
    "instant": (pa.timestamp("us", "UTC"), [0, 1, 2**40]),
    "string": (pa.string(), ["", "A", "a", "ab", "Ä", "\U0001f600", "z" * 5000]),
    "binary": (pa.binary(), [b"", b"\0", b"\x7f", b"\x80", b"\xff\xff"]),
    "decimal": (pa.decimal128(20, 2), [Decimal("-1.00"), Decimal("0.00"), Decimal("0.01"), Decimal("99.99")]),
    "double": (pa.float64(), [-math.inf, -1.5, -0.0, 0.0, 1.5, math.nan]),
    "bool": (pa.bool_(), [False, True]),
    "duration": (pa.duration("us"), [-5, 0, 5]),
    "enum": (pa.dictionary(pa.int16(), pa.string()), ["a", "b", "c"]),
}


class StubSource:
    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def arrow_schema(self, table: Table) -> pa.Schema:
        return self.schema

    def decode_images(
        self, table: Table, images: pa.BinaryArray, nulled: dict[str, int] | None = None
    ) -> pa.RecordBatch:
        rows = [json.loads(image) for image in images.to_pylist()]
        return pa.record_batch(list(zip(*rows, strict=True)), schema=self.schema)


def take_out(
    folder: Path, schema: pa.Schema, key: tuple[str, ...], rows: pa.Table, touched: pa.RecordBatch, counts: list[int]
) -> tuple[pa.Table, rewind.RewindOutcome]:
    """The rows that stay, and the outcome."""
    run = Storage(str(folder))
    staging = Staging(run)
    with staging.writer("chunks/t/part-000000", schema) as writer:
        writer.write(rows)
    encoded = row_bytes.encode(touched, list(key) or schema.names)
    size = len(encoded)
    images = [None if key else json.dumps(list(row.values())).encode() for row in touched.to_pylist()]
    now = pa.array(images, pa.binary())
    schema_of_changes = net_change_files.TOWARDS_SCHEMA
    changes = pa.table(
        [
            [0] * size,
            encoded,
            [1] * size,
            [0] * size,
            pa.nulls(size, pa.binary()),
            counts,
            pa.nulls(size, pa.string()),
            now,
        ],
        schema=schema_of_changes.remove(schema_of_changes.get_field_index("bucket")),
    )
    with staging.writer("delta/net", schema_of_changes) as delta:
        delta.write(net_change_files.in_buckets(changes))
    table = Table(TableName("s", "t"), tuple(Column(name, "", True) for name in schema.names), key)
    change = NetChangeFiles(tuple(delta.files), {0: net_change_files.Count(size)})
    task = rewind.RewindTask(staging, StubSource(schema), (RunTable(table, "", ""),), change)  # type: ignore[arg-type]
    outcome = task(rewind.Rewind(0, tuple(writer.files)))
    left = [*outcome.adopted, *outcome.written]
    return pa.concat_tables([schema.empty_table(), *(pq.read_table(run.path(file.name)) for file in left)]), outcome


@pytest.mark.parametrize("name", KEYS)
@settings(
    deadline=None,
    max_examples=examples(12),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_touched_keys_are_taken_out(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_ROWS", 2)
    monkeypatch.setattr(parquet_writer.ParquetWriter.__init__, "__defaults__", (600,))
    kind, values = KEYS[name]
    present = data.draw(st.lists(st.sampled_from(values), unique_by=repr, min_size=1))
    gone = data.draw(st.lists(st.sampled_from(values), unique_by=repr))
    monkeypatch.setattr(touched, "BLOCK_ROWS", data.draw(st.sampled_from([1, 3, 1000])))
    monkeypatch.setattr(touched, "_FEW_ROWS", data.draw(st.sampled_from([1, 1000])))
    schema = pa.schema([("n", pa.int32()), ("k", kind)])
    rows = pa.table([pa.array(range(len(present)), pa.int32()), pa.array(present, kind)], schema=schema)
    changed = pa.record_batch({"k": pa.array(gone, kind)})
    left, outcome = take_out(tmp_path_factory.mktemp("run"), schema, ("k",), rows, changed, [0] * len(gone))
    expected = [number for number, value in enumerate(present) if repr(value) not in map(repr, gone)]
    assert sorted(left["n"].to_pylist()) == expected
    assert left.schema.equals(schema)
    assert (outcome.replaced == 0) == (len(expected) == len(present))


def test_a_composite_key_matches_as_a_whole(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.string()), ("b", pa.int32()), ("v", pa.string())])
    rows = pa.table([["x", "x", "y"], [1, 2, 1], ["one", "two", "three"]], schema=schema)
    changed = pa.record_batch({"a": ["x", "y"], "b": pa.array([2, 2], pa.int32())})
    left, _ = take_out(tmp_path, schema, ("a", "b"), rows, changed, [0, 0])
    assert left["v"].to_pylist() == ["one", "three"]


@pytest.mark.parametrize("ascending", [True, False])
def test_every_row_is_found_whose_first_key_value_other_rows_have_too(ascending: bool, tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.uint64()), ("b", pa.int32())])
    values = [0, 5, 2**53, 2**53 + 1, 2**64 - 1]
    pairs = [(value, number) for value in values for number in range(40)]
    gone = [(5, 0), (5, 39), (2**53 + 1, 7), (2**64 - 1, 20), (2**64 - 1, 40)]
    rows = pa.table(list(zip(*(pairs if ascending else reversed(pairs)), strict=True)), schema=schema)
    changed = pa.record_batch(list(zip(*gone, strict=True)), schema=schema)
    left, _ = take_out(tmp_path, schema, ("a", "b"), rows, changed, [0] * len(gone))
    found = zip(left["a"].to_pylist(), left["b"].to_pylist(), strict=True)
    assert sorted(found) == [pair for pair in pairs if pair not in gone]


def test_a_file_without_touched_rows_is_adopted_and_an_emptied_one_vanishes(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64())])
    rows = pa.table([[1, 5]], schema=schema)
    _, between = take_out(tmp_path / "a", schema, ("k",), rows, pa.record_batch({"k": [3]}), [0])
    assert (len(between.adopted), between.written, between.replaced) == (1, (), 0)
    _, emptied = take_out(tmp_path / "b", schema, ("k",), rows, pa.record_batch({"k": [1, 5]}), [0, 0])
    assert (emptied.adopted, emptied.written, emptied.replaced) == ((), (), 1)


@pytest.mark.slow
@settings(
    deadline=None,
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    present=st.lists(
        st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "p"])), min_size=1, max_size=12
    ),
    data=st.data(),
)
def test_of_a_keyless_table_as_many_copies_are_taken_out_and_put_back_as_the_change_counts(
    present: list[tuple[Any, Any]],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_ROWS", 3)
    monkeypatch.setattr(touched, "BLOCK_ROWS", data.draw(st.sampled_from([1, 5, 1000])))
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    copies = Counter(present)
    counts = {row: data.draw(st.integers(-count, 3)) for row, count in [*copies.items(), ((7, "new"), 0)]}
    changed = pa.record_batch(list(zip(*counts, strict=True)), schema=schema)
    rows = pa.table(list(zip(*present, strict=True)), schema=schema)
    left, _ = take_out(tmp_path_factory.mktemp("run"), schema, (), rows, changed, list(counts.values()))
    expected = bring_counts(copies, counts)
    assert Counter(zip(*(column.to_pylist() for column in left.columns), strict=True)) == expected


def test_a_row_that_the_change_removes_and_the_copy_lacks_stops_the_run(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.int32())])
    rows = pa.table([[1, 1, 2]], schema=schema)
    with pytest.raises(CopyMismatch, match=r"s\.t: the net change removes 1 row "):
        take_out(tmp_path, schema, (), rows, pa.record_batch([[1]], schema=schema), [-3])


def test_files_of_a_row_group_that_cannot_hold_the_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_writer, "ROW_GROUP_ROWS", 2)
    schema = pa.schema([("k", pa.uint64())])
    rows = pa.table([pa.array([1, 2, 2**63, 2**64 - 1], pa.uint64())], schema=schema)
    read: list[int] = []
    original = MarkedFile.read

    def noted(self: MarkedFile, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        if columns is not None:
            read.append(group)
        return original(self, group, columns)

    monkeypatch.setattr(MarkedFile, "read", noted)
    left, _ = take_out(tmp_path, schema, ("k",), rows, pa.record_batch({"k": pa.array([2**63], pa.uint64())}), [0])
    assert read == [1]
    assert left["k"].to_pylist() == [1, 2, 2**64 - 1]


def test_names_of_files_that_were_written_anew_are_new(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.int64())])
    rows = pa.table([[1, 5]], schema=schema)
    _, outcome = take_out(tmp_path, schema, ("k",), rows, pa.record_batch({"k": [1]}), [0])
    (written,) = outcome.written
    assert written.base_name.startswith("part-000000-")
    assert written.base_name != "part-000000-x-0.parquet"
    content = (tmp_path / written.name).read_bytes()
    facts: dict[str, Any] = {"digest": digest(rows.slice(1)).hex, "keys": ("5", "5")}
    assert written == StagedFile(written.name, 1, len(content), f"{zlib.crc32(content):08x}", **facts)
