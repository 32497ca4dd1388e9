"""What each finished step found: records, which later steps rest on and XComs are made from."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_provider_cdc.core.positions.position import LogEnd

SNAPSHOT, EXTRACT_DELTA, CONSOLIDATE = "snapshot", "extract_delta", "consolidate"

Nulled = dict[str, dict[str, int]]
"""How many values became null because no Arrow type holds them, by table and column; what is not in it has none."""

Skipped = dict[str, str]
"""Why tables are left out of the copy, by the table's name."""


@dataclass(frozen=True)
class TableRead:
    """What was read of one table. ``bytes`` is the size of the files."""

    rows: int
    chunks: int
    files: int
    bytes: int


@dataclass(frozen=True)
class SnapshotResult:
    """What the snapshot step read.

    ``log_end`` is the bound of the reads; empty: there were none. ``tables`` is by the table's name.
    ``lock_seconds`` is the longest time that a lock was held. ``record`` names the record of the files that count.
    ``skipped`` are tables that the read found to be impossible to copy. Of a run that is published at
    ``snapshot_upper``: ``again`` names the record of what was read again, ``keys_again`` is how many keys were looked
    up in the shared view, and ``view_seconds`` how long that was open. ``incarnation`` is the server's at the bound.
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


@dataclass(frozen=True)
class DeltaResult:
    """What the extract_delta step read of the log. ``keys`` has how many the window touches, by the table's name.

    ``record`` names the record of the files with the net change, ``changes`` that of the files with the single changes
    (empty: the run makes no feeds). ``skipped`` are tables of which the log holds what
    cannot be copied.
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
    """What the consolidate step published, by the table's name: the URI of the copy, its ``rows``, how many keys were
    ``rewound`` (or read again). ``position`` is the one at which all copies are exact.

    ``nulled`` has the values that were put back as null (the snapshot step has those that were read). ``skipped`` has
    every table that was named and is not published, whichever step found out. ``changes`` has how many row changes the
    feeds hold; None: the table has none, for there was no copy before to begin at. ``superseded`` says, of tables whose
    source was set back since the copy before, how that was found: this copy begins a new history.
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


StepResult = SnapshotResult | DeltaResult | ConsolidateResult

RESULTS: dict[str, type[SnapshotResult] | type[DeltaResult] | type[ConsolidateResult]] = {
    SNAPSHOT: SnapshotResult,
    EXTRACT_DELTA: DeltaResult,
    CONSOLIDATE: ConsolidateResult,
}
"""By the step's task_id, in the order of the steps."""
