"""The copies of MySQL tables in Iceberg tables, read by PyIceberg alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog


def _catalog(folder: Path) -> Catalog:
    return load_catalog("default", type="sql", uri=f"sqlite:///{folder}/_catalog.db", warehouse=folder.as_uri())


def heads(folder: Path, tables: Sequence[str]) -> dict[str, Any]:
    """Return what the Iceberg tables say of their newest copies."""
    catalog = _catalog(folder)
    loaded = {name: catalog.load_table(name) for name in tables if catalog.table_exists(name)}
    said = {name: table.properties["cdc.head"] for name, table in loaded.items() if "cdc.head" in table.properties}
    return {name: json.loads(text) for name, text in said.items()}


def rows(folder: Path, table: str, run_id: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and the rows of a run's copy, as plain Parquet files would have them."""
    loaded = _catalog(folder).load_table(table)
    snapshot = loaded.metadata.snapshot_by_name(f"cdc-{run_id}")
    assert snapshot is not None
    found = loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow()
    columns = [list(map(_plain(field), found[field.name].to_pylist())) for field in found.schema]
    return found.column_names, list(zip(*columns, strict=True))


def _plain(field: pa.Field) -> Callable[[Any], Any]:
    if field.type == pa.decimal128(20, 0):
        return lambda value: None if value is None else int(value)
    if field.name == "span":
        # A TIME, as microseconds.
        return lambda value: None if value is None else timedelta(microseconds=value)
    return lambda value: value
