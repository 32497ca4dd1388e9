"""Reads cuts, for programs that read the tables. Needs PyIceberg, but no Airflow, no Spark and no database."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_provider_cdc.core.copies.head import decode_copy
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, ManifestError
from airflow_provider_cdc.sinks.base import LatestCopy
from airflow_provider_cdc.sinks.iceberg.catalog import identifier_in, open_catalog
from airflow_provider_cdc.sinks.iceberg.commit import COPY, property_of
from airflow_provider_cdc.sinks.iceberg.cut_table import CutRow, find_cuts, newest_cut
from airflow_provider_cdc.sinks.registry import CUTS_NAMESPACE

if TYPE_CHECKING:
    import polars
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


@dataclass(frozen=True)
class CutTable:
    """One table of a cut.

    :param table: the table's name at the source, ``schema.table``.
    :param identifier: the name of the Iceberg table. A part that contains a dot is in double quotes.
    :param snapshot_id: the snapshot to read.
    :param position: the position at which the table's rows are exact: the cut's position, or an older position if the
        run left the table out.
    :param rows: the number of rows.
    """

    table: str
    identifier: str
    snapshot_id: int
    position: str
    rows: int
    _catalog: Any

    def load(self) -> Table:
        """Load the Iceberg table."""
        table: Table = self._catalog.load_table(identifier_in(self.identifier))
        return table

    def copy(self) -> LatestCopy:
        """Return the record of the copy, without its files.

        :raises ManifestError: the snapshot is gone.
        """
        snapshot = self.load().metadata.snapshot_by_id(self.snapshot_id)
        if snapshot is None:
            raise ManifestError(
                f"the snapshot {self.snapshot_id} is gone",
                where=self.identifier,
                hint="the copy was removed (the option keep), or the table was made again: read a newer cut",
            )
        record = decode_copy(json.loads(property_of(snapshot, COPY)), self.identifier)
        return LatestCopy.of(TableName.parse(self.table), record, record.path, ())

    def arrow_schema(self) -> pa.Schema:
        """Return the columns, with the types of the Iceberg table."""
        schema = self.load().scan(snapshot_id=self.snapshot_id).projection().as_arrow()
        return pa.schema([column.with_type(_with_small_offsets(column.type)) for column in schema])

    def to_arrow(self) -> pa.Table:
        """Return the rows."""
        return self.load().scan(snapshot_id=self.snapshot_id).to_arrow()

    def to_polars(self) -> polars.LazyFrame:
        """Return the rows as a Polars LazyFrame."""
        import polars

        return polars.scan_iceberg(self.load(), snapshot_id=self.snapshot_id)

    def duckdb(self) -> str:
        """Return the table as DuckDB SQL, for use in ``SELECT … FROM {this}``. DuckDB needs its extension
        ``iceberg``."""
        location = self.load().metadata_location.replace("'", "''")
        return f"iceberg_scan('{location}', snapshot_from_id = {self.snapshot_id})"

    def spark(self, catalog: str) -> str:
        """Return the table as Spark SQL, for use in ``SELECT … FROM {this}``.

        :param catalog: the name of the catalog in Spark's configuration.
        """
        parts = ".".join("`" + part.replace("`", "``") + "`" for part in (catalog, *identifier_in(self.identifier)))
        return f"{parts} VERSION AS OF {self.snapshot_id}"


@dataclass(frozen=True)
class Cut:
    """The copies of all tables of a run, all exact at one position.

    :param number: the number of the cut. Later cuts have greater numbers.
    :param run_id: the id of the run that published the cut.
    :param position: the GTID set or LSN at which the cut is exact.
    :param group: the task group of the run.
    :param source: the source: ``kind``, ``connection``, ``server`` and ``database``. Unknown values are left out.
    :param recorded_at: when the run recorded its initial position.
    :param published_at: when the run decided which files it publishes.
    :param tables: the tables of the cut, by the table's name at the source.
    """

    number: int
    run_id: str
    position: str
    group: str
    source: Mapping[str, str]
    recorded_at: datetime
    published_at: datetime
    tables: Mapping[str, CutTable]

    def __getitem__(self, table: str) -> CutTable:
        """Return one table of the cut.

        :raises KeyError: the cut does not have the table.
        """
        return self.tables[table]

    def dbt_vars(self, tables: Collection[str] = (), *, spark: str = "") -> dict[str, Any]:
        """Return the variables of dbt for the macro ``cdc_table``, which then reads tables of this cut. Pass them as
        JSON in ``dbt run --vars``.

        :param tables: the tables that the models read, by their names at the source. If it is empty, all tables of the
            cut. For dbt on DuckDB, each of these tables is looked up in the catalog.
        :param spark: if dbt runs on Spark, the name of the catalog in Spark's configuration. It is empty if dbt runs on
            DuckDB.
        :raises KeyError: the cut does not have one of ``tables``.
        """
        chosen = [self[table] for table in tables or self.tables]
        sql = {one.table: one.spark(spark) if spark else one.duckdb() for one in chosen}
        return {"cdc_cut": {"run_id": self.run_id, "position": self.position, "tables": sql}}


def read_cut(
    catalog: Catalog | str,
    *,
    namespace: str = CUTS_NAMESPACE,
    group: str | None = None,
    run_id: str | None = None,
    position: str | None = None,
) -> Cut | None:
    """Return the newest cut, or the cut of a given run or position. Return None if there is no such cut.

    :param catalog: a PyIceberg catalog; or the target of the runs, if the catalog is in the target folder.
    :param namespace: the namespace of the table of cuts.
    :param group: the task group of the runs. It may be None if there is only one group.
    :raises ConfigurationError: there are cuts of several groups or sources, and the call does not name one.
    """
    opened = open_catalog(None, Storage(catalog)) if isinstance(catalog, str) else catalog
    rows = find_cuts(opened, namespace)
    wanted = [
        row
        for row in rows
        if (group is None or row.group == group)
        and (run_id is None or row.run_id == run_id)
        and (position is None or row.position == position)
    ]
    groups = sorted({row.group for row in wanted})
    if len(groups) > 1:
        raise ConfigurationError(
            f"there are cuts of {len(groups)} task groups",
            where=f"{namespace}.cdc_cuts",
            hint=f"name one in group: {', '.join(map(repr, groups))}",
        )
    if not wanted:
        return None
    newest = newest_cut(wanted)
    return _cut([row for row in rows if row.cut == newest and row.group == groups[0]], opened)


def _with_small_offsets(kind: pa.DataType) -> pa.DataType:
    """Return ``kind`` with the offsets that data files have. PyIceberg converts a schema without files to types with
    large offsets."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_with_small_offsets(kind.value_type)))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def _cut(rows: list[CutRow], catalog: Catalog) -> Cut:
    first = rows[0]
    return Cut(
        first.cut,
        first.run_id,
        first.position,
        first.group,
        json.loads(first.source),
        first.recorded_at,
        first.published_at,
        {
            row.table: CutTable(row.table, row.identifier, row.snapshot_id, row.table_position, row.rows, catalog)
            for row in rows
        },
    )
