"""What becomes of values that no Arrow type holds, where whoever makes Arrow of rows finds it."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_cdc.core.table import Table


def with_policy(table: Table, unrepresentable: str) -> Table:
    """``table`` with the policy in every column's details, where whoever makes Arrow of its rows finds it."""
    if unrepresentable == "error":
        return table
    policy = {"unrepresentable": unrepresentable}
    columns = tuple(replace(column, details={**column.details, **policy}) for column in table.columns)
    return replace(table, columns=columns)
