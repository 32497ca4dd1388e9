"""Results of the finished steps. The results are records: later steps depend on them, and XComs are made from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.run.manifest import FeedGap
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage

SNAPSHOT, EXTRACT_DELTA, CONSOLIDATE = "snapshot", "extract_delta", "consolidate"

Nulled = dict[str, dict[str, int]]
"""The number of values that became null because no Arrow type can hold them, by table and column. Columns without such
values are left out."""

Skipped = dict[str, str]
"""The reasons why tables are left out of the copy, by the table's name."""


@dataclass(frozen=True)
class TableRead:
    """Figures about the read of one table. ``bytes`` is the size of the files."""

    rows: int
    chunks: int
    files: int
    bytes: int


@dataclass(frozen=True)
class RowsOfReplica:
    """The rows that were read on a replica, and the seconds for which its reads waited for the run's position."""

    address: str
    rows: int
    waited: float


@dataclass(frozen=True)
class SnapshotResult:
    """Result of the snapshot step.

    ``log_end`` is the place in the log up to which the window is read; it is empty if no rows were read. The keys of
    ``tables`` are table names. ``lock_seconds`` is the longest time for which a lock was held. ``record`` names the
    record that lists the valid files. ``skipped`` are tables that could not be copied, because of a problem that was
    found while they were read. If the run is published at ``snapshot_upper``: ``again`` names the record of the rows
    that were read again, ``keys_again`` is the number of keys that were looked up in the exported snapshot, and
    ``view_seconds`` is the time for which this snapshot was open. ``incarnation`` is the server's incarnation at
    ``log_end``. ``replicas`` are the replicas on which rows were read, by ``server_uuid``.
    """

    snapshot_upper: str
    log_end: LogEnd
    rows: int
    tables: dict[str, TableRead]
    nulled: Nulled
    lock_seconds: float
    record: str
    skipped: Skipped = field(default_factory=dict)
    seconds: float = 0.0
    again: str = ""
    keys_again: int = 0
    view_seconds: float = 0.0
    incarnation: str = ""
    replicas: dict[str, RowsOfReplica] = field(default_factory=dict)


@dataclass(frozen=True)
class DeltaResult:
    """Result of the extract_delta step. ``keys`` is the number of keys that the window touches, by the table's name.

    ``record`` names the record of the files with the net change. ``changes`` names the record of the files with the
    single changes. It is empty if the run makes no feeds. ``skipped`` are tables with log entries that make an exact
    copy impossible.
    """

    transactions: int
    row_images: int
    keys: dict[str, int]
    segments: int
    record: str
    skipped: Skipped = field(default_factory=dict)
    seconds: float = 0.0
    changes: str = ""


@dataclass(frozen=True)
class ConsolidateResult:
    """Result of the consolidate step. For each table, by its name, the result has the URI of the copy, the number of
    ``rows``, and the number of keys that were ``rewound`` (or read again). ``position`` is the position at which all
    copies are exact.

    ``nulled`` counts the values that became null when rows were restored. (The snapshot step counts the values that
    became null when rows were read.) ``skipped`` has all named tables that are not published, including the tables that
    earlier steps skipped. ``changes`` is the number of row changes in the feeds. It is None if the table has no feed,
    because there was no earlier copy at which the feed could begin, or because the feed begins anew. ``feed_gaps`` has
    the latter tables, if the copy is the table's latest one. ``superseded`` has the
    tables whose source was set back to an earlier state after the previous copy, each with the evidence for this. The
    copies of these tables begin a new history. ``scrubbed`` is the number of unchanged files that were read again, to
    find damage. ``shards`` has the number of rows of each shard, by the name of the merged table and the name of the
    shard.
    """

    published: dict[str, str]
    rows: dict[str, int]
    rewound: dict[str, int]
    nulled: Nulled
    files_rewritten: int
    files_adopted: int
    published_at: str
    skipped: Skipped = field(default_factory=dict)
    seconds: float = 0.0
    position: str = ""
    changes: dict[str, int | None] = field(default_factory=dict)
    superseded: dict[str, str] = field(default_factory=dict)
    scrubbed: int = 0
    shards: dict[str, dict[str, int]] = field(default_factory=dict)
    feed_gaps: dict[str, FeedGap] = field(default_factory=dict)


StepResult = SnapshotResult | DeltaResult | ConsolidateResult

RESULTS: dict[str, type[SnapshotResult] | type[DeltaResult] | type[ConsolidateResult]] = {
    SNAPSHOT: SnapshotResult,
    EXTRACT_DELTA: DeltaResult,
    CONSOLIDATE: ConsolidateResult,
}
"""The class of each step's result, by the step's task_id, in the order of the steps."""


# The record of the asset events that a run's last task reports to Airflow. The task writes the record to the run's
# folder when the task ends.
#
# The task writes this record before it succeeds, but Airflow records the events of a task only after the task has
# succeeded. So this record names the events to report, and only Airflow knows whether it has recorded these events.


FILE = "told.json"


@dataclass(frozen=True)
class Announced:
    """The event of a copy. ``uri`` is the URI of the copy's asset. ``latest`` says whether the copy was reported as the
    latest copy."""

    uri: str
    latest: bool


@dataclass(frozen=True)
class AnnouncedCopies:
    """The events of the copies, by the table's name. Each try has its own mapping, because Airflow records all events
    of a try or none of them. The mapping is empty if there are no copies, or if an earlier version, which did not
    record events, wrote the record."""

    announced: tuple[dict[str, Announced], ...] = ()


def read_announced(folder: Storage) -> AnnouncedCopies | None:
    """Return the record in the folder of a run, or None if the record does not exist yet.

    :raises ManifestError: the record is damaged.
    """
    return records.read(AnnouncedCopies, folder, FILE) if folder.exists(FILE) else None
