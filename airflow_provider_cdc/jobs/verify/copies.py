"""Opens the copies that are verified: copies of this package, and copies that other programs made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from airflow_provider_cdc.core.run.manifest import Manifest, RunTable
from airflow_provider_cdc.core.run.run import Run, scratch_of
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.selection import selection_of
from airflow_provider_cdc.core.tables.table import CopyName, TableName
from airflow_provider_cdc.errors import ConfigurationError, ManifestError
from airflow_provider_cdc.jobs.runtime.driver import catalog_from_environment
from airflow_provider_cdc.jobs.verify.request import CopyAsked, VerifyRequest
from airflow_provider_cdc.jobs.verify.rows import RangeRows
from airflow_provider_cdc.sinks.base import LatestCopy, ReadsRows, Sink
from airflow_provider_cdc.sinks.registry import CatalogSettings, open_sink, settings_of_options
from airflow_provider_cdc.sources.planning.patterns import Pattern

_ICEBERG = "iceberg:"
_FILES = (".parquet", ".csv")


@dataclass(frozen=True)
class OpenedCopy:
    """A copy whose rows can be read.

    ``schema`` has its columns. The rows are in ``pieces``, or come from ``stream``, which can be called repeatedly.
    ``latest`` is the record of a copy of this package. ``made_by`` is the manifest of the run that made it, if the
    folder of the run still exists.
    """

    asked: CopyAsked
    label: str
    schema: pa.Schema
    pieces: tuple[RangeRows, ...] = ()
    stream: Callable[[], Iterable[pa.RecordBatch]] | None = None
    latest: LatestCopy | None = None
    made_by: Manifest | None = None

    @property
    def entry(self) -> RunTable | None:
        """The table in the manifest of the run that made the copy."""
        if self.made_by is None:
            return None
        name = copy_name(self.asked)
        return next((entry for entry in self.made_by.tables if entry.table.copy_name == name), None)

    @property
    def position(self) -> str:
        """The position at which the copy is exact; empty: unknown."""
        return self.latest.position if self.latest is not None else ""


def copy_name(asked: CopyAsked) -> TableName:
    """Return the name of the copies of this package."""
    return CopyName.of(table_name(asked), selection_of(asked.where or None, asked.selected or None))


def table_name(asked: CopyAsked) -> TableName:
    """Return the name of the table at the source."""
    return Pattern.parse(asked.table).text


def sink_of(request: VerifyRequest) -> Sink:
    """Open the lake of the copies of this package."""
    lake = request.lake
    settings = settings_of_options(lake.format, lake, _catalog(request), request.source_conn_id)
    return open_sink(settings, Storage(request.target))


def open_copy(request: VerifyRequest, asked: CopyAsked) -> OpenedCopy:
    """Open a copy.

    :raises ConfigurationError: there is no such copy, or its rows cannot be read.
    :raises ManifestError: the record of the copy is damaged, or files of the copy are missing.
    """
    if not asked.uri:
        return _own(request, asked)
    if asked.uri.startswith(_ICEBERG):
        return _iceberg(request, asked)
    return _files(asked)


def _made_by(request: VerifyRequest, latest: LatestCopy) -> Manifest | None:
    """Return the manifest of the run that made a copy; None: the run's folder no longer exists."""
    scratch = Storage(request.scratch or scratch_of(request.target))
    with suppress(ManifestError):
        return Run.load(scratch.folder(latest.run_id)).manifest
    return None


def _own(request: VerifyRequest, asked: CopyAsked) -> OpenedCopy:
    name, sink = copy_name(asked), sink_of(request)
    latest = sink.latest(name)
    if latest is None:
        raise ConfigurationError(
            "the table has no copy", where=f"{asked.table} in {request.target}", hint="name a table that was copied"
        )
    label = f"copy of run {latest.run_id}"
    manifest = _made_by(request, latest)
    if isinstance(sink, ReadsRows):
        stream = partial(sink.read, latest.run_id, name)
        return OpenedCopy(asked, label, _schema_of(stream), stream=stream, latest=latest, made_by=manifest)
    pieces = tuple(_piece(uri) for uri in latest.files)
    return OpenedCopy(asked, label, pieces[0].schema(), pieces, latest=latest, made_by=manifest)


def _iceberg(request: VerifyRequest, asked: CopyAsked) -> OpenedCopy:
    try:
        from airflow_provider_cdc.sinks.iceberg.catalog import answering, identifier_in, open_catalog
    except ImportError as error:
        raise ConfigurationError(
            f"PyIceberg is not installed: {error}", hint="pip install 'airflow-provider-cdc[iceberg]'"
        ) from error
    identifier, _, snapshot = asked.uri.removeprefix(_ICEBERG).partition("@")
    with answering("catalog"):
        catalog = open_catalog(_catalog(request), Storage(request.target or "file:///"))
        loaded = catalog.load_table(identifier_in(identifier))
        current = loaded.current_snapshot()
    number = int(snapshot) if snapshot else (current.snapshot_id if current is not None else None)

    def stream() -> Iterator[pa.RecordBatch]:
        yield from loaded.scan(snapshot_id=number).to_arrow_batch_reader()

    schema = loaded.scan(snapshot_id=number).projection().as_arrow()
    return OpenedCopy(asked, f"{identifier}, snapshot {number}", schema, stream=stream)


def _catalog(request: VerifyRequest) -> CatalogSettings | None:
    return catalog_from_environment() if request.lake.catalog_conn_id else None


def _schema_of(stream: Callable[[], Iterable[pa.RecordBatch]]) -> pa.Schema:
    rows = stream()
    if isinstance(rows, pa.RecordBatchReader):
        return rows.schema
    return next(iter(rows)).schema


def _piece(uri: str) -> RangeRows:
    parent, _, _ = uri.rpartition("/")
    name = LakeUri.parse(uri).decoded[-1]
    folder = Storage(parent)
    return RangeRows(folder, name, folder.size(name))


def _files(asked: CopyAsked) -> OpenedCopy:
    uri = str(LakeUri.parse(asked.uri))
    if uri.lower().endswith(_FILES):
        pieces: tuple[RangeRows, ...] = (_piece(uri),)
    else:
        folder = Storage(uri)
        if marks := {"_delta_log", ".hoodie"} & set(folder.folders()):
            raise ConfigurationError(
                f"the folder has {min(marks)}: not all of its files are in the table's present state",
                where=asked.uri,
                hint="export the table to a folder of Parquet files, and verify this folder",
            )
        pieces = tuple(_below(folder))
    if not pieces:
        raise ConfigurationError(
            "there are no Parquet or CSV files", where=asked.uri, hint="name a folder with such files, or a file"
        )
    schema = pieces[0].schema()
    for piece in pieces[1:]:
        if missing := set(schema.names) ^ set(piece.schema().names):
            raise ConfigurationError(
                f"the files have different columns: {', '.join(sorted(missing))}",
                where=piece.uri,
                hint="verify a folder whose files have the same columns",
            )
    return OpenedCopy(asked, asked.uri, schema, pieces)


def _below(folder: Storage) -> Iterator[RangeRows]:
    """Yield the data files in a folder and in its folders. Names that begin with ``_`` or ``.`` are not data."""
    for name, size in sorted(folder.sizes().items()):
        if name.lower().endswith(_FILES) and not name.startswith(("_", ".")):
            yield RangeRows(folder, name, size)
    for name in folder.folders():
        if not name.startswith(("_", ".")):
            yield from _below(folder.folder(name))
