"""The record of a window's single row changes: the files of its segments, and the transactions with a late commit.

The files of a segment have its changes in commit order. These files also have pending changes: the changes of
transactions that the segment prepares, but neither commits nor rolls back. The pending changes are inserted at the
place of the commit, which is in a later segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.run.results import DeltaResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.jobs.changes.net_change_files import Decisions
from airflow_provider_cdc.jobs.log.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.window import Committed

_RECORD = "delta/changes"


@dataclass(frozen=True)
class ChangeSlice:
    """The files with the single row changes of a segment."""

    segment: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class ChangeRowGroup:
    """The place of a row group: the number of its segment, of its file in the segment, and of the group in the file."""

    segment: int
    file: int
    group: int


@dataclass(frozen=True)
class Late:
    """A transaction that was prepared in one segment, with the id ``pending``, and committed in a later segment."""

    segment: int
    pending: str
    at: Committed


@dataclass(frozen=True)
class WindowChanges:
    """The single row changes of a window.

    ``tables`` are the indices of its tables. ``pieces`` are in the order of the log, and ``late`` transactions in the
    order of their commits."""

    tables: tuple[int, ...]
    pieces: tuple[ChangeSlice, ...]
    late: tuple[Late, ...]

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for piece in self.pieces for file in piece.files)


def window_changes(tables: Sequence[int], read: Sequence[SegmentRecord], decisions: Decisions) -> WindowChanges:
    """Return the single row changes of a window.

    :param read: the records of its segments.
    :param decisions: the commits of transactions that were prepared in one of the segments.
    """
    commits = {at.order: at for record in read for at in record.summary.commits.values()}
    # Tables may be left out. If a segment was read without any of these tables, the record of the segment has no commit
    # positions.
    late = [Late(*prepared, commits[order]) for prepared, order in decisions.items() if order in commits]
    pieces = [ChangeSlice(record.segment, record.changes) for record in sorted(read, key=lambda record: record.segment)]
    return WindowChanges(tuple(tables), tuple(pieces), tuple(sorted(late, key=lambda one: one.at.order)))


def write_changes(run: Run, windows: Sequence[WindowChanges]) -> str:
    """Record the changes for `stage_feeds`, and return the name of the record."""
    return records.write_named(run.folder, _RECORD, list(windows))


def read_changes(run: Run) -> list[WindowChanges]:
    """Return the changes that extract_delta recorded; empty if the run makes no feeds."""
    name = run.result_of(DeltaResult).changes
    return records.read_named(list[WindowChanges], run.folder, name) if name else []
