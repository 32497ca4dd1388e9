"""The partitioning and the sort order of an Iceberg table."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortOrder
from pyiceberg.table.sorting import SortField as IcebergSortField
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AddSortOrderUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
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
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_provider_cdc.core.parquet.lake_types import file_type
from airflow_provider_cdc.core.parquet.partitions import described, problem_of
from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.tables.table import PartitionField
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
        f"the Iceberg table is partitioned by {present or 'nothing'}, and Table.partition_by of this run is "
        f"{described(fields)}{why}",
        where=where,
        hint="rename or drop the Iceberg table, and trigger a new run, which creates it anew; or set "
        "Table.partition_by to "
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
                f"Table.sort_by names the column {field.column}, which is a list",
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


# The columns of an Iceberg table, and how they follow the columns of the source.
#
# The source may give each column an identity. A renamed column keeps its identity, and no other column ever gets it.
# The property `COLUMNS` of the table records the identities by field id. So a renamed column stays one Iceberg column,
# and a column that was dropped and added again is another column. Columns without an identity are identified by their
# name, or, if a copy is rolled forward over schema changes, by the name that the log shows that they had in that copy.
# If such a table is read in full, a renamed column becomes a new column, which is null in the rows of earlier copies.


COLUMNS = "cdc.columns"
"""The property of a table that contains, as a JSON object, the identity of the source's column by field id."""

_TYPES: dict[pa.DataType, IcebergType] = {
    pa.bool_(): BooleanType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us"): TimestampType(),
    pa.timestamp("us", "UTC"): TimestamptzType(),
}
_WIDER = ((LongType(), IntegerType()), (DoubleType(), FloatType()))


@dataclass(frozen=True)
class Columns:
    """The columns of an Iceberg table: its schema, and the identities of the columns by field id."""

    schema: Schema
    identities: Mapping[int, str]


def new_schema(table: Prepared, where: str) -> Schema:
    """Return the schema of a table that does not exist yet. The catalog assigns other field ids.

    :raises ConfigurationError: Iceberg has no type for a column.
    """
    fields = []
    ids = count(len(table.published) + 1)
    for number, column in enumerate(table.published, 1):
        try:
            kind = iceberg_type(column.type, ids)
        except TypeError as error:
            raise ConfigurationError(
                f"the column {column.name} cannot be copied to an Iceberg table: {error}",
                where=where,
                hint="leave it out (Table.columns), or publish it as text (On.unrepresentable)",
            ) from error
        fields.append(NestedField(number, column.name, kind, required=column.name in table.key))
    return Schema(*fields, identifier_field_ids=_key_ids(fields, table.key))


def evolved_columns(metadata: TableMetadata, table: Prepared, wanted: Schema, new_column: bool, where: str) -> Columns:
    """Return the columns of an existing table, changed so that they can hold the rows of ``table``.

    :param wanted: `new_schema` of ``table``.
    :param new_column: whether a column gets a new field id if the values in ``wanted`` do not fit its present type.
        Older snapshots keep the old column.
    :raises ConfigurationError: the type of a column changed, and its present type cannot hold the values.
    """
    current = metadata.schema()
    recorded = recorded_identities(metadata)
    by_name = _fields_by_name(metadata, table.base)
    there = *by_name.values(), *current.fields
    by_identity = {recorded[field.field_id]: field for field in there if field.field_id in recorded}
    ids = count(metadata.last_column_id + 1)
    fields, changed = [], []
    for asked in wanted.fields:
        identity = table.identities.get(asked.name, "")
        present = by_identity.get(identity) if identity else None
        named = by_name.get(table.names_before.get(asked.name, asked.name))
        if present is None and named is not None and (not identity or named.field_id not in recorded):
            # The source gives no identities, or an earlier version of this package did not record them.
            present = named
        kind = None if present is None else _widened(present.field_type, asked.field_type)
        if present is not None and kind is None:
            changed.append(f"{asked.name} ({present.field_type} became {asked.field_type})")
        if present is None or kind is None:
            # A new column is optional, because the rows of earlier copies have no value for it.
            fields.append(NestedField(next(ids), asked.name, _with_ids(asked.field_type, ids), required=False))
            continue
        update = {"name": asked.name, "field_type": kind, "required": present.required and asked.required}
        fields.append(present.model_copy(update=update))
    if changed and not new_column:
        raise ConfigurationError(
            f"columns have other types, and the columns of the Iceberg table cannot be widened to them: "
            f"{', '.join(changed)}",
            where=where,
            hint="choose On.type_change = new_column, so that such a column gets a new Iceberg column of its name; or "
            "rename or drop the Iceberg table, and trigger a new run, which creates it anew",
        )
    keys = [field.name for field in wanted.fields if field.field_id in wanted.identifier_field_ids]
    identities = {field.field_id: table.identities.get(field.name, "") for field in fields}
    return Columns(
        Schema(*fields, identifier_field_ids=_key_ids(fields, keys)),
        {field_id: identity for field_id, identity in identities.items() if identity},
    )


def _fields_by_name(metadata: TableMetadata, base: Place | None) -> dict[str, NestedField]:
    """Return the columns of a table by the names that they have in its present schema, or in the copy ``base``. A run
    that committed the table and not its cut may have renamed or dropped columns since that copy."""
    present = {field.name: field for field in metadata.schema().fields}
    if base is None:
        return present
    by_id = {field.field_id: field for schema in metadata.schemas for field in schema.fields}
    by_id |= {field.field_id: field for field in present.values()}
    return {name: by_id[field_id] for name, field_id in base.field_ids.items() if field_id in by_id}


def recorded_identities(metadata: TableMetadata) -> dict[int, str]:
    """Return the identities that the table records, by field id."""
    return decode_identities(metadata.properties.get(COLUMNS, "{}"))


def encode_identities(identities: Mapping[int, str]) -> str:
    return json.dumps({str(field_id): identities[field_id] for field_id in sorted(identities)})


def decode_identities(text: str) -> dict[int, str]:
    return {int(field_id): str(identity) for field_id, identity in json.loads(text).items()}


def iceberg_type(published: pa.DataType, ids: Iterator[int]) -> IcebergType:
    """Return the Iceberg type of a column with a published type.

    :param ids: the field ids to use for elements.
    :raises TypeError: Iceberg has no such type.
    """
    kind = file_type(published)
    if pa.types.is_list(kind):
        return ListType(next(ids), _plain_type(kind.value_type), element_required=False)
    return _plain_type(kind)


def _plain_type(kind: pa.DataType) -> IcebergType:
    return DecimalType(kind.precision, kind.scale) if pa.types.is_decimal128(kind) else _TYPES[kind]


def holds(column: IcebergType, values: IcebergType) -> bool:
    """Return whether a column of type ``column`` can hold all values of the type ``values``, so that readers can widen
    values from older files."""
    if isinstance(column, ListType) and isinstance(values, ListType):
        # Compare only the types of the elements, because their ids differ.
        return holds(column.element_type, values.element_type)
    if isinstance(column, DecimalType) and isinstance(values, DecimalType):
        return column.scale == values.scale and column.precision >= values.precision
    return column == values or (column, values) in _WIDER


def _widened(column: IcebergType, values: IcebergType) -> IcebergType | None:
    """Return a type that can hold the values of both types, ``column`` and ``values``. Return None if Iceberg cannot
    change the column to such a type.

    PyIceberg would also change the scale of a decimal, and then read earlier values as wrong numbers.
    """
    if holds(column, values):
        return column
    if not holds(values, column):
        return None
    if isinstance(column, ListType) and isinstance(values, ListType):
        return ListType(column.element_id, values.element_type, element_required=column.element_required)
    return values


def _with_ids(kind: IcebergType, ids: Iterator[int]) -> IcebergType:
    return ListType(next(ids), kind.element_type, element_required=False) if isinstance(kind, ListType) else kind


def _key_ids(fields: Sequence[NestedField], key: Sequence[str]) -> list[int]:
    """Return the ids of Iceberg's identifier fields: of all columns of the key, or none. The specification excludes
    floats and optional columns."""
    columns = [field for field in fields if field.name in key]
    if any(isinstance(field.field_type, FloatType | DoubleType) or not field.required for field in columns):
        return []
    return [field.field_id for field in columns]


# Changes the schema of a table, in the same commit that adds the rows with the new columns.


_NEW_RUN = "trigger a new run"


def stage_schema(
    transaction: Transaction,
    table: Table,
    wanted: Schema,
    identities: Mapping[int, str],
    names_before: Mapping[int, str],
    where: str,
) -> None:
    """Change the table's schema to ``wanted`` in the commit. The run's files were written with the schema ``wanted``.

    :param identities: the identities of the columns of ``wanted``, by field id.
    :param names_before: the names that the columns of ``wanted`` had in the base copy, by field id.
    :raises ConfigurationError: another run assigned a field id of ``wanted`` to another column.
    """
    metadata = table.metadata
    _check_ids(table, wanted, identities, names_before, where)
    if schema_key(wanted) == schema_key(table.schema()):
        return
    updates: tuple[TableUpdate, ...] = ()
    requirements: tuple[TableRequirement, ...] = (
        AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id}),
    )
    schema_id = next(
        (schema.schema_id for schema in metadata.schemas if schema_key(schema) == schema_key(wanted)), None
    )
    if schema_id is None:
        # Another run may have taken the schema id that this run prepared.
        number = max(schema.schema_id for schema in metadata.schemas) + 1
        added = Schema(*wanted.fields, schema_id=number, identifier_field_ids=wanted.identifier_field_ids)
        updates += (AddSchemaUpdate(schema=added),)
        requirements += (AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": metadata.last_column_id}),)
    updates += (_current(-1 if schema_id is None else schema_id),)
    transaction._stage(updates, requirements)


def schema_back(transaction: Transaction, table: Table) -> tuple[TableUpdate, ...]:
    """Return the updates that restore the schema that the table had before `stage_schema`."""
    current = table.metadata.current_schema_id
    return () if transaction.table_metadata.current_schema_id == current else (_current(current),)


def columns_update(table: Table, identities: Mapping[int, str]) -> tuple[TableUpdate, ...]:
    """Return the update that records the identities of the table's columns, unless they are recorded already.

    The record also keeps the identities of columns that exist only in older schemas.
    """
    metadata = table.metadata
    recorded = recorded_identities(metadata)
    named = {field.field_id for schema in metadata.schemas for field in schema.fields}
    merged = {field_id: recorded[field_id] for field_id in recorded if field_id in named} | dict(identities)
    if merged == recorded:
        return ()
    return (SetPropertiesUpdate(updates={COLUMNS: encode_identities(merged)}),)


def check_kept(table: Table, base: Snapshot, wanted: Schema, names_before: Mapping[int, str], where: str) -> None:
    """Check that each column has the same field id in the snapshot ``base`` and in ``wanted``.

    :param names_before: as for `stage_schema`. If it is not empty, the copy shares no file with the base, and a column
        of another type may have another field id.
    :raises ConfigurationError: a column was dropped since that snapshot, and a column with the same name was added.
    """
    schemas = {schema.schema_id: schema for schema in table.metadata.schemas}
    written = schemas.get(base.schema_id) if base.schema_id is not None else None
    fields = {field.name: field for field in written.fields} if written is not None else {}
    for field in wanted.fields:
        before = fields.get(names_before.get(field.field_id, field.name), field)
        retyped = bool(names_before) and not holds(field.field_type, before.field_type)
        if before.field_id != field.field_id and not retyped:
            raise ConfigurationError(
                f"the column {field.name} differs from the column with this name in the last copy",
                where=where,
                hint="trigger a new run with refresh = full, which reads the table anew",
            )


def schema_key(schema: Schema) -> tuple[tuple[object, ...], frozenset[int]]:
    """Return a value that is equal for equal schemas. Schema ids and the order of columns have no effect on the
    value."""
    fields = sorted(
        ((field.field_id, field.name, str(field.field_type), field.required) for field in schema.fields),
    )
    return tuple(fields), frozenset(schema.identifier_field_ids)


def schema_digest(schema: Schema) -> str:
    """Return a text that is equal for schemas with an equal `schema_key`."""
    fields, keys = schema_key(schema)
    return hashlib.sha256(repr((fields, sorted(keys))).encode()).hexdigest()[:32]


def _check_ids(
    table: Table, wanted: Schema, identities: Mapping[int, str], names_before: Mapping[int, str], where: str
) -> None:
    known = [field for schema in table.metadata.schemas for field in schema.fields]
    recorded = recorded_identities(table.metadata)
    for field in wanted.fields:
        if field.field_id > table.metadata.last_column_id:
            continue
        identity, before = identities.get(field.field_id, ""), recorded.get(field.field_id, "")
        was = names_before.get(field.field_id, field.name)
        others = [other for other in known if other.field_id == field.field_id]
        if not any(
            (identity == before if identity and before else other.name in (field.name, was))
            and (holds(other.field_type, field.field_type) or holds(field.field_type, other.field_type))
            for other in others
        ):
            raise ConfigurationError(
                f"another run changed the table's columns meanwhile: the field {field.field_id} is no longer the "
                f"column {field.name}",
                where=where,
                hint=_NEW_RUN,
            )


def _current(schema_id: int) -> SetCurrentSchemaUpdate:
    return SetCurrentSchemaUpdate.model_validate({"schema-id": schema_id})
