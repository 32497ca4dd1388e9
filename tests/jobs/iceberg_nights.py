"""What engines that share no code with the package read of the Iceberg tables of a run on a history."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from functools import cache
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, ManifestEntry
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from harness.lake_readers import opened_duckdb
from tests.jobs.conftest import Runner
from tests.jobs.history_source import NAMES, Row
from tests.sinks.catalogs import plain_catalog


@cache
def engine() -> duckdb.DuckDBPyConnection:
    return opened_duckdb()


def run_id_of(number: int) -> str:
    return f"202601{number + 1:02}T000000Z-00000000"


def plain(row: tuple[Any, ...]) -> Row:
    return tuple(str(value) if isinstance(value, Decimal) else value for value in row)


def snapshot_of(night: Runner, name: str, run_id: str = "") -> tuple[Table, Snapshot]:
    """The table, and the snapshot that a run tagged; by default that of the night."""
    table = plain_catalog(night.target).load_table(tuple(name.split(".")))
    snapshot = table.metadata.snapshot_by_name(f"cdc-{run_id or night.run.uri.rpartition('/')[2]}")
    assert snapshot is not None
    return table, snapshot


def seen(night: Runner, name: str, run_id: str = "") -> Counter[Row]:
    """The rows of a table, on which three engines agree. They agree on the number of rows, too, which engines may take
    from the metadata."""
    table, snapshot = snapshot_of(night, name, run_id)
    number = snapshot.snapshot_id
    scan = f"iceberg_scan('{table.metadata_location}', snapshot_from_id = {number})"
    by_duckdb = engine().execute(f"FROM {scan}").fetchall()
    counts = engine().execute(f"SELECT count(*) FROM {scan}").fetchall()
    frame = pl.scan_iceberg(table, snapshot_id=number)
    by_polars = frame.collect().rows()
    by_pyiceberg = [tuple(row.values()) for row in table.scan(snapshot_id=number).to_arrow().to_pylist()]
    rows = Counter(map(plain, by_duckdb))
    assert Counter(map(plain, by_polars)) == rows
    assert Counter(map(plain, by_pyiceberg)) == rows
    assert counts == [(rows.total(),)]
    assert frame.select(pl.len()).collect().item() == rows.total()
    return rows


def entries_of(table: Table, snapshot: Snapshot) -> tuple[dict[str, ManifestEntry], dict[str, ManifestEntry]]:
    """The data files of a snapshot by name, and the delete files by the name of the data file."""
    data: dict[str, ManifestEntry] = {}
    deleted: dict[str, ManifestEntry] = {}
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            if file.content == DataFileContent.DATA:
                data[file.file_path] = entry
                continue
            rows = pq.read_table(file.file_path.removeprefix("file://"))
            (of,) = set(rows["file_path"].to_pylist())
            assert of not in deleted, "a data file has two delete files"
            assert rows["pos"].to_pylist() == sorted(set(rows["pos"].to_pylist()))
            assert file.lower_bounds[2147483546] == file.upper_bounds[2147483546] == of.encode()
            deleted[of] = entry
    assert deleted.keys() <= data.keys(), "a delete file has no data file"
    for of, entry in deleted.items():
        assert (entry.sequence_number or 0) >= (data[of].sequence_number or 0)
    return data, deleted


def files_of(night: Runner, name: str = NAMES[0]) -> tuple[dict[str, ManifestEntry], dict[str, ManifestEntry]]:
    return entries_of(*snapshot_of(night, name))
