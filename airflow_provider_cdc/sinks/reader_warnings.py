"""Columns of copies that some readers confuse, refuse or take from elsewhere, although the copies are right.

`tests/sinks/test_reader_names.py` compares these rules with the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import pyarrow as pa

from airflow_provider_cdc.core.storage.uri import LakeUri
from airflow_provider_cdc.core.tables.table import TableName

COPY_KEY = "snapshot"
"""The key in the names of the folders of plain Parquet copies."""
RESERVED = ("_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id")
"""The names of Iceberg's metadata columns."""
_SHOWN = 10

_FROM_THE_PATH = "DuckDB's read_parquet in SQL, and PyArrow's read_table and pandas with a list of files,"
_CALLS = "hive_partitioning = false (DuckDB) or partitioning=None (PyArrow, pandas)"
_SHADOWED = (
    f"{_FROM_THE_PATH} take these columns from the name of a folder (name=value) in the path of the copies, so filters "
    f"return wrong rows. Readers must pass {_CALLS}. Or choose format = iceberg, or leave the columns out (option "
    "columns)"
)
_ALIKE = (
    "these columns differ only in case. Spark needs spark.sql.caseSensitive = true. DuckDB renames all but the first, "
    "and finds the first one by both names. If your readers need the names, copy only one of them (option columns)"
)
_TIME = (
    "Spark refuses a table with columns of the type time, unless spark.sql.timeType.enabled is set. Every Spark reads "
    "them with Lake.format = iceberg (as microseconds), or with On.unrepresentable = string (as text)"
)
_RESERVED = (
    "these are names of Iceberg's metadata columns, so Spark refuses to read these columns, and SELECT *. Choose "
    "format = parquet, or leave the columns out (option columns)"
)
_DOTTED = "PyIceberg cannot filter by these columns, because their names have a dot. Filter with another reader"


def reader_warnings(lake: str, format: str, tables: Mapping[TableName, pa.Schema]) -> list[str]:
    """Return a warning for each kind of columns that some readers misread.

    :param lake: the URI of the target.
    :param tables: the schemas of the copies.
    """
    keys = [] if format == "iceberg" else _keys(lake)
    rules: list[tuple[str, Callable[[pa.Schema], Iterable[str]]]] = [(_ALIKE, _alike)]
    if format == "iceberg":
        rules += [
            (_RESERVED, lambda schema: (name for name in schema.names if name in RESERVED)),
            (_DOTTED, lambda schema: (name for name in schema.names if "." in name)),
        ]
    else:
        folded = {*map(_folded, (*keys, COPY_KEY))}
        rules += [
            (_SHADOWED, lambda schema: (name for name in schema.names if _folded(name) in folded)),
            (_TIME, lambda schema: (field.name for field in schema if _has_time(field.type))),
        ]
    warnings = []
    for text, misread in rules:
        if found := [f"{table}.{name}" for table, schema in tables.items() for name in misread(schema)]:
            more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
            warnings.append(f"{', '.join(found[:_SHOWN])}{more}: {text}")
    if keys:
        shown = ", ".join(f"{key}=…" for key in keys)
        warnings.append(
            f"the path of the target has {shown}. {_FROM_THE_PATH} add such a column to every table, unless readers "
            f"pass {_CALLS}. Choose a target without name=value"
        )
    return warnings


def _keys(lake: str) -> list[str]:
    """Return the keys of the path's parts of the form ``key=value``."""
    return [key for key, equals, _ in (part.partition("=") for part in LakeUri.parse(lake).decoded) if key and equals]


def _alike(schema: pa.Schema) -> list[str]:
    by_fold: dict[str, list[str]] = {}
    for name in schema.names:
        by_fold.setdefault(_folded(name), []).append(name)
    return [name for alike in by_fold.values() if len(alike) > 1 for name in alike]


def _folded(name: str) -> str:
    """Return the same text for names that Java's ``equalsIgnoreCase`` takes for equal, such as ``ı`` and ``I``."""
    return name.upper().casefold().replace("i̇", "i")


def _has_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time(kind.value_type if pa.types.is_list(kind) else kind))
