"""Changes the schema of a table, in the same commit that adds the rows with the new columns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertLastAssignedFieldId,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)

from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.iceberg.tables.columns import COLUMNS, encode_identities, holds, recorded_identities

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
