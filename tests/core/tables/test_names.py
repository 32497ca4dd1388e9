"""Every table has its own folder, whatever its name."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_provider_cdc.core.copies.removal import check_not_removed, mark
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import WHOLE, selection_of
from airflow_provider_cdc.core.tables.table import NAME_BYTES, CopyName, TableName, folder_name
from airflow_provider_cdc.errors import ManifestError


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", "größe", "a b", "a%2Fb", "_x", "a~b", "a:b+c"])
def test_odd_names_become_one_safe_folder_each(tmp_path: Path, name: str) -> None:
    table = TableName("shop", name)
    folder = folder_name(table)
    assert folder.count(".") == 1
    assert not set(folder) & set("/:+% ")
    lake = Storage(tmp_path.as_uri())
    lake.make_folder(folder)
    pq.write_table(pa.table({"id": [1, 2]}), lake.path(f"{folder}/part-0.parquet"))
    filesystem, path = fs.FileSystem.from_uri(lake.uri_of(folder))
    assert pq.read_table(path, filesystem=filesystem, partitioning=None).num_rows == 2


def test_parts_of_tables_have_folders_that_no_table_has() -> None:
    parts = [selection_of("id = 1", None), selection_of("id = 2", None), selection_of(None, ["id"])]
    names = [TableName("a", "b"), TableName("a", "b" * 300), TableName("a", f"b~part-{parts[0].part}")]
    folders = {folder_name(CopyName.of(name, part)) for name in names for part in (*parts, WHOLE)}
    assert len(folders) == 12
    assert all(len(folder) <= NAME_BYTES for folder in folders)
    own = CopyName.of(names[0], parts[0])
    assert own != names[0] != CopyName.of(names[0], parts[1])
    # The two parts of one table, and the table itself: always in one order.
    copies = [CopyName.of(names[0], part) for part in (*parts, WHOLE)]
    backwards = copies[::-1]
    assert sorted(copies) == sorted(backwards) == sorted(copies, key=lambda copy: copy.part)
    assert own == pickle.loads(pickle.dumps(own)) == CopyName.of(TableName("a", "b"), parts[0])
    assert str(own) == "a.b"


def test_different_tables_have_different_folders() -> None:
    names = [("a", "b.c"), ("a.b", "c"), ("a~2Eb", "c"), ("A", "b"), ("a", "b")]
    assert len({folder_name(TableName(*name)) for name in names}) == len(names)


def test_names_of_tables_that_are_as_long_as_folders_may_be(tmp_path: Path) -> None:
    name = TableName("s" * 64, "ü" * 64)
    folder = Storage(tmp_path.as_uri()).folder("run")
    run: Any = type("Run", (), {"folder": folder, "digest": "0" * 32})
    check_not_removed(run, [name])
    mark(run, name, "by")
    with pytest.raises(ManifestError):
        check_not_removed(run, [name])
