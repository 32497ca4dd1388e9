"""The Iceberg table of a copied table: its name, its schema, and the changes of the schema after the source's changes.

Columns are identified by name. A column that was renamed at the source becomes a new column here. The new column is
null in the rows of earlier copies, so it never shows a wrong value.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.update.schema import UpdateSchema
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
from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared
from airflow_provider_cdc.sinks.iceberg.catalog import Identifier, folder_of, load_table, name_of

RUN_ID = "cdc.run_id"
"""The property of a snapshot that contains the id of the run."""
HEAD = "cdc.head"
"""The property of a table that contains the record of the newest copy (`core.copies.head.Copy`)."""
TABLE = "cdc.table"
"""The property of an Iceberg table that contains the name of the copied table at the source."""
DATA, METADATA = "data", "metadata"

_VERSION = 2

_PROPERTIES = {
    "format-version": str(_VERSION),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
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
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_UUID, _SCHEMA, _IDENTIFIER, _LOCATION = "table_uuid", "schema", "identifier", "location"


def identifier_of(table: TableName, template: str, source: str) -> Identifier:
    """Return the name of the Iceberg table for the copies of ``table``.

    :param template: `LakeSettings.table_name`.
    :raises ConfigurationError: the template does not give a name with a namespace.
    """
    try:
        parts = [part.format(schema=table.schema, table=table.name, source=source) for part in template.split(".")]
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        parts = []
    if len(parts) < 2 or not all(parts):
        raise ConfigurationError(
            f"{template!r} is no template of the names of tables",
            where="parameter table_name",
            hint="write it as namespace.table, with {schema}, {table} or {source} in it: {schema}.{table}",
        )
    if table.part:
        parts[-1] += f"__part_{table.part}"
    return tuple(parts)


def check_identifiers(identifiers: Mapping[TableName, Identifier], cuts: Identifier, ignores_case: bool) -> None:
    """Check that each table of a run has a separate Iceberg table.

    :param cuts: the name of the table of cuts.
    :param ignores_case: whether the catalog ignores case in names.
    :raises ConfigurationError: two tables would share an Iceberg table, or a table would share the table of cuts.
    """
    taken: dict[Identifier, str] = {_folded(cuts, ignores_case): "the table of cuts"}
    for table, identifier in identifiers.items():
        other = taken.setdefault(_folded(identifier, ignores_case), str(table))
        if other != str(table):
            raise ConfigurationError(
                f"{table} and {other} would be one Iceberg table: {name_of(identifier)}"
                + (" (the catalog ignores case)" if ignores_case else ""),
                where="parameter table_name",
                hint="choose a template that gives each table its own name, with {schema} and {table} in it, such "
                "as raw.{schema}_{table}",
            )


def _folded(identifier: Identifier, ignores_case: bool) -> Identifier:
    return tuple(part.lower() for part in identifier) if ignores_case else identifier


def check_same_table(name: str, other: str, where: str) -> None:
    """Check that an Iceberg table has only copies of one table.

    :param other: the table whose copies the Iceberg table has; empty: unknown.
    :raises ConfigurationError: the Iceberg table has copies of another table.
    """
    if other and other != name:
        raise ConfigurationError(
            f"the Iceberg table has copies of {other}, and would get those of {name}",
            where=where,
            hint="choose a template in table_name that gives each table its own name, with {schema} and {table} "
            "in it, such as raw.{schema}_{table}",
        )


def prepare_table(catalog: Catalog, lake: Storage, identifier: Identifier, table: Prepared, own: bool) -> Place:
    """Create the Iceberg table, or determine how its schema must change. Return the place of its data files.

    The namespace must exist (`catalog.make_namespace`). A changed schema is part of the `Place`, and is committed
    together with the first rows that use it.

    :param own: whether this package, and not the catalog, chooses the location of the table.
    :raises ConfigurationError: the table has rows of another writer, or Iceberg does not support the change of a
        column's type.
    """
    where = name_of(identifier)
    schema = _schema(table, where)
    existing = load_table(catalog, identifier)
    if existing is None:
        properties = {**_PROPERTIES, TABLE: str(table.name)}
        location = f"{LakeUri.parse(lake.uri).plain}/{_folder_name(identifier)}" if own else None
        try:
            existing = catalog.create_table(identifier, schema, location=location, properties=properties)
        except TableAlreadyExistsError:
            existing = catalog.load_table(identifier)
    check_writable(existing, where)
    check_same_table(str(table.name), existing.properties.get(TABLE, ""), where)
    if existing.metadata.current_snapshot_id is not None and HEAD not in existing.properties:
        raise ConfigurationError(
            "the table exists, and no run of this package published it",
            where=where,
            hint="drop or rename it, or choose other names with table_name",
        )
    evolved = _evolved(existing, schema, where)
    columns = {field.name: field for field in evolved.fields}
    element_ids = {
        name: field.field_type.element_id for name, field in columns.items() if isinstance(field.field_type, ListType)
    }
    return Place(
        folder_of(existing, DATA).uri,
        {name: columns[name].field_id for name in table.published.names},
        element_ids,
        {
            _IDENTIFIER: "\x1f".join(identifier),
            _UUID: str(existing.metadata.table_uuid),
            _SCHEMA: evolved.model_dump_json(),
        },
        f"{str(existing.location()).rstrip('/')}/{DATA}",
    )


def check_writable(table: Table, where: str) -> None:
    """Check that this package can write to the table.

    :raises ConfigurationError: another program partitioned the table, or changed its format.
    """
    version = table.metadata.format_version
    if version != _VERSION or not table.spec().is_unpartitioned():
        what = f"has format version {version}" if version != _VERSION else "is partitioned"
        raise ConfigurationError(
            f"the Iceberg table {what}, and runs write unpartitioned tables of format version {_VERSION}",
            where=where,
            hint="drop the table, and trigger a new run, which creates it anew"
            if version != _VERSION
            else "remove the fields of the partition spec, or drop the table, and trigger a new run",
        )


def recorded_identifier(place: Place) -> Identifier:
    return tuple(place.details[_IDENTIFIER].split("\x1f"))


def recorded_uuid(place: Place) -> str:
    return place.details[_UUID]


def recorded_location(place: Place) -> str:
    """Return the location of the data files in the notation of the table's metadata."""
    # Versions without position deletes recorded the location with the other details.
    return place.location or place.details[_LOCATION]


def recorded_schema(place: Place) -> Schema:
    return Schema.model_validate_json(place.details[_SCHEMA])


def _schema(table: Prepared, where: str) -> Schema:
    fields = []
    element_id = len(table.published) + 1
    for number, column in enumerate(table.published, 1):
        try:
            kind = file_type(column.type)
        except TypeError as error:
            raise ConfigurationError(
                f"the column {column.name} cannot be copied to an Iceberg table: {error}",
                where=where,
                hint="leave it out (columns), or publish it as text (unrepresentable)",
            ) from error
        if pa.types.is_list(kind):
            iceberg: IcebergType = ListType(element_id, _iceberg_type(kind.value_type), element_required=False)
            element_id += 1
        else:
            iceberg = _iceberg_type(kind)
        fields.append(NestedField(number, column.name, iceberg, required=column.name in table.key))
    return Schema(*fields, identifier_field_ids=_key_ids(fields, table.key))


def _iceberg_type(kind: pa.DataType) -> IcebergType:
    return DecimalType(kind.precision, kind.scale) if pa.types.is_decimal128(kind) else _TYPES[kind]


def _key_ids(fields: Sequence[NestedField], key: Sequence[str]) -> list[int]:
    """Return the ids of Iceberg's identifier fields. The specification excludes floats and optional columns."""
    columns = [field for field in fields if field.name in key]
    if any(isinstance(field.field_type, FloatType | DoubleType) or not field.required for field in columns):
        return []
    return [field.field_id for field in columns]


def _evolved(table: Table, wanted: Schema, where: str) -> Schema:
    """Return the table's schema, changed so that it can hold the columns of ``wanted``."""
    current = table.schema()
    there = {field.name: field for field in current.fields}
    asked = {field.name: field for field in wanted.fields}
    transaction = Transaction(table)
    try:
        with transaction.update_schema() as update:
            keys = {field.name for field in wanted.fields if field.field_id in wanted.identifier_field_ids}
            before = {field.name for field in current.fields if field.field_id in current.identifier_field_ids}
            # A column that becomes part of the key stays optional, because earlier snapshots may have nulls in it.
            keys = {name for name in keys if name not in there or there[name].required}
            if keys != before:
                update.set_identifier_fields(*(name for name in keys if name in there))
            for name in there.keys() - asked.keys():
                update.delete_column((name,))
            for name, field in asked.items():
                if name not in there:
                    update.add_column((name,), field.field_type)
                    continue
                column = there[name].field_type
                if not holds(column, field.field_type):
                    if not holds(field.field_type, column):
                        # PyIceberg would also change the scale of a decimal, and then read earlier values as wrong
                        # numbers.
                        raise ValueError(f"Cannot change column type: {name}: {column} -> {field.field_type}")
                    _widen(update, name, field.field_type)
                if there[name].required and not field.required:
                    update.make_column_optional((name,))
    except Exception as error:
        # PyIceberg raises ValidationError, ValueError or TypeError for a change that it does not support.
        raise ConfigurationError(
            f"the columns of the source changed in a way that the Iceberg table cannot follow: {error}",
            where=where,
            hint="rename or drop the Iceberg table, and trigger a new run, which creates it anew",
        ) from error
    evolved: Schema = transaction.table_metadata.schema()
    return evolved


def _widen(update: UpdateSchema, name: str, kind: IcebergType) -> None:
    if isinstance(kind, ListType):
        update.update_column((name, "element"), field_type=kind.element_type)
    else:
        update.update_column((name,), field_type=kind)


def holds(column: IcebergType, values: IcebergType) -> bool:
    """Return whether a column of type ``column`` can hold all values of the type ``values``, so that readers can widen
    values from older files."""
    if isinstance(column, ListType) and isinstance(values, ListType):
        # Compare only the types of the elements, because their ids differ.
        return holds(column.element_type, values.element_type)
    if isinstance(column, DecimalType) and isinstance(values, DecimalType):
        return column.scale == values.scale and column.precision >= values.precision
    return column == values or (column, values) in _WIDER


def _folder_name(identifier: Identifier) -> str:
    """Return a folder name that every engine takes literally. Different tables have different names."""
    name = ".".join(identifier)
    if all(map(_PLAIN.fullmatch, identifier)) and len(name) < 200:
        return name
    digest = hashlib.sha256("\0".join(identifier).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:150]}-{digest}"
