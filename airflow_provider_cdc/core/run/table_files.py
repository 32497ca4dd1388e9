"""The data files that a run writes for one table: their place, their names, and their column types.

With plain Parquet, readers list the folders of copies, so unpublished files are in the run's own folder. Publishing
moves these files. With Iceberg, readers see only the files that the table's metadata lists. So data files are written
once, at their final place, and publishing adds them to the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from airflow_provider_cdc.core.digest.totals import Digest
from airflow_provider_cdc.core.parquet import position_deletes
from airflow_provider_cdc.core.parquet.position_deletes import Int64s
from airflow_provider_cdc.core.parquet.splice import SplicedFile, UnknownFooter
from airflow_provider_cdc.core.parquet.writer import ParquetWriter, StagedFile, with_more
from airflow_provider_cdc.core.run.manifest import Place, RunTable
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.published import published_schema
from airflow_provider_cdc.core.tables.table import PartitionField, Table, folder_name


@dataclass(frozen=True)
class TableFileWriter:
    """Writes the data files of one table of a run.

    ``staging`` is the folder that the names of the files are relative to. ``published`` is the schema of the rows to
    write. ``schema`` is the schema of the files.
    """

    staging: Staging
    published: pa.Schema
    schema: pa.Schema
    _table: str
    _run_id: str
    _key: str
    _location: str = ""
    _partition: tuple[PartitionField, ...] = ()

    @property
    def folder(self) -> Storage:
        """The folder that the names of the files are relative to."""
        return self.staging.folder

    @contextmanager
    def together(self) -> Iterator[TableFileWriter]:
        """Write many small files, which are flushed to disk together; see `Storage.together`."""
        with self.staging.folder.together() as folder:
            yield replace(self, staging=replace(self.staging, folder=folder))

    @contextmanager
    def writer(self, work: str, part: str) -> Iterator[ParquetWriter]:
        """Write rows to files; see `Staging.writer`.

        :param work: the kind of work files, one of `run.WORK_FOLDERS`. The kind has no effect after the files are
            published.
        :param part: the prefix of the names of the files: two words, joined by a hyphen.
        """
        name = self._name(work, part)
        writing = (
            self.staging.partitioned_writer(name, self.schema, self._partition, self._key)
            if self._partition
            else self.staging.writer(name, self.schema, digests=True, key=self._key)
        )
        with writing as writer:
            yield writer

    @contextmanager
    def spliced(self, work: str, part: str, folder: Storage, source: str) -> Iterator[SplicedFile]:
        """Write a file that is mostly a copy of the file ``source`` in ``folder``; see `Staging.spliced`.

        :raises UnknownFooter: the file cannot be spliced. In a partitioned table, its rows may belong to other
            partitions now.
        """
        if self._partition:
            raise UnknownFooter("rows of a partitioned table may change their partition")
        with self.staging.spliced(self._name(work, part), self.schema, folder, source, self._key) as writer:
            yield writer

    def write_empty(self, work: str, part: str) -> StagedFile:
        """Write a file without rows; see `Staging.write_empty`."""
        return self.staging.write_empty(self._name(work, part), self.schema)

    @property
    def takes_deletes(self) -> bool:
        """Whether rows of a data file can be deleted without writing the file again. In a partitioned table, the new
        versions of rows may belong to other partitions."""
        return bool(self._location) and not self._partition

    def write_deletes(self, file: StagedFile, positions: Int64s, newly: Digest) -> StagedFile:
        """Write the positions of all deleted rows of a data file. Return the data file's record with the new deletes.

        :param positions: sorted, without duplicates, and at least one.
        :param newly: the digest of the rows that no earlier run deleted.
        """
        uri = f"{self._location}/{file.base_name}"
        with self.staging.writer(
            self._name("staged", "part-deletes"), position_deletes.SCHEMA, one_file=True
        ) as writer:
            writer.write(position_deletes.deletes_table(uri, positions))
        (deletes,) = writer.files
        return replace(file, deletes=replace(deletes, digest=with_more(file.deletes, newly)))

    def _name(self, work: str, part: str) -> str:
        return f"{part}-{self._run_id}" if self._run_id else f"{work}/{self._table}/{part}"


def table_files(staging: Staging, entry: RunTable, schema: pa.Schema) -> TableFileWriter:
    """Return the writer of the data files of one table of a run.

    :param staging: the run's own folder, with the codec of the files.
    :param schema: the result of `Source.arrow_schema` for the table.
    """
    published = published_schema(entry.table, schema)
    table, key = folder_name(entry.table.name), entry.table.key[0] if entry.table.key else ""
    if entry.place is None:
        return TableFileWriter(staging, published, published, table, "", key)
    run_id = staging.folder.uri.rpartition("/")[2]
    place, data = entry.place, replace(staging, folder=Storage(entry.place.folder))
    schema = place.schema(published)
    return TableFileWriter(data, published, schema, table, run_id, key, place.location, place.partition)


def base_schema(place: Place | None, table: Table, schema: pa.Schema) -> pa.Schema:
    """Return the schema of the files of a copy that an earlier run published.

    :param place: the place of the table's data files in that run.
    :param schema: the result of `Source.arrow_schema` for the table in that run.
    """
    published = published_schema(table, schema)
    return published if place is None else place.schema(published)


def written_by(run_id: str, name: str) -> bool:
    """Return whether the run ``run_id`` wrote the data file ``name``, which is at its final place."""
    return f"-{run_id}-" in name
