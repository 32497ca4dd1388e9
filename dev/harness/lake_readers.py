"""Engines that read lakes, for tests and demos: they share no code with the package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.catalog import load_catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

EXTENSIONS = ("avro", "httpfs", "iceberg")


def load_statements() -> list[str]:
    """The statements that load DuckDB's extensions for Iceberg tables. The extensions come from packages, so loading
    them needs no network."""
    statements = []
    for name in EXTENSIONS:
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        (file,) = package.glob(f"extensions/*/{name}.duckdb_extension")
        statements.append(f"LOAD '{file}'")
    return statements


def opened_duckdb() -> duckdb.DuckDBPyConnection:
    """A DuckDB that reads Iceberg tables."""
    connection = duckdb.connect()
    for statement in load_statements():
        connection.execute(statement)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def iceberg_rows(target: Path, table: str, run_id: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the column names and the rows of a run's copy of a table, read by DuckDB.

    :param target: the folder with the tables and their SQLite catalog.
    :param table: the name of the Iceberg table, with its namespace.
    """
    loaded, snapshot = _snapshot(target, table, run_id)
    with opened_duckdb() as connection:
        result = connection.execute(
            f"FROM iceberg_scan('{loaded.metadata_location}', snapshot_from_id = {snapshot.snapshot_id})"
        )
        return [column[0] for column in result.description or ()], result.fetchall()


def delete_files(target: Path, table: str, run_id: str) -> int:
    """Return the number of delete files of a run's copy of a table; the arguments are those of `iceberg_rows`."""
    loaded, snapshot = _snapshot(target, table, run_id)
    return sum(
        len(manifest.fetch_manifest_entry(loaded.io))
        for manifest in snapshot.manifests(loaded.io)
        if manifest.content == ManifestContent.DELETES
    )


def _snapshot(target: Path, table: str, run_id: str) -> tuple[Table, Snapshot]:
    catalog = load_catalog("default", type="sql", uri=f"sqlite:///{target}/_catalog.db", warehouse=target.as_uri())
    loaded = catalog.load_table(table)
    snapshot = loaded.metadata.snapshot_by_name(f"cdc-{run_id}")
    assert snapshot is not None
    return loaded, snapshot
