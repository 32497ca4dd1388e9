"""Every table has a folder of its own, whatever its name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from airflow_provider_cdc.core.names import folder_name
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.core.table import TableName


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


def test_different_tables_have_different_folders() -> None:
    names = [("a", "b.c"), ("a.b", "c"), ("a~2Eb", "c"), ("A", "b"), ("a", "b")]
    assert len({folder_name(TableName(*name)) for name in names}) == len(names)
