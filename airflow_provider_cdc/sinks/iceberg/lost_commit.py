"""Completes commits that a catalog lost after a cut had named their snapshots.

Version 0.2.0 could publish a cut although the catalog, a SQLite file that another program was reading, had rolled back
the commits of some tables. The catalog then has the previous metadata file of such a table. The lost commit had already
written the next metadata file, and all files that this file names. So the commit is completed by the one statement that
was rolled back: it replaces the catalog's metadata file by the next one.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy import update
from sqlalchemy.orm import Session

from airflow_provider_cdc.errors import ManifestError
from airflow_provider_cdc.sinks.iceberg.catalog import folder_of, identifier_in, load_table
from airflow_provider_cdc.sinks.iceberg.commit import tag_of
from airflow_provider_cdc.sinks.iceberg.cuts.cut_table import NAME, CutRow, rows_of
from airflow_provider_cdc.sinks.iceberg.files.files import NamedFiles
from airflow_provider_cdc.sinks.iceberg.tables.table import METADATA

_VERSION = re.compile(r"(\d+)-.*\.metadata\.json")

_log = logging.getLogger(__name__)


def complete_run(catalog: Catalog, namespace: str, run_id: str) -> tuple[Table, list[CutRow]] | None:
    """Complete the lost commits of a run whose cut is committed. Return the table of cuts and its rows, or None if the
    table does not exist.

    :raises ManifestError: a snapshot of the run is gone.
    """
    cuts = load_table(catalog, (*namespace.split("."), NAME))
    if cuts is None:
        return None
    rows = rows_of(cuts)
    for row in rows:
        if row.run_id == run_id and row.table_position == row.position:
            table = load_table(catalog, identifier_in(row.identifier))
            if table is not None and str(table.metadata.table_uuid) == row.table_uuid:
                snapshot_of(catalog, table, row)
    return cuts, rows


def snapshot_of(catalog: Catalog, table: Table, row: CutRow) -> tuple[Table, Snapshot]:
    """Return the table and the snapshot that a row of a cut names. If the catalog lost the commit of the snapshot,
    complete the commit.

    :raises ManifestError: the snapshot is gone.
    """
    snapshot = table.metadata.snapshot_by_id(row.snapshot_id)
    if snapshot is None and _complete(catalog, table, row):
        table = catalog.load_table(table.name())
        snapshot = table.metadata.snapshot_by_id(row.snapshot_id)
    if snapshot is None:
        raise ManifestError(
            f"the snapshot {row.snapshot_id} of the latest copy is gone",
            where=row.identifier,
            hint="another program expired it, although it has a tag, or the catalog was set back: remove its row from "
            f"the table {NAME} (docs/iceberg.md, A snapshot that is gone), and trigger a new run",
        )
    return table, snapshot


def _complete(catalog: Catalog, table: Table, row: CutRow) -> bool:
    """Complete the commit of the snapshot that ``row`` names, if the catalog lost it. Return whether it was completed.

    The commit is completed only if it is the next commit to the present metadata of ``table``, adds only this snapshot,
    and if all files of the snapshot exist. The catalog must not have changed in between.
    """
    if not isinstance(catalog, SqlCatalog):
        return False
    for location in _next_locations(table):
        metadata = _metadata_in(table, location)
        if metadata is not None and _is_lost_commit(metadata, table, row) and _has_files(metadata, table, row):
            break
    else:
        return False
    completed = _replace(catalog, table, location)
    if completed:
        _log.warning(
            "The catalog had lost the commit of run %s to %s: completed it with %s",
            row.run_id,
            row.identifier,
            location,
        )
    return completed


def _next_locations(table: Table) -> Iterator[str]:
    """Yield the metadata files that a commit to the present metadata may have written."""
    folder, present = posixpath.split(table.metadata_location)
    match = _VERSION.fullmatch(present)
    if match is None or folder != f"{str(table.location()).rstrip('/')}/{METADATA}":
        return
    for name in folder_of(table, METADATA).files():
        other = _VERSION.fullmatch(name)
        if other is not None and int(other[1]) == int(match[1]) + 1:
            yield f"{folder}/{name}"


def _metadata_in(table: Table, location: str) -> TableMetadata | None:
    try:
        return FromInputFile.table_metadata(table.io.new_input(location))
    except (ValidationError, ValueError):
        # An attempt that was killed wrote only a part of the file.
        return None


def _is_lost_commit(metadata: TableMetadata, table: Table, row: CutRow) -> bool:
    tagged = metadata.snapshot_by_name(tag_of(row.run_id))
    added = {one.snapshot_id for one in metadata.snapshots} ^ {one.snapshot_id for one in table.metadata.snapshots}
    return (
        metadata.table_uuid == table.metadata.table_uuid
        and metadata.metadata_log[-1:] != []
        and metadata.metadata_log[-1].metadata_file == table.metadata_location
        and added == {row.snapshot_id}
        and tagged is not None
        and tagged.snapshot_id == row.snapshot_id
    )


def _has_files(metadata: TableMetadata, table: Table, row: CutRow) -> bool:
    snapshot = metadata.snapshot_by_id(row.snapshot_id)
    assert snapshot is not None
    try:
        names = NamedFiles().of(table, [snapshot])
    except FileNotFoundError:
        return False
    folder = folder_of(table)
    present = {name for part in {posixpath.dirname(name) for name in names} for name in folder.sizes(part)}
    return names <= present


def _replace(catalog: SqlCatalog, table: Table, location: str) -> bool:
    *namespace, name = table.name()
    statement = (
        update(IcebergTables)
        .where(
            IcebergTables.catalog_name == catalog.name,
            IcebergTables.table_namespace == Catalog.namespace_to_string(tuple(namespace)),
            IcebergTables.table_name == name,
            IcebergTables.metadata_location == table.metadata_location,
        )
        .values(metadata_location=location, previous_metadata_location=table.metadata_location)
    )
    with Session(catalog.engine) as session:
        replaced = bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]
        session.commit()
    return replaced
