"""The sink for Iceberg tables. Each run publishes one snapshot per table, and one cut.

Tasks write data files once, at their final place. Publishing first commits a snapshot for each table, with exactly the
data files of the copy. Then it commits the cut: the list of these snapshots (`sinks.iceberg.cut_table`). Readers
of cuts see all tables at one position, even if a task crashes or another run commits in between. Readers that do not
use cuts may see, for a moment, new rows of one table and old rows of another.

The change feeds are not Iceberg tables. They are files in the lake's folder, as with plain Parquet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot

from airflow_provider_cdc.core.copies.head import (
    Copy,
    decode_copy,
    is_of_another_source,
)
from airflow_provider_cdc.core.options.lake import NEW_COLUMN, REPLACE
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.run.table_files import written_by
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName, folder_name
from airflow_provider_cdc.errors import ManifestError, naming
from airflow_provider_cdc.sinks.base import (
    LakeFeed,
    LatestCopy,
    Prepared,
    Publication,
    PublishedCopy,
    StrayFile,
    TableChange,
)
from airflow_provider_cdc.sinks.beside_copies import (
    properties_of,
    read_certificate,
    remove_certificate,
    remove_gap,
    write_certificate,
)
from airflow_provider_cdc.sinks.iceberg.catalog import (
    BESIDE_THE_TABLES,
    Identifier,
    answered,
    check_catalog,
    check_location,
    folder_of,
    is_local,
    load_table,
    make_namespace,
    name_of,
    open_catalog,
)
from airflow_provider_cdc.sinks.iceberg.commit import (
    COPY,
    TAG,
    CommittedTable,
    TableCommit,
    another_source,
    check_foreign,
    commit_table,
    foreign_change,
    manifests_of,
    property_of,
    tag_of,
)
from airflow_provider_cdc.sinks.iceberg.cut_table import (
    GRACE,
    NAME,
    CutRow,
    commit_cut,
    copy_in,
    find_cuts,
    newest_rows,
    rows_of_run,
)
from airflow_provider_cdc.sinks.iceberg.lost_commit import complete_commits, snapshot_gone, snapshot_of
from airflow_provider_cdc.sinks.iceberg.producer import delete_unnamed, files_of, named_data_files, stray_files
from airflow_provider_cdc.sinks.iceberg.removal import finish_removal, remove_snapshot, withdraw
from airflow_provider_cdc.sinks.iceberg.table import (
    DATA,
    METADATA,
    check_identifiers,
    check_same_table,
    identifier_of,
    prepare_table,
)
from airflow_provider_cdc.sinks.parquet import ParquetSink, record_of
from airflow_provider_cdc.sinks.registry import CUTS_NAMESPACE, LakeSettings

if TYPE_CHECKING:
    import pyarrow as pa

_REMOVALS = "_removals"
_WRITERS = 8


class IcebergSink:
    """Publishes copies as tables of one catalog. Other files are in the folder ``lake``."""

    grace = GRACE

    def __init__(self, lake: Storage, settings: LakeSettings) -> None:
        self._lake = lake
        self._settings = settings
        self._beside = ParquetSink(lake)

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings.catalog, self._lake)

    @property
    def _namespace(self) -> str:
        return self._settings.catalog.namespace if self._settings.catalog is not None else CUTS_NAMESPACE

    def _identifier(self, table: TableName) -> Identifier:
        return identifier_of(table, self._settings.table_name, self._settings.source)

    def _table(self, table: TableName) -> Table | None:
        return load_table(self._catalog, self._identifier(table)) if self._has_catalog else None

    def check_ready(self) -> None:
        if self._settings.catalog is not None:
            check_catalog(self._catalog, self._settings.catalog)
        elif not is_local(self._lake):
            # Opening the catalog would create the catalog's file.
            open_catalog(None, self._lake)
        if self._chooses_locations:
            check_location(self._warehouse)

    def _cuts(self) -> list[CutRow]:
        return find_cuts(self._catalog, self._namespace) if self._has_catalog else []

    @property
    def _has_catalog(self) -> bool:
        """Return whether the catalog exists. The first run creates the catalog in the lake's folder."""
        return self._settings.catalog is not None or self._lake.exists(BESIDE_THE_TABLES)

    def check_names(self, tables: Sequence[TableName]) -> None:
        catalog = self._settings.catalog
        check_identifiers(
            {table: self._identifier(table) for table in tables},
            (*self._namespace.split("."), NAME),
            catalog is not None and catalog.kind in ("glue", "hive"),
        )

    @answered("catalog")
    def check_source(self, tables: Sequence[TableName], source: Mapping[str, str], position: Position) -> None:
        newest = newest_rows(self._cuts())
        for table in tables:
            name = name_of(self._identifier(table))
            row = newest.get(name)
            if row is None or (row.table == str(table) and not is_of_another_source(copy_in(row), source, position)):
                continue
            loaded = self._table(table)
            if loaded is not None and str(loaded.metadata.table_uuid) == row.table_uuid:
                check_same_table(str(table), row.table, name)
                raise another_source(copy_in(row), source, name)

    @answered("catalog")
    def check_rows(self, tables: Sequence[TableName]) -> None:
        if self._settings.on_foreign_commit == REPLACE:
            return

        def check(table: TableName) -> None:
            loaded = self._table(table)
            if loaded is not None:
                check_foreign(loaded, name_of(self._identifier(table)))

        with ThreadPoolExecutor(_WRITERS) as readers:
            list(readers.map(check, tables))

    @answered("catalog")
    def foreign_change(self, table: TableName) -> str:
        loaded = self._table(table)
        return "" if loaded is None else foreign_change(loaded)

    @answered("catalog")
    def prepare(self, run_id: str, tables: Sequence[Prepared]) -> dict[TableName, Place]:
        self.check_names([table.name for table in tables])
        self._complete([table.name for table in tables])
        own = self._chooses_locations
        new_column = self._settings.on_type_change == NEW_COLUMN

        def prepared(table: Prepared) -> Place:
            with naming(str(table.name)):
                return prepare_table(
                    self._catalog, self._warehouse, self._identifier(table.name), table, own, new_column
                )

        # Create namespaces one after the other, because catalogs report a namespace as broken while it is being
        # created.
        for namespace in sorted({self._identifier(table.name)[:-1] for table in tables}):
            make_namespace(self._catalog, namespace)
        with ThreadPoolExecutor(1 if own else _WRITERS) as makers:
            return dict(zip([table.name for table in tables], makers.map(prepared, tables), strict=True))

    @property
    def _chooses_locations(self) -> bool:
        return self._settings.catalog is None or self._settings.catalog.kind == "sql"

    @property
    def _warehouse(self) -> Storage:
        catalog = self._settings.catalog
        return Storage(catalog.warehouse) if catalog is not None and catalog.warehouse else self._lake

    @answered("catalog")
    def head(self, table: TableName) -> Copy | None:
        return self._head(table)[2]

    def _head(self, table: TableName) -> tuple[Table, Snapshot, Copy] | tuple[None, None, None]:
        identifier = name_of(self._identifier(table))
        row = newest_rows(self._cuts()).get(identifier)
        found = None if row is None else snapshot_of(self._catalog, row)
        if found is None:
            # There is no cut, or the table that the cut names was dropped, so there is no copy.
            return None, None, None
        loaded, snapshot = found
        return loaded, snapshot, decode_copy(json.loads(property_of(snapshot, COPY)), identifier)

    def _complete(self, tables: Iterable[TableName], run_id: str = "") -> tuple[Table, list[CutRow]] | None:
        """Complete the commits that the catalog lost. Call this method before a change to ``tables``."""
        identifiers = {name_of(self._identifier(table)) for table in tables}
        return complete_commits(self._catalog, self._namespace, run_id, identifiers) if self._has_catalog else None

    @answered("catalog")
    def latest(self, table: TableName) -> LatestCopy | None:
        loaded, snapshot, head = self._head(table)
        if loaded is None or snapshot is None or head is None:
            return None
        try:
            files = files_of(Transaction(loaded), snapshot)
        except FileNotFoundError as error:
            raise snapshot_gone(name_of(self._identifier(table)), snapshot.snapshot_id) from error
        # The data files also contain the deleted rows. So if there are delete files, do not return the data files.
        return LatestCopy.of(table, head, head.path, () if files.deletes else sorted(files.data))

    @answered("catalog")
    def read(self, run_id: str, table: TableName) -> Iterable[pa.RecordBatch]:
        loaded = self._table(table)
        snapshot = None if loaded is None else loaded.metadata.snapshot_by_name(tag_of(run_id))
        if snapshot is None:
            head = self._head(table)
            loaded, snapshot = head[:2] if head[2] is not None and head[2].run_id == run_id else (None, None)
        if loaded is None or snapshot is None:
            raise ManifestError(f"the copy of run {run_id} is gone", where=name_of(self._identifier(table)))
        rows: Iterable[pa.RecordBatch] = loaded.scan(snapshot_id=snapshot.snapshot_id).to_arrow_batch_reader()
        return rows

    @answered("catalog")
    def publish(self, publication: Publication) -> dict[TableName, PublishedCopy]:
        def commit(change: TableChange) -> CommittedTable:
            with naming(str(change.table)):
                return commit_table(self._catalog, self._commit(publication, change))

        cuts = self._complete([change.table for change in publication.tables], publication.run_id)
        # Put all feeds in place before a copy becomes visible, because readers of the copy may ask for its changes.
        for change in publication.tables:
            with naming(str(change.table)):
                self._beside.place_feed(publication, change)
                write_certificate(self._lake, publication, change)
        if self._settings.catalog is None:
            # SQLite has one writer at a time. If it cannot commit one table, do not wait for each of the others.
            committed = list(map(commit, publication.tables))
        else:
            with ThreadPoolExecutor(_WRITERS) as committers:
                committed = list(committers.map(commit, publication.tables))
        left_out = {name_of(self._identifier(table)) for table in publication.skipped}
        rows = commit_cut(
            self._catalog,
            self._namespace,
            publication.run_id,
            lambda existing: rows_of_run(self._catalog, publication, committed, left_out, existing),
            cuts,
        )
        latest = {row.snapshot_id for row in newest_rows(rows).values()}
        return {
            change.table: PublishedCopy(_uri_of(change), table.snapshot_id in latest)
            for change, table in zip(publication.tables, committed, strict=True)
        }

    def _commit(self, publication: Publication, change: TableChange) -> TableCommit:
        place = change.place
        if place is None:
            raise ManifestError("the run has no place for the data files of this table", where=str(change.table))
        wanted, deletes = named_data_files(place, change)
        copy = replace(record_of(publication, change, _uri_of(change)), files=())
        replaces_foreign = self._settings.on_foreign_commit == REPLACE
        digest = properties_of(change.certificate)
        codec = self._settings.compression
        return TableCommit(copy, place, wanted, change.base, deletes, replaces_foreign, digest, codec)

    @answered("catalog")
    def copy_folder(self, run_id: str, table: TableName) -> Storage:
        loaded = self._table(table)
        if loaded is None:
            raise ManifestError(
                "the table was dropped", where=name_of(self._identifier(table)), hint="trigger a new run"
            )
        return folder_of(loaded, DATA)

    @answered("catalog")
    def copy_uri(self, run_id: str, table: TableName) -> str:
        loaded = self._table(table)
        has_tag = loaded is not None and loaded.metadata.snapshot_by_name(tag_of(run_id)) is not None
        return folder_of(loaded).uri if loaded is not None and has_tag else ""

    def folders(self, run_id: str, table: TableName) -> tuple[Storage, ...]:
        # Publishing does not move data files, so leave out the first folder, which is for them.
        return self._beside.folders(run_id, table)[1:]

    @answered("catalog")
    def copies(self, table: TableName) -> list[str]:
        loaded = self._table(table)
        tags = loaded.metadata.refs if loaded is not None else ()
        # A removal that was interrupted may have removed the tag, but not all files.
        removals = self._lake.files(f"{_REMOVALS}/{folder_name(table)}")
        return sorted(
            {name.removeprefix(TAG) for name in tags if name.startswith(TAG)}
            | {name.rpartition("/")[2].removesuffix(".json") for name in removals}
        )

    def certificate(self, run_id: str, table: TableName) -> Mapping[str, Any] | None:
        return read_certificate(self._lake, table, run_id)

    def feed(self, run_id: str, table: TableName) -> LakeFeed | None:
        return self._beside.feed(run_id, table)

    @answered("catalog")
    def remove(
        self, run_id: str, table: TableName, files: Sequence[StagedFile], feed: Sequence[StagedFile] = ()
    ) -> list[str]:
        # Remove the changes first: if the removal stops half-way, the rest of the copy shows that changes may be left.
        remaining = self._beside.remove_feed(run_id, table, feed)
        remove_certificate(self._lake, table, run_id)
        remove_gap(self._lake, table, run_id)
        self._complete([table])
        loaded = self._table(table)
        record = f"{_REMOVALS}/{folder_name(table)}/{run_id}.json"
        if loaded is not None:
            remove_snapshot(self._catalog, loaded, run_id, self._lake, record)
        else:
            finish_removal(None, self._lake, record)
        return remaining

    @answered("catalog")
    def withdraw(self, copies: Sequence[tuple[str, TableName]]) -> None:
        tables = {table: self._table(table) for table in {table for _, table in copies}}
        withdraw(
            self._catalog,
            self._namespace,
            [(loaded, run_id) for run_id, table in copies if (loaded := tables[table]) is not None],
        )

    def difference(self, run_id: str, table: TableName, file: StagedFile) -> str:
        folders = [self.copy_folder(run_id, table), *self.folders(run_id, table)]
        folder = next((folder for folder in folders if folder.exists(file.base_name)), folders[0])
        return difference(folder, file.base_name, file)

    @answered("catalog")
    def clean(self, run_id: str, table: TableName, files: Sequence[StagedFile]) -> None:
        loaded = self._table(table)
        if loaded is None:
            return
        kept = {file.base_name for file in files}
        written = [
            f"{DATA}/{name}"
            for name in folder_of(loaded, DATA).files()
            if written_by(run_id, name) and name not in kept
        ]
        # The run is over, so no other try can still commit manifests that no snapshot names.
        manifests = [
            f"{METADATA}/{name}" for name in folder_of(loaded, METADATA).files() if manifests_of(run_id) in name
        ]
        delete_unnamed(loaded, [*written, *manifests])

    @answered("catalog")
    def stray_files(self, table: TableName) -> list[StrayFile]:
        # If the catalog lost the commit of the latest copy, the files of this copy are not stray.
        loaded = self._head(table)[0] or self._table(table)
        return stray_files(loaded) if loaded is not None else []

    @answered("catalog")
    def delete_stray(self, table: TableName, names: Sequence[str]) -> None:
        loaded = self._head(table)[0] or self._table(table)
        if loaded is not None:
            delete_unnamed(loaded, names)

    def unread(self, run_id: str, tables: Sequence[TableName]) -> list[str]:
        return []


def _uri_of(change: TableChange) -> str:
    """Return the URI of the folder of the Iceberg table."""
    return "" if change.place is None else Storage(change.place.folder).parent().uri
