"""The partitioning and the sort order of an Iceberg table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortOrder
from pyiceberg.table.sorting import SortField as IcebergSortField
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate, TableUpdate
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import ListType

from airflow_provider_cdc.core.parquet.lake_types import file_type
from airflow_provider_cdc.core.parquet.partitions import described, problem_of
from airflow_provider_cdc.core.tables.layout import PartitionField
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared

_FIRST_ID = 1000
"""The lowest id of a partition field in Iceberg's specification."""
_SHORT = {"truncate": "trunc"}


def check_columns(table: Prepared) -> None:
    """Check that the columns in the layout of a table exist in the copies, and have suitable types.

    :raises ConfigurationError: a column does not exist, or has another type.
    """
    names = table.published.names
    for option, fields in (("partition_by", table.layout.partition), ("sort_by", table.layout.sort)):
        for field in fields:
            if field.column not in names:
                raise ConfigurationError(
                    f"{option} names the column {field.column}, which the copies do not have",
                    where=str(table.name),
                    hint=f"the columns are {', '.join(names[:20])}",
                )
    for field in table.layout.partition:
        if problem := problem_of(field, file_type(table.published.field(field.column).type)):
            raise ConfigurationError(
                f"partition_by: {field}: {problem}", where=str(table.name), hint="choose another transform or column"
            )


def partition_spec(fields: Sequence[PartitionField], schema: Schema) -> PartitionSpec:
    """Return the partition spec of a table with the given schema."""
    names = {field.name for field in schema.fields}
    spec = []
    for number, field in enumerate(fields):
        name = field.column
        if field.transform != "identity":
            name = f"{field.column}_{_SHORT.get(field.transform, field.transform)}"
            while name in names:
                name += "_"
        names.add(name)
        spec.append(IcebergField(_id_of(schema, field.column), _FIRST_ID + number, _transform(field), name))
    return PartitionSpec(*spec)


def _transform(field: PartitionField) -> Transform[Any, Any]:
    match field.transform:
        case "bucket":
            return BucketTransform(field.number)
        case "truncate":
            return TruncateTransform(field.number)
        case "year":
            return YearTransform()
        case "month":
            return MonthTransform()
        case "day":
            return DayTransform()
        case "hour":
            return HourTransform()
    return IdentityTransform()


def check_partitioning(metadata: TableMetadata, schema: Schema, fields: Sequence[PartitionField], where: str) -> None:
    """Check that a table is partitioned by ``fields``.

    :param schema: the schema of the files that are to be published.
    :raises ConfigurationError: the table is partitioned in another way, or a column of the partitioning was dropped and
        created again.
    """
    wanted = [(field.source_id, str(field.transform)) for field in partition_spec(fields, schema).fields]
    spec = metadata.spec()
    if (not wanted and spec.is_unpartitioned()) or wanted == [
        (field.source_id, str(field.transform)) for field in spec.fields
    ]:
        return
    columns = {field.field_id: field.name for one in (*metadata.schemas, schema) for field in one.fields}
    present = ", ".join(f"{field.transform}({columns.get(field.source_id, '?')})" for field in spec.fields)
    gone = [columns.get(field.source_id, "?") for field in spec.fields if field.source_id not in _ids(schema)]
    why = f"; the source dropped the column {', '.join(gone)}, or created it anew" if gone else ""
    raise ConfigurationError(
        f"the Iceberg table is partitioned by {present or 'nothing'}, and partition_by of this run is "
        f"{described(fields)}{why}",
        where=where,
        hint="rename or drop the Iceberg table, and trigger a new run, which creates it anew; or set partition_by to "
        "the table's partitioning",
    )


def sort_order(table: Prepared, schema: Schema) -> SortOrder:
    """Return the sort order of a table with the given schema."""
    if not table.layout.sort:
        return UNSORTED_SORT_ORDER
    fields = []
    for field in table.layout.sort:
        column = next(one for one in schema.fields if one.name == field.column)
        if isinstance(column.field_type, ListType):
            raise ConfigurationError(
                f"sort_by names the column {field.column}, which is a list",
                where=str(table.name),
                hint="choose another column",
            )
        direction, nulls = (
            (SortDirection.DESC, NullOrder.NULLS_LAST)
            if field.descending
            else (SortDirection.ASC, NullOrder.NULLS_FIRST)
        )
        fields.append(IcebergSortField(column.field_id, IdentityTransform(), direction, nulls))
    return SortOrder(*fields)


def encode_order(order: SortOrder) -> str:
    return order.model_dump_json()


def without_lost_order(metadata: TableMetadata, schema: Schema) -> tuple[TableUpdate, ...]:
    """Return the updates that remove the table's sort order if it names a column that ``schema`` does not have. Commit
    these updates before the table's schema becomes ``schema``."""
    if {field.source_id for field in metadata.sort_order().fields} <= _ids(schema):
        return ()
    return _set_order(metadata, UNSORTED_SORT_ORDER)


def order_updates(metadata: TableMetadata, recorded: str) -> tuple[TableUpdate, ...]:
    """Return the updates that set the sort order of a table. Without the option, another program may set an order.

    :param metadata: the metadata of the table, with the schema that the commit sets.
    :param recorded: the result of `encode_order`. It is empty if an earlier version of this package began the run.
    """
    wanted = SortOrder.model_validate_json(recorded) if recorded else UNSORTED_SORT_ORDER
    return () if wanted.is_unsorted else _set_order(metadata, wanted)


def order_back(before: TableMetadata, metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    """Return the updates that restore the sort order of ``before``."""
    number = before.default_sort_order_id
    return () if number == metadata.default_sort_order_id else (_default_order(number),)


def _set_order(metadata: TableMetadata, wanted: SortOrder) -> tuple[TableUpdate, ...]:
    same = [order for order in metadata.sort_orders if _fields(order) == _fields(wanted)]
    if same:
        number = same[0].order_id
        return () if number == metadata.default_sort_order_id else (_default_order(number),)
    number = 0 if wanted.is_unsorted else max((order.order_id for order in metadata.sort_orders), default=0) + 1
    added = SortOrder(*wanted.fields, order_id=number)
    update = AddSortOrderUpdate.model_validate({"sort-order": json.loads(added.model_dump_json())})
    return update, _default_order(-1 if number else 0)


def _fields(order: SortOrder) -> list[str]:
    return [str(field) for field in order.fields]


def _default_order(number: int) -> TableUpdate:
    return SetDefaultSortOrderUpdate.model_validate({"sort-order-id": number})


def _id_of(schema: Schema, name: str) -> int:
    return next(field.field_id for field in schema.fields if field.name == name)


def _ids(schema: Schema) -> set[int]:
    return {field.field_id for field in schema.fields}
