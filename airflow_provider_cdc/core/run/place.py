"""Where a run writes the data files of one table's copy, in a format that owns its metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Place:
    """A table of the lake, as the tasks that write its data files know it. The manifest holds it, so it has no secret.

    ``folder`` is the URI of the folder of the data files. ``field_ids`` are the table's, by the column's name, and
    ``element_ids`` those of the elements of list columns: the catalog assigned them, and files without them would show
    a dropped column's values under a new column of the same name. ``details`` is what else the sink needs to publish.
    """

    folder: str
    field_ids: dict[str, int]
    element_ids: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    def schema(self, published: pa.Schema) -> pa.Schema:
        """The schema of the data files of a table that is published as ``published``."""
        # Manifests are read where DAGs are parsed, and PyArrow takes a while to import.
        from airflow_provider_cdc.core.parquet.lake_types import file_schema

        return file_schema(published, self.field_ids, self.element_ids)
