"""The manifest: what a run copies, from where, at which position, and where to. It never changes.

What the steps found is in records of their own (`core.run`). A manifest holds no secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.copies.head import source_of
from airflow_provider_cdc.core.copies.history import MARK, History, told
from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.plan import MissedPast
from airflow_provider_cdc.core.tables.table import Table, TableName

FORMAT = 5
LAKE_FORMAT = "parquet"
"""What runs publish as."""


@dataclass(frozen=True)
class Base:
    """The copies of an earlier run, as one that rolls them forward names them.

    They are exact at ``position`` of the server of ``identity``. ``record``, in that run's folder, names their files.
    """

    position: str
    identity: dict[str, str]
    record: str


@dataclass(frozen=True)
class RunTable:
    """A table of the run: its schema at the initial position, how it is read, and why so.

    ``at_upper``: it is published at the position where its reads end, and not at the initial one. ``base`` is the id of
    the run whose copy it is rolled forward from; empty: its rows are read.
    """

    table: Table
    consistency: str
    reason: str
    at_upper: bool = False
    base: str = ""


@dataclass(frozen=True)
class Manifest:
    """The record of one run.

    ``lake`` is the URI of the folder that it publishes in, as ``lake_format``; ``scratch`` that of the folder in which
    the run's own folder lies, which is called ``run_id``. ``identity`` is the source's, as `InitialPoint` has it;
    ``source_conn_id`` names the connection to it. All tables are published at one position (`Run.position`):
    ``initial_position``, or the one at which their reads end (``at_upper``). The source calls it ``position_key``.
    ``options`` are the settings that later steps need. ``skipped`` says why each table that was
    named is no part of the run, by its name. ``bases`` has what tables are rolled forward from, by the run's id.
    ``missed_past`` is set where the run copies the present because it cannot be exact at the past that it was to have.
    ``histories`` has the history that each copy will be of, by the table's name; runs of earlier versions have none.
    ``created_at`` is ISO 8601.
    """

    run_id: str
    lake: str
    scratch: str
    kind: str
    position_key: str
    initial_position: str
    identity: dict[str, str]
    created_at: str
    tables: tuple[RunTable, ...]
    options: StepOptions = field(default_factory=StepOptions)
    source_conn_id: str = ""
    lake_format: str = LAKE_FORMAT
    skipped: dict[str, str] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    missed_past: MissedPast | None = None
    format: int = FORMAT

    @property
    def initial(self) -> Position:
        """The initial position.

        :raises PositionError: the manifest's text of it is none.
        """
        return parse_position(self.kind, self.initial_position)

    def start_of(self, base: str) -> Position:
        """The position of the copies of the run ``base``, from which the log is read to roll them forward.

        :raises PositionError: the manifest's text of it is none.
        """
        return parse_position(self.kind, self.bases[base].position)

    @property
    def at_upper(self) -> bool:
        """Whether the snapshot step fixes the position that the run is published at."""
        return any(entry.at_upper for entry in self.tables)

    @property
    def missed_as_of(self) -> str:
        """The point of the past that the run was to be exact at and could not be; empty: there is none."""
        return self.missed_past.as_of if self.missed_past is not None else ""

    @property
    def source(self) -> dict[str, str]:
        """What the run's copies say of their source."""
        return source_of(self.kind, self.identity, self.source_conn_id)

    def history_of(self, table: TableName) -> dict[str, Any]:
        """What the run's copy of a table says of its history."""
        return told(self.histories.get(str(table)), self.identity.get(MARK, ""))
