"""Completes commits that a catalog lost after a cut had named their snapshots.

Version 0.2.0 could publish a cut although the catalog, a SQLite file that another program was reading, had rolled back
the commits of some tables. The catalog then has the previous metadata file of such a table. The lost commit had already
written the next metadata file, and all files that this file names. So the commit is completed by the one statement that
was rolled back: it replaces the catalog's metadata file by the next one.

Only steps that change the table complete a commit. Steps that only read, such as a plan or a verification, read the
next metadata file in place of the catalog's, and leave the catalog as it is.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Collection, Iterator

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
from airflow_provider_cdc.sinks.iceberg.cut_table import NAME, CutRow, newest_rows, rows_of
from airflow_provider_cdc.sinks.iceberg.producer import NamedFiles
from airflow_provider_cdc.sinks.iceberg.table import METADATA

_VERSION = re.compile(r"(\d+)-.*\.metadata\.json")

_log = logging.getLogger(__name__)


def complete_commits(
    catalog: Catalog, namespace: str, run_id: str, identifiers: Collection[str]
) -> tuple[Table, list[CutRow]] | None:
    """Complete lost commits before the catalog is changed, because a later commit would make this impossible: those of
    the newest copies of ``identifiers``, and those of the run ``run_id`` if its cut is committed. Return the table of
    cuts and its rows, or None if the table does not exist.

    :raises ManifestError: a snapshot of the run is gone.
    """
    if not run_id and not isinstance(catalog, SqlCatalog):
        return None
    cuts = load_table(catalog, (*namespace.split("."), NAME))
    if cuts is None:
        return None
    rows = rows_of(cuts)
    for row in rows:
        if row.run_id == run_id and row.table_position == row.position:
            table = _table_of(catalog, row)
            if table is not None and _complete(catalog, table, row) is None:
                raise snapshot_gone(row.identifier, row.snapshot_id)
    if isinstance(catalog, SqlCatalog):
        for identifier, row in newest_rows(rows).items():
            if identifier in identifiers and (table := _table_of(catalog, row)) is not None:
                _complete(catalog, table, row)
    return cuts, rows


def snapshot_of(catalog: Catalog, row: CutRow) -> tuple[Table, Snapshot] | None:
    """Return the table and the snapshot that a row of a cut names, or None if the table was dropped or replaced. If the
    catalog lost the commit of the snapshot, the table is the one that this commit wrote. The catalog is not changed.

    :raises ManifestError: the snapshot is gone.
    """
    table = _table_of(catalog, row)
    if table is None:
        return None
    found = _with_snapshot(catalog, table, row)
    if found is None:
        raise snapshot_gone(row.identifier, row.snapshot_id)
    snapshot = found.metadata.snapshot_by_id(row.snapshot_id)
    assert snapshot is not None
    return found, snapshot


def snapshot_gone(identifier: str, snapshot_id: int) -> ManifestError:
    """Return the error for a snapshot of a latest copy that the table does not have, or whose files are gone."""
    return ManifestError(
        f"the snapshot {snapshot_id} of the latest copy is gone",
        where=identifier,
        hint="another program expired it, although it has a tag, or the catalog was set back: remove its row from "
        f"the table {NAME} (docs/iceberg.md, A snapshot that is gone), and trigger a new run",
    )


def _table_of(catalog: Catalog, row: CutRow) -> Table | None:
    table = load_table(catalog, identifier_in(row.identifier))
    return table if table is not None and str(table.metadata.table_uuid) == row.table_uuid else None


def _complete(catalog: Catalog, table: Table, row: CutRow) -> Table | None:
    """Return the table with the snapshot that ``row`` names, or None if the snapshot is gone. If the catalog lost the
    commit of the snapshot, complete the commit. The catalog must not have changed in between."""
    found = _with_snapshot(catalog, table, row)
    if found is None or found is table:
        return found
    assert isinstance(catalog, SqlCatalog)
    if not _replace(catalog, table, found.metadata_location):
        # Another run completed the same commit, or changed the table.
        found = catalog.load_table(table.name())
        return found if found.metadata.snapshot_by_id(row.snapshot_id) is not None else None
    _log.warning(
        "The catalog had lost the commit of run %s to %s: completed it with %s",
        row.run_id,
        row.identifier,
        found.metadata_location,
    )
    return found


def _with_snapshot(catalog: Catalog, table: Table, row: CutRow) -> Table | None:
    """Return the table with the snapshot that ``row`` names, or None if the snapshot is gone.

    A lost commit counts only if it is the next commit to the present metadata of ``table``, adds only this snapshot,
    and if all files of the snapshot exist.
    """
    if table.metadata.snapshot_by_id(row.snapshot_id) is not None:
        return table
    for location in _next_locations(table) if isinstance(catalog, SqlCatalog) else ():
        metadata = _metadata_in(table, location)
        if metadata is not None and _is_lost_commit(metadata, table, row) and _has_files(metadata, table, row):
            return Table(table.name(), metadata, location, table.io, catalog)
    return None


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
