"""Determines the layout of each table of the lake from the options ``partition_by`` and ``sort_by``."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.core.options.lake import LakeOptions
from airflow_provider_cdc.core.tables.layout import Layout, layout_of
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import ConfigurationError, PreflightError, Problem
from airflow_provider_cdc.sources.planning.selections import by_table


def layouts(tables: Sequence[TableName], skipped: Sequence[str], options: LakeOptions) -> dict[TableName, Layout]:
    """Return the layouts of the tables that have one. Whether the tables have the columns is checked later.

    :param skipped: names of tables that are left out. A pattern may match them.
    :raises PreflightError: with all problems of the options.
    """
    problems: list[Problem] = []
    given = {"partition_by": options.partition_by or {}, "sort_by": options.sort_by or {}}
    if options.format != "iceberg":
        problems += [
            Problem(f"parameter {name}", "only Iceberg tables have it", "choose format = iceberg, or leave it out")
            for name, value in given.items()
            if value
        ]
    others = [TableName.parse(name) for name in skipped]
    chosen = {name: by_table(name, value, tables, others, problems) for name, value in given.items()}
    found: dict[TableName, Layout] = {}
    for table in tables:
        (pattern, partition), (other, sort) = (chosen[name].get(table, ("", ())) for name in given)
        for name, text, values in (("partition_by", pattern, (partition, ())), ("sort_by", other, ((), sort))):
            try:
                layout_of(*values)
            except ConfigurationError as error:
                problem = Problem(f"parameter {name}, {text}", error.message, error.hint)
                problems += [problem] if problem not in problems else []
        if not problems and (partition or sort):
            found[table] = layout_of(partition, sort)
    if problems:
        raise PreflightError(problems)
    return found
