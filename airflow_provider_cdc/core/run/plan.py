"""What is settled before a run reads: how each table is to be read, and the point that the run begins at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_cdc.core.options.run import TableOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.core.tables.table import CopyName, Table, TableName

FEW_KEYS = 10_000
"""So many touched keys are looked up in a view without reading them once more before it: it is a matter of a second."""


@dataclass(frozen=True)
class TablePlan:
    """What preflight decided for one table, and why. ``unrepresentable`` is one of ``core.options.UNREPRESENTABLE``.

    ``at_upper``: it is to be published at the position where its reads end, which the snapshot step fixes, and not at
    the initial one. All tables of a run agree in that.
    ``base`` is the id of the run whose copy is rolled forward, and ``base_position`` the position of that copy, as
    text, for a plan is a record; empty: the table is read. ``selection`` is the part of the table that is copied.
    """

    table: TableName
    consistency: str
    reason: str
    rows: int = 0
    bytes: int = 0
    unrepresentable: str = "error"
    at_upper: bool = False
    base: str = ""
    base_position: str = ""
    selection: Selection = WHOLE

    @property
    def copy_name(self) -> TableName:
        """What its copies are called in the lake."""
        return CopyName.of(self.table, self.selection)

    @property
    def locked(self) -> bool:
        """Whether the table has to be locked for a moment."""
        return self.consistency == "lock" and not self.base

    @property
    def options(self) -> TableOptions:
        """What the table is read and published by."""
        return TableOptions(self.consistency, self.unrepresentable)


@dataclass(frozen=True)
class MissedPast:
    """A point of the past that a run cannot be exact at: ``as_of``, as the option had it, and ``why``. The run copies
    the present instead."""

    as_of: str
    why: str


@dataclass(frozen=True)
class InitialPoint:
    """The initial position, the tables' schemas there, and the identity of the server that has it.

    ``lock_seconds`` is how long a lock was held; 0.0 if none was. ``superseded``: the identities of what earlier tries
    of the run had the server keep, to be discarded once this point is the one that counts.
    """

    position: Position
    identity: Mapping[str, str]
    tables: tuple[Table, ...]
    lock_seconds: float
    superseded: tuple[Mapping[str, str], ...] = ()
