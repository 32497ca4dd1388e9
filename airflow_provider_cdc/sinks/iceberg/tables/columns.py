"""The columns of an Iceberg table, and how they follow the columns of the source.

The source may give each column an identity. A renamed column keeps its identity, and no other column ever gets it. The
property `COLUMNS` of the table records the identities by field id. So a renamed column stays one Iceberg column, and a
column that was dropped and added again is another column. Columns without an identity are identified by their name, or,
if a copy is rolled forward over schema changes, by the name that the log shows that they had in that copy. If such a
table is read in full, a renamed column becomes a new column, which is null in the rows of earlier copies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
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
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared

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
                hint="leave it out (columns), or publish it as text (unrepresentable)",
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
    by_name = {field.name: field for field in current.fields}
    by_identity = {recorded[field.field_id]: field for field in current.fields if field.field_id in recorded}
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
            hint="choose on_type_change = new_column, so that such a column gets a new Iceberg column of its name; or "
            "rename or drop the Iceberg table, and trigger a new run, which creates it anew",
        )
    keys = [field.name for field in wanted.fields if field.field_id in wanted.identifier_field_ids]
    identities = {field.field_id: table.identities.get(field.name, "") for field in fields}
    return Columns(
        Schema(*fields, identifier_field_ids=_key_ids(fields, keys)),
        {field_id: identity for field_id, identity in identities.items() if identity},
    )


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
