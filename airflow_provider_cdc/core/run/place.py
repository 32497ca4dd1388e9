"""The place where a run writes the data files of one table's copy, if the lake's format has its own metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_provider_cdc.core.tables.layout import PartitionField

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Place:
    """A table of the lake, with the facts that tasks need to write its data files. The manifest contains places, so a
    place must not contain a secret.

    ``folder`` is the URI of the folder of the data files. ``field_ids`` has the field ids of the table's columns, by
    the column's name. ``element_ids`` has the field ids of the elements of list columns. The catalog assigned these
    ids. Without the field ids in the files, readers would see values of a dropped column in a new column of the same
    name. ``partition`` is the partitioning of the table. ``details`` has all other facts that the sink needs to
    publish. ``location`` is the location of the data files, as the table's metadata writes it. Position deletes name a
    data file by this location. It is empty if the format has no position deletes, or if a version of this package
    without position deletes began the run.
    """

    folder: str
    field_ids: dict[str, int]
    element_ids: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    location: str = ""
    partition: tuple[PartitionField, ...] = ()

    def schema(self, published: pa.Schema) -> pa.Schema:
        """Return the schema of the data files of a table with the published schema ``published``."""
        # Import PyArrow late, because the import is slow, and manifests are also read where DAGs are parsed.
        from airflow_provider_cdc.core.parquet.lake_types import file_schema

        return file_schema(published, self.field_ids, self.element_ids)
