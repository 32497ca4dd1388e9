"""The manifest: the tables, source, position and target of a run. The manifest never changes.

The results of the steps are in separate records (`core.run.results`). A manifest holds no secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_cdc.core.copies.head import source_of
from airflow_provider_cdc.core.copies.history import MARK, History, told
from airflow_provider_cdc.core.kinds import parse_position
from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.place import Place
from airflow_provider_cdc.core.run.plan import FeedGap, MissedPast
from airflow_provider_cdc.core.tables.table import Table, TableName

FORMAT = 5
LAKE_FORMAT = "parquet"
"""The default format in which runs publish."""


@dataclass(frozen=True)
class Base:
    """A reference to the copies of an earlier run. It is in the manifest of the run that rolls these copies forward.

    The copies are exact at ``position``, which is a position of the server with the identity ``identity``. ``record``
    is the name of a record in the folder of the earlier run. This record lists the files of the copies.
    """

    position: str
    identity: dict[str, str]
    record: str


@dataclass(frozen=True)
class EarlierReads:
    """A reference to reads that an earlier manifest of the same run began, and that still count.

    The earlier manifest fixed the position ``position`` of the server with the identity ``identity``. All of these
    reads ended before the initial position of the present manifest. ``record`` is the name of the record with the files
    of the tables that were read. ``incarnation`` is the incarnation of the server (`ChunkReader.settle`) when the reads
    had ended. ``nulled`` is `SnapshotResult.nulled` of these reads. ``pieces`` names the record with the log between
    both positions (`jobs.spool.kept_pieces`). If it is empty, the source still has this log. ``altered`` has, by name,
    the tables that were altered after the reads and are carried over the change (`jobs.restart.carry`), as they were
    read.
    """

    position: str
    identity: dict[str, str]
    record: str
    incarnation: str
    nulled: dict[str, dict[str, int]] = field(default_factory=dict)
    pieces: str = ""
    altered: dict[str, Table] = field(default_factory=dict)


@dataclass(frozen=True)
class Restart:
    """The reason why tables were read again: a table was altered during the run. ``tables`` has a description of the
    change for each of these tables, by the table's name. ``position`` was the initial position until then, and
    ``manifest`` is the digest of the manifest that was valid until then. ``at`` is the time in ISO 8601. ``carried``
    has the same description for each table that was altered but not read again, because its rows are carried over the
    change."""

    tables: dict[str, str]
    position: str
    at: str
    manifest: str
    carried: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """A table of the run: the schema at the initial position, the way in which the table is read, and the reason.

    ``at_upper`` says whether the table is published at the position where its reads end, and not at the initial
    position. ``base`` is the id of the run whose copy is rolled forward. ``read_in`` is a key of
    `Manifest.earlier_reads`: these earlier reads are rolled forward. If both are empty, the table's rows are read.
    ``feed_gap`` is set if the run publishes row changes, but none of this table, although the table has a copy.
    """

    table: Table
    consistency: str
    reason: str
    at_upper: bool = False
    base: str = ""
    place: Place | None = None
    read_in: str = ""
    feed_gap: FeedGap | None = None

    @property
    def live(self) -> bool:
        """Whether the table's rows are read under the present manifest."""
        return not self.base and not self.read_in


@dataclass(frozen=True)
class Manifest:
    """The record of one run.

    ``lake`` is the URI of the folder to publish in. ``lake_format`` is the format of the copies. ``scratch`` is the URI
    of the folder that holds the run's own folder, whose name is ``run_id``. ``identity`` identifies the source's
    server, as in `InitialPoint`; ``source_conn_id`` names the connection to the server. All tables are published at one
    position (`Run.position`): ``initial_position``, or the position at which their reads end (``at_upper``).
    ``position_key`` is the source's name for the initial position. ``options`` are the settings that later steps need.
    ``skipped`` has, by the table's name, the reason why a named table is not part of the run. ``bases`` has the copies
    that are rolled forward, by the id of their run. ``missed_past`` is set if a point of the past was requested that
    the run cannot reach. The run then copies the present state of the tables. ``histories`` has the history that each
    copy belongs to, by the table's name. Manifests of earlier versions have no histories. ``created_at`` is a time in
    ISO 8601. ``group`` names the task group of the run. ``earlier_reads`` has the reads of earlier manifests of this
    run that still count. ``restarts`` has the reasons for the earlier manifests, in their order. ``may_miss_past``
    says whether the DAG supplied ``options.as_of``, so that the run may copy the present instead.
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
    group: str = ""
    skipped: dict[str, str] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)
    histories: dict[str, History] = field(default_factory=dict)
    missed_past: MissedPast | None = None
    may_miss_past: bool = False
    earlier_reads: dict[str, EarlierReads] = field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()
    format: int = FORMAT

    @property
    def initial(self) -> Position:
        """The initial position.

        :raises PositionError: the manifest's text is not a position.
        """
        return parse_position(self.kind, self.initial_position)

    def start_of(self, base: str) -> Position:
        """Return the position of the copies of the run ``base``. To roll these copies forward, the log is read from
        this position.

        :raises PositionError: the manifest's text is not a position.
        """
        return parse_position(self.kind, self.bases[base].position)

    @property
    def at_upper(self) -> bool:
        """Whether the snapshot step fixes the published position."""
        return any(entry.at_upper for entry in self.tables)

    @property
    def missed_as_of(self) -> str:
        """The requested point of the past, if the run could not reach it; otherwise empty."""
        return self.missed_past.as_of if self.missed_past is not None else ""

    @property
    def source(self) -> dict[str, str]:
        """The description of the source that the run's copies record."""
        return source_of(self.kind, self.identity, self.source_conn_id)

    def history_of(self, table: TableName) -> dict[str, Any]:
        """Return the history that the run's copy of a table records.

        :param table: the name of a table of the run, or of a merged table. The shards of a merged table have one copy,
            and so one history.
        """
        shards = (str(entry.table.name) for entry in self.tables if entry.table.copy_name == table)
        names = [str(table), *shards]
        history = next((self.histories[name] for name in names if name in self.histories), None)
        return told(history, self.identity.get(MARK, ""))
