"""A file that is composed of pieces of another file reads like a file that is written anew."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_cdc.core.parquet import splice
from airflow_provider_cdc.core.parquet.splice import Footer, SplicedFile, UnknownFooter
from airflow_provider_cdc.core.parquet.writer import ParquetWriter, StagedFile
from airflow_provider_cdc.core.run.staging import Staging, difference
from airflow_provider_cdc.core.storage.folder import Storage

KINDS: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "flag": pa.bool_(),
    "small": pa.uint8(),
    "huge": pa.uint64(),
    "ratio": pa.float64(),
    "amount": pa.decimal128(30, 6),
    "name": pa.string(),
    "body": pa.binary(),
    "mood": pa.dictionary(pa.int8(), pa.string()),
    "day": pa.date32(),
    "at": pa.timestamp("us", "UTC"),
    "span": pa.duration("us"),
}
SCHEMA = pa.schema([pa.field(name, kind, nullable=name != "id") for name, kind in KINDS.items()])


def drawn(chance: random.Random, kind: pa.DataType, rows: int) -> pa.Array:
    def value() -> Any:
        if pa.types.is_boolean(kind):
            return chance.random() < 0.5
        if pa.types.is_floating(kind):
            return chance.choice([0.0, -0.0, float("nan"), chance.random()])
        if pa.types.is_string(kind) or pa.types.is_dictionary(kind):
            return chance.choice(["", "calm", "glad", "ü" * chance.randrange(4)])
        if pa.types.is_binary(kind):
            return chance.randbytes(chance.randrange(200))
        return chance.randrange(200)

    return (
        pa.array([value() if chance.random() < 0.8 else None for _ in range(rows)])
        .cast(pa.string() if pa.types.is_dictionary(kind) else pa.int64() if _counted(kind) else kind)
        .cast(_middle(kind))
        .cast(kind)
    )


def _counted(kind: pa.DataType) -> bool:
    return not (
        pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_dictionary(kind)
    )


def _middle(kind: pa.DataType) -> pa.DataType:
    """Dates are made of 32 bits."""
    return pa.int32() if pa.types.is_date(kind) else pa.string() if pa.types.is_dictionary(kind) else kind


def table(chance: random.Random, rows: int) -> pa.Table:
    columns = [drawn(chance, kind, rows) for kind in KINDS.values()]
    return pa.table([pa.array(range(rows), pa.int64()), *columns[1:]], SCHEMA)


def written(folder: Storage, groups: list[pa.Table]) -> StagedFile:
    writer = ParquetWriter(folder, "before", SCHEMA)
    for group in groups:
        writer.write(group)
        writer.flush()
    writer.close()
    (file,) = writer.files
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Storage:
    return Storage(tmp_path.as_uri())


@pytest.mark.parametrize("seed", range(12))
def test_no_value_differs_whatever_is_put_in(folder: Storage, seed: int) -> None:
    chance = random.Random(seed)
    groups = [table(chance, chance.choice([1, 7, 500])) for _ in range(chance.randrange(1, 5))]
    before = written(folder, groups)
    expected = []
    with Staging(folder).spliced("after", SCHEMA, folder, before.name) as spliced:
        for group in groups:
            anew = table(chance, group.num_rows).select(chance.sample(list(KINDS), chance.randrange(len(KINDS) + 1)))
            spliced.write(anew)
            for name in anew.column_names:
                group = group.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), anew[name])
            expected.append(group)
        after = spliced.close()
    assert not difference(folder, after.name, after)
    assert after.rows == before.rows
    file = pq.ParquetFile(folder.path(after.name))
    assert file.schema_arrow.equals(SCHEMA, check_metadata=True)
    plain = written(folder.folder("plain"), expected)
    metadata = pq.read_metadata(folder.path(after.name))
    wanted = pq.read_metadata(folder.folder("plain").path(plain.name))
    for number, group in enumerate(expected):
        # Compare bits: `equals` does not distinguish -0.0 from 0.0, and no NaN equals itself.
        assert values(file.read_row_group(number)) == values(group)
        for column in range(len(KINDS)):
            statistics = metadata.row_group(number).column(column).statistics
            assert statistics == wanted.row_group(number).column(column).statistics
    assert metadata.num_rows == wanted.num_rows


def values(rows: pa.Table) -> list[list[str]]:
    return [[repr(value) for value in column.to_pylist()] for column in rows.columns]


def test_the_same_file_again_is_the_same_bytes(folder: Storage) -> None:
    before = written(folder, [table(random.Random(1), 300), table(random.Random(2), 300)])
    with Staging(folder).spliced("after", SCHEMA, folder, before.name) as spliced:
        spliced.write(pa.table({}))
        spliced.write(pa.table({}))
        after = spliced.close()
    assert after.checksum == before.checksum
    assert Path(folder.path(after.name)).read_bytes() == Path(folder.path(before.name)).read_bytes()


def test_what_fails_half_way_leaves_nothing(folder: Storage) -> None:
    before = written(folder, [table(random.Random(1), 30), table(random.Random(2), 30)])

    def half() -> None:
        with Staging(folder).spliced("after", SCHEMA, folder, before.name) as spliced:
            spliced.write(pa.table({}))
            spliced.close()

    with pytest.raises(ValueError, match="1 row groups are left"):
        half()
    assert folder.files() == [before.name]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"write_page_index": True}, id="page index"),
        pytest.param({"version": "1.0"}, id="another version of the format"),
        pytest.param({"store_schema": True}, id="lists"),
    ],
)
def test_a_file_that_is_written_in_another_way_is_not_taken_apart(folder: Storage, options: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64())])
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    if "store_schema" in options:
        schema = pa.schema([("id", pa.list_(pa.int64()))])
        rows = pa.table({"id": pa.array([[1], [2, 3]])}, schema)
    pq.write_table(rows, folder.path("other.parquet"), **options)
    with pytest.raises(UnknownFooter):
        SplicedFile(folder, "after", schema, folder, "other.parquet")
    assert folder.files() == ["other.parquet"]


def test_a_column_of_another_type_is_refused(folder: Storage) -> None:
    before = written(folder, [table(random.Random(1), 3)])
    with pytest.raises(UnknownFooter):
        SplicedFile(folder, "after", SCHEMA.remove(1), folder, before.name)
    rows = pa.table({"small": pa.array([1, 2, 3], pa.int64())})
    with Staging(folder).spliced("after", SCHEMA, folder, before.name) as spliced:
        with pytest.raises(ValueError, match="another type"):
            spliced.write(rows)
        spliced.abort()


def test_a_footer_with_more_than_is_known_here_is_refused(folder: Storage) -> None:
    before = written(folder, [table(random.Random(1), 3)])
    with folder.filesystem.open_input_file(folder.path(before.name)) as stream:
        footer = splice._footer_of(stream)
    data = footer.encoded()
    for cut in range(0, len(data), 7):
        with pytest.raises(UnknownFooter):
            Footer.parse(data[:cut])
    with pytest.raises(UnknownFooter):
        Footer.parse(data + b"\0")


def test_the_file_and_its_name_survive_a_crash(folder: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    before = written(folder, [table(random.Random(1), 3)])
    synced: list[str] = []
    monkeypatch.setattr(Storage, "sync", lambda self, name="": synced.append(name))
    with Staging(folder).spliced("staged/after", SCHEMA, folder, before.name) as spliced:
        spliced.write(pa.table({}))
        after = spliced.close()
    assert synced == [after.name, "staged"]
