"""What a run decides for each of its tables before it begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.core.table import Table, TableName


@dataclass(frozen=True)
class TablePlan:
    """What preflight decided for one table, and why. ``unrepresentable`` is one of ``core.options.UNREPRESENTABLE``."""

    name: TableName
    consistency: str
    reason: str
    rows: int = 0
    bytes: int = 0
    unrepresentable: str = "error"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": str(self.name),
            "consistency": self.consistency,
            "reason": self.reason,
            "rows": self.rows,
            "bytes": self.bytes,
            "unrepresentable": self.unrepresentable,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TablePlan:
        return cls(
            TableName.parse(data["table"]),
            data["consistency"],
            data["reason"],
            data["rows"],
            data["bytes"],
            data["unrepresentable"],
        )


def with_policy(table: Table, unrepresentable: str) -> Table:
    """``table`` with the policy in every column's details, where whoever makes Arrow of its rows finds it."""
    if unrepresentable == "error":
        return table
    policy = {"unrepresentable": unrepresentable}
    columns = tuple(replace(column, details={**column.details, **policy}) for column in table.columns)
    return replace(table, columns=columns)
