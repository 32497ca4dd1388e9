"""The manifest: the tables, source, position and target of a run. The manifest never changes.

The results of the steps are in separate records (`core.run.results`). A manifest holds no secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_cdc.core.options.run import TEXT, StepOptions, TableOptions
from airflow_provider_cdc.core.positions.facts import Facts, History, history_fields, source_of
from airflow_provider_cdc.core.positions.kinds import parse_position
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.core.tables.table import CopyName, Evolution, PartitionField, Shard, Table, TableName

if TYPE_CHECKING:
    import pyarrow as pa


# The place where a run writes the data files of one table's copy, if the lake's format has its own metadata.


@dataclass(frozen=True)
class Place:
    """A table of the lake, with the facts that tasks need to write its data files. The manifest contains places, so a
    place must not contain a secret.

    ``folder`` is the URI of the folder of the data files. ``field_ids`` has the field ids of the table's columns, by
    the column's name. ``element_ids`` has the field ids of the elements of list columns. The catalog assigned these
    ids. Without the field ids in the files, readers would see values of a dropped column in a new column of the same
    name. ``partition`` is the partitioning of the table. ``details`` has all other facts that the sink needs to
    publish. ``location`` is the location of the data files, as the table's metadata writes it. Position deletes name a
    data file by this location. It is empty if the format has no position deletes, or if a version of this package
    without position deletes began the run.
    """

    folder: str
    field_ids: dict[str, int]
    element_ids: dict[str, int] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)
    location: str = ""
    partition: tuple[PartitionField, ...] = ()

    def schema(self, published: pa.Schema) -> pa.Schema:
        """Return the schema of the data files of a table with the published schema ``published``."""
        # Import PyArrow late, because the import is slow, and manifests are also read where DAGs are parsed.
        from airflow_provider_cdc.core.parquet.lake_types import file_schema

        return file_schema(published, self.field_ids, self.element_ids)


# The format in which a run publishes. This module has only the facts that are needed to begin a run and to write its
# manifest.


Preparing: TypeAlias = Callable[
    [Sequence[Table], Mapping[TableName, Selection], Mapping[TableName, Place]], dict[TableName, Place]
]


def _no_places(
    tables: Sequence[Table], selections: Mapping[TableName, Selection], bases: Mapping[TableName, Place]
) -> dict[TableName, Place]:
    return {}


@dataclass(frozen=True)
class LakeFormat:
    """The format of the copies.

    The function ``prepare`` prepares the lake for the given tables and the selected part of each table. It also gets
    the places of the copies that are rolled forward. It returns the places of the data files, by the name of the copy;
    see `sinks.base.Sink.prepare`.
    """

    name: str
    prepare: Preparing = _no_places


PLAIN_PARQUET = LakeFormat("parquet")


INSERT, UPDATE, DELETE = "insert", "update", "delete"


# The plan of a run. It says how to read each table, and at which point the run begins.


FEW_KEYS = 10_000
"""If a table has at most this number of touched keys, they are looked up only in the exported snapshot. This number of
lookups takes about a second, so an earlier pass is not worthwhile."""


@dataclass(frozen=True)
class FeedGap:
    """The feed of a table ends at the copy of the run ``base``, which is exact at ``start``, and begins anew at the
    copy of the run that has this record. ``reason`` says why, with the statement and its place in the log if they are
    known. ``base`` and ``start`` are empty if the record of the last copy cannot be read.

    ``first`` is the order number of the first change of the new feed. It is 0 until the run's commit fixes it.
    """

    base: str
    start: str
    reason: str
    first: int = 0

    def with_reason(self, reason: str) -> FeedGap:
        """Return the gap with another reason in addition to its own."""
        return replace(self, reason=f"{self.reason}; {reason}")

    def described(self, position: str) -> str:
        """Describe the gap in words.

        :param position: the position at which the copy of the run is exact.
        """
        ended = f"{self.start} (run {self.base})" if self.base else "the last copy"
        return f"the feed ended at {ended}, and begins anew at {position}: {self.reason}"


@dataclass(frozen=True)
class TablePlan:
    """The decision of preflight for one table, with the reason. ``unrepresentable`` is one of
    `core.options.run.UNREPRESENTABLE`. ``arrays`` is the option of this name.

    ``at_upper`` says whether the table is published at the position where its reads end, and not at the initial
    position. The snapshot step determines the position where the reads end. ``at_upper`` is the same for all tables of
    a run. ``base`` is the id of the run whose copy is rolled forward. It is empty if the table is read.
    ``base_position`` is the position of that copy, as text because a plan is stored as a record. ``selection`` is the
    part of the table that is copied. ``evolution`` has the schema changes since that copy; None: there are none.
    ``shard`` is set if the rows are published in a merged table. ``feed_gap`` is set if the run publishes row changes,
    but none of this table, although the table has a copy.
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
    arrays: str = TEXT
    evolution: Evolution | None = None
    shard: Shard | None = None
    feed_gap: FeedGap | None = None

    @property
    def lake_name(self) -> TableName:
        """The name of the table of the lake, as in `Table.lake_name`."""
        return self.table if self.shard is None else self.shard.merged

    @property
    def copy_name(self) -> TableName:
        """The name of the table's copies in the lake."""
        return CopyName.of(self.lake_name, self.selection)

    @property
    def locked(self) -> bool:
        """Whether the table must be locked for a moment."""
        return self.consistency == "lock" and not self.base

    @property
    def options(self) -> TableOptions:
        """The options with which the table is read and published."""
        return TableOptions(self.consistency, self.unrepresentable, self.arrays)


@dataclass(frozen=True)
class MissedPast:
    """A point of the past that a run cannot reach. ``as_of`` is the value of the option, and ``why`` is the reason. The
    run copies the present state of the tables instead."""

    as_of: str
    why: str


@dataclass(frozen=True)
class InitialPoint:
    """The initial position, the schemas of the tables at that position, and the identity of the server.

    ``lock_seconds`` is how long a lock was held; 0.0 without a lock. ``superseded`` has the identities that earlier
    tries of the run recorded. The slots and publications with these identities are dropped once the manifest contains
    this initial position.
    """

    position: Position
    identity: Facts
    tables: tuple[Table, ...]
    lock_seconds: float
    superseded: tuple[Facts, ...] = ()


FORMAT = 6
LAKE_FORMAT = "parquet"
"""The default format in which runs publish."""


@dataclass(frozen=True)
class Base:
    """A reference to the copies of an earlier run. It is in the manifest of the run that rolls these copies forward.

    The copies are exact at ``position``. ``identity`` has the facts that were recorded there, or, if another server has
    taken over since, the facts by which this server continues (`Starts.take_over`). ``record``
    is the name of a record in the folder of the earlier run. This record lists the files of the copies.
    """

    position: str
    identity: Facts
    record: str


FIRST_START = "1"
"""The key of the start of a run that has not moved. The keys are the numbers of the manifests."""


@dataclass(frozen=True)
class RunStart:
    """A position from which the run reads tables, and the ``facts`` that the source recorded there. The log of these
    tables is read from here on."""

    position: str
    facts: Facts


@dataclass(frozen=True)
class Basis:
    """The rows of a table that were read in full before the present position of the run. The log since the start of the
    table brings them to this position.

    ``record`` is the name of the record with the files of the tables that were read together. ``ended`` is an end of
    the log after the end of the read, and ``incarnation`` is the incarnation of the server
    (`ChunkReader.wait_until_durable`) then. ``nulled`` has the number of values of each column that became null. If the
    table was altered after the read and is carried over the change (`jobs.restart.altered`), ``table`` is the table as
    it was read.
    """

    record: str
    ended: str
    incarnation: str
    nulled: dict[str, int] = field(default_factory=dict)
    table: Table | None = None


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
    position. ``base`` is the id of the run whose copy is rolled forward. ``basis`` has the rows if they were read
    before the run moved to its present position. If there is neither, the table's rows are read. ``start`` is the key
    of the start (`Manifest.all_starts`) from which the rows are read, or were read. ``left_out`` says whether the table
    was left out when the run moved (`Manifest.skipped` has the reason). ``feed_gap`` is set if the run publishes row
    changes, but none of this table, although the table has a copy.
    """

    table: Table
    consistency: str
    reason: str
    at_upper: bool = False
    base: str = ""
    place: Place | None = None
    feed_gap: FeedGap | None = None
    start: str = FIRST_START
    basis: Basis | None = None
    left_out: bool = False

    @property
    def is_read(self) -> bool:
        """Whether the table's rows are read in the present snapshot step."""
        return not (self.base or self.basis or self.left_out)


@dataclass(frozen=True)
class Manifest:
    """The record of one run.

    ``lake`` is the URI of the folder to publish in. ``lake_format`` is the format of the copies. ``scratch`` is the URI
    of the folder that holds the run's own folder, whose name is ``run_id``. ``identity`` identifies the source's
    server, as in `InitialPoint`; ``source_conn_id`` names the connection to the server. All tables are published at one
    position (`Run.position`): ``initial_position``, or the position at which their reads end (``at_upper``).
    ``position_key`` is the source's name for the initial position. ``options`` are the settings that later steps need.
    ``skipped`` has, by the table's name, the reason why a named table is not part of the run, or was left out when the
    run moved. ``bases`` has the copies that are rolled forward, by the id of their run. ``missed_past`` is set if a
    point of the past was requested that the run cannot reach. The run then copies the present state of the tables.
    ``histories`` has the history that each copy belongs to, by the table's name. Manifests of earlier versions have no
    histories. ``created_at`` is a time in ISO 8601. ``group`` names the task group of the run. ``start`` is the key of
    the latest start, which is at the initial position. ``starts`` has the earlier starts that still count. ``restarts``
    has the reasons for the earlier manifests, in their order. ``may_miss_past`` says whether the DAG supplied
    ``options.as_of``, so that the run may copy the present instead.
    """

    run_id: str
    lake: str
    scratch: str
    kind: str
    position_key: str
    initial_position: str
    identity: Facts
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
    start: str = FIRST_START
    starts: dict[str, RunStart] = field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()
    format: int = FORMAT

    @property
    def initial(self) -> Position:
        """The initial position.

        :raises PositionError: the manifest's text is not a position.
        """
        return self.position_in(self.initial_position)

    def start_of(self, base: str) -> Position:
        """Return the position of the copies of the run ``base``. To roll these copies forward, the log is read from
        this position.

        :raises PositionError: the manifest's text is not a position.
        """
        return self.position_in(self.bases[base].position)

    @property
    def all_starts(self) -> dict[str, RunStart]:
        """The starts of the run's tables, by their keys: the earlier ones, and the one at the initial position."""
        return {**self.starts, self.start: RunStart(self.initial_position, self.identity)}

    def position_of(self, start: str) -> Position:
        """Return the position of the start with this key.

        :raises PositionError: the text in the record is not a position.
        """
        return self.position_in(self.all_starts[start].position)

    def position_in(self, text: str) -> Position:
        """Return the position that is a ``text`` in another record of the run.

        :raises PositionError: the text is not a position.
        """
        return parse_position(self.kind, text)

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

    @cached_property
    def _tables_of_copies(self) -> dict[TableName, list[str]]:
        """The names of the tables of each copy: one, or the shards of a merged table."""
        names: dict[TableName, list[str]] = {}
        for entry in self.tables:
            names.setdefault(entry.table.copy_name, []).append(str(entry.table.name))
        return names

    def history_of(self, table: TableName) -> dict[str, Any]:
        """Return the history that the run's copy of a table records.

        :param table: the name of a table of the run, or of a merged table. The shards of a merged table have one copy,
            and so one history.
        """
        names = [str(table), *self._tables_of_copies.get(table, ())]
        history = next((self.histories[name] for name in names if name in self.histories), None)
        return history_fields(history, self.identity.mark)
