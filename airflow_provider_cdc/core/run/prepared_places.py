"""Prepares the lake for the tables of a run, and decides which tables the run leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_provider_cdc.core.run.lake_format import LakeFormat
from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ConfigurationError


def prepare_places(
    lake_format: LakeFormat, tables: Sequence[Table], selections: Mapping[TableName, Selection], *, skips: bool
) -> tuple[dict[TableName, Place], dict[str, str]]:
    """Prepare the lake. Return the places of the data files, as ``lake_format.prepare`` does, and the tables that
    cannot be prepared, by name, each with the reason.

    :param skips: whether the run leaves such tables out (`on_table_error`). At least one table remains.
    :raises ConfigurationError: a table cannot be prepared, and is not left out; or the tables do not fit together.
    """
    try:
        return lake_format.prepare(tables, selections), {}
    except ConfigurationError as error:
        # A wrong parameter, such as one name for two tables, is not a problem of one table.
        if not skips or error.where.startswith("parameter "):
            raise
    problems: dict[TableName, ConfigurationError] = {}
    for table in tables:
        try:
            lake_format.prepare([table], selections)
        except ConfigurationError as error:
            problems[table.name] = error
    prepared = [table for table in tables if table.name not in problems]
    if not prepared:
        raise next(iter(problems.values()))
    return lake_format.prepare(prepared, selections), {str(name): error.message for name, error in problems.items()}
