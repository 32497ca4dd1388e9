"""The Iceberg table of a copied table: its name, its properties, and the place of its data files."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import ListType

from airflow_provider_cdc.core.run.manifest import Place
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sinks.base import Prepared
from airflow_provider_cdc.sinks.iceberg.catalog import Identifier, folder_of, load_table, name_of
from airflow_provider_cdc.sinks.iceberg.layout import (
    check_columns,
    check_partitioning,
    decode_identities,
    encode_identities,
    encode_order,
    evolved_columns,
    new_schema,
    partition_spec,
    schema_digest,
    sort_order,
)

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
CODEC = "write.parquet.compression-codec"
"""The property of a table that tells other writers the codec of the data files."""
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_UUID, _SCHEMA, _IDENTIFIER, _LOCATION, _COLUMNS = "table_uuid", "schema", "identifier", "location", "columns"
_SPEC, _ORDER, _NAMES_BEFORE = "partition_spec_id", "sort_order", "names_before"
_SCHEMA_THEN = "schema_then"
"""The key of the digest of the schema that the Iceberg table had when the place was prepared."""


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
            where="parameter table_name (Iceberg.table_name)",
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
                where="parameter table_name (Iceberg.table_name)",
                hint="choose a template that gives each table its own name, with {schema} and {table} in it, such "
                "as raw.{schema}_{table}",
            )


def _folded(identifier: Identifier, ignores_case: bool) -> Identifier:
    return tuple(part.lower() for part in identifier) if ignores_case else identifier


def check_same_table(name: str, other: str, where: str) -> None:
    """Check that an Iceberg table has only copies of one table.

    :param other: the source table whose copies are in the Iceberg table; empty if it is unknown.
    :raises ConfigurationError: the Iceberg table has copies of another table.
    """
    if other and other != name:
        raise ConfigurationError(
            f"the Iceberg table has copies of {other}, and would get those of {name}",
            where=where,
            hint="choose a template in Iceberg.table_name that gives each table its own name, with {schema} and "
            "{table} "
            "in it, such as raw.{schema}_{table}",
        )


def prepare_table(
    catalog: Catalog, lake: Storage, identifier: Identifier, table: Prepared, own: bool, new_column: bool = False
) -> Place:
    """Create the Iceberg table, or determine how its schema must change. Return the place of its data files.

    The namespace must exist (`catalog.make_namespace`). A changed schema is part of the `Place`, and is committed
    together with the first rows that use it.

    :param own: whether this package, and not the catalog, chooses the location of the table.
    :param new_column: whether a column whose type changed may become a new column (`evolved_columns`).
    :raises ConfigurationError: the table has rows of another writer, or Iceberg does not support the change of a
        column's type. Or the table changed since it was prepared for the rows that were read (`Prepared.read`).
    """
    where = name_of(identifier)
    schema = new_schema(table, where)
    check_columns(table)
    existing = load_table(catalog, identifier)
    if table.read is not None:
        _check_as_then(existing, table.read, where)
    if existing is None:
        properties = {**_PROPERTIES, TABLE: str(table.name)}
        location = f"{LakeUri.parse(lake.uri).plain}/{_folder_name(identifier)}" if own else None
        try:
            existing = catalog.create_table(
                identifier,
                schema,
                location=location,
                partition_spec=partition_spec(table.layout.partition, schema),
                sort_order=sort_order(table, schema),
                properties=properties,
            )
        except TableAlreadyExistsError:
            existing = catalog.load_table(identifier)
    check_version(existing, where)
    check_same_table(str(table.name), existing.properties.get(TABLE, ""), where)
    if existing.metadata.current_snapshot_id is not None and HEAD not in existing.properties:
        raise ConfigurationError(
            "the table exists, and no run of this package published it",
            where=where,
            hint="drop or rename it, or choose other names with Iceberg.table_name",
        )
    # No rows of another type are in a table that was never published.
    retypes = new_column or not existing.metadata.snapshots
    evolved = evolved_columns(existing.metadata, table, schema, retypes, where)
    check_partitioning(existing.metadata, evolved.schema, table.layout.partition, where)
    columns = {field.name: field for field in evolved.schema.fields}
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
            _SCHEMA: evolved.schema.model_dump_json(),
            _COLUMNS: encode_identities(evolved.identities),
            _NAMES_BEFORE: encode_identities({columns[now].field_id: was for now, was in table.names_before.items()}),
            _SPEC: str(existing.spec().spec_id),
            _ORDER: encode_order(sort_order(table, evolved.schema)),
            _SCHEMA_THEN: schema_digest(existing.schema()),
        },
        f"{str(existing.location()).rstrip('/')}/{DATA}",
        table.layout.partition,
    )


def _check_as_then(existing: Table | None, read: Place, where: str) -> None:
    """Check that the Iceberg table has not changed since it was prepared for rows that were read. If its columns
    changed, the names of the columns that were read may be those of other Iceberg columns now.

    :raises ConfigurationError: it changed.
    """
    if existing is None or str(existing.metadata.table_uuid) != recorded_uuid(read):
        what = "the Iceberg table was dropped or replaced"
    elif folder_of(existing, DATA).uri != read.folder:
        what = "the Iceberg table was moved"
    elif read.details.get(_SCHEMA_THEN) != schema_digest(existing.schema()):
        what = "another run or another program changed the columns of the Iceberg table"
    else:
        return
    raise ConfigurationError(f"{what} while the run was at work", where=where, hint="trigger a new run")


def check_version(table: Table, where: str) -> None:
    """Check that this package can write to the table.

    :raises ConfigurationError: another program changed its format.
    """
    version = table.metadata.format_version
    if version != _VERSION:
        raise ConfigurationError(
            f"the Iceberg table has format version {version}, and runs write tables of format version {_VERSION}",
            where=where,
            hint="drop the table, and trigger a new run, which creates it anew",
        )


def recorded_spec_id(place: Place) -> int:
    """Return the id of the partition spec of the data files. Runs of earlier versions write unpartitioned tables."""
    return int(place.details.get(_SPEC, "0"))


def recorded_order(place: Place) -> str:
    """Return the wanted sort order (`layout.encode_order`). It is empty if an earlier version of this package began the
    run."""
    return place.details.get(_ORDER, "")


def recorded_identifier(place: Place) -> Identifier:
    return tuple(place.details[_IDENTIFIER].split("\x1f"))


def recorded_uuid(place: Place) -> str:
    return place.details[_UUID]


def recorded_location(place: Place) -> str:
    """Return the location of the data files in the notation of the table's metadata."""
    # Versions of this package without position deletes recorded the location in ``details``.
    return place.location or place.details[_LOCATION]


def recorded_schema(place: Place) -> Schema:
    return Schema.model_validate_json(place.details[_SCHEMA])


def names_before(place: Place) -> dict[int, str]:
    """Return the names that the columns had in the base copy, by field id. Empty: the table was not altered since."""
    return decode_identities(place.details.get(_NAMES_BEFORE, "{}"))


def recorded_columns(place: Place) -> dict[int, str]:
    """Return the identities of the columns by field id. Runs of earlier versions recorded no identities."""
    return decode_identities(place.details.get(_COLUMNS, "{}"))


def _folder_name(identifier: Identifier) -> str:
    """Return a folder name that every engine takes literally. Different tables have different names."""
    name = ".".join(identifier)
    if all(map(_PLAIN.fullmatch, identifier)) and len(name) < 200:
        return name
    digest = hashlib.sha256("\0".join(identifier).encode()).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', name)[:150]}-{digest}"
