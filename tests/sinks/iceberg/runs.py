"""Runs that publish given rows, and what engines read of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import PLAIN, Layout, TableName
from airflow_provider_cdc.sinks.base import Prepared, Publication, TableChange
from tests.sinks.catalogs import plain_catalog
from tests.sinks.test_contract import MYSQL, ORDERS, SERVER, Lake

WHEN = "2026-01-01T00:00:00+00:00"


def run_id_of(number: int) -> str:
    return f"202601{number:02}T000000Z-00000000"


def run_of(
    lake: Lake,
    number: int,
    rows: Mapping[TableName, pa.Table],
    key: tuple[str, ...] = (),
    group: str = "",
    identities: Mapping[str, str] | None = None,
    layout: Layout = PLAIN,
    read: Place | None = None,
    base: Place | None = None,
    names: Mapping[str, str] | None = None,
) -> Publication:
    """A run at position ``number`` whose copies have these rows, a file for each chunk of a table.

    ``identities`` are those of the columns of each table. ``read`` is the place of rows that were carried over schema
    changes, and ``base`` that of the copy that is rolled forward. ``names`` are the names of their columns by the
    present ones.
    """
    run_id = run_id_of(number)
    places = lake.sink.prepare(
        run_id,
        [
            Prepared(table, one.schema, key, identities or {}, layout, names or {}, read, base)
            for table, one in rows.items()
        ],
    )
    changes = []
    for table, one in rows.items():
        place, files = places[table], []
        schema, staging = place.schema(one.schema), Staging(Storage(place.folder))
        for at, batch in enumerate(one.to_batches()):
            name = f"part-{at:06}-{run_id}"
            with (
                staging.partitioned_writer(name, schema, place.partition)
                if place.partition
                else staging.writer(name, schema)
            ) as writer:
                writer.write(pa.table(batch).cast(schema))
            files += writer.files
        changes.append(TableChange(table, tuple(files), place=place))
    staging = Staging(lake.scratch.folder(run_id))
    position = f"{SERVER}:1-{number}"
    return Publication(run_id, staging, tuple(changes), "initial_gtid_set", position, WHEN, WHEN, MYSQL, group=group)


def again_of(publication: Publication, base: Publication) -> Publication:
    """The same run, whose copies have all files of ``base``, too."""
    changes = [
        replace(change, kept=tuple(replace(file, name=file.base_name) for file in before.added), base=base.run_id)
        for change, before in zip(publication.tables, base.tables, strict=True)
    ]
    return replace(publication, tables=tuple(changes))


def iceberg_table(lake: Lake, table: TableName = ORDERS) -> Table:
    return plain_catalog(lake.storage).load_table((table.schema, table.name))


def rows_at(lake: Lake, run_id: str, table: TableName = ORDERS) -> list[dict[str, Any]]:
    """The rows of the snapshot that a run tagged."""
    loaded = iceberg_table(lake, table)
    snapshot = loaded.metadata.snapshot_by_name(f"cdc-{run_id}")
    assert snapshot is not None
    rows: list[dict[str, Any]] = loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
    return rows


def snapshots_of(lake: Lake, run_id: str, table: TableName = ORDERS) -> list[int]:
    """The snapshots that a run made."""
    return [
        snapshot.snapshot_id
        for snapshot in iceberg_table(lake, table).metadata.snapshots
        if snapshot.summary is not None and snapshot.summary.additional_properties.get("cdc.run_id") == run_id
    ]


def files_on_disk(lake: Lake, table: TableName = ORDERS) -> set[str]:
    """The data files and manifests in a table's folder."""
    root = Path(lake.storage.path(f"{table.schema}.{table.name}"))
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.suffix in (".parquet", ".avro")}


def set_back(catalog: str, table: TableName) -> None:
    """Set the catalog in a SQLite file back to the metadata file of a table before the present one."""
    with closing(sqlite3.connect(catalog)) as connection, connection:
        connection.execute(
            "UPDATE iceberg_tables SET metadata_location = previous_metadata_location WHERE table_name = ?",
            (table.name,),
        )
