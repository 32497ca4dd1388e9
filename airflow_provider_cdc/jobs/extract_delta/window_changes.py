"""What extract_delta leaves of the single changes of a window: its files, and what another segment committed late.

A segment's changes are in its files in commit order, but for those of transactions that it prepares and does not
decide: these lie beside them, and are put in where another segment says that they were committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_cdc.core.run.results import DeltaResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.jobs.changes.net_change_files import Decisions
from airflow_provider_cdc.jobs.extract_delta.read_segment import SegmentRecord
from airflow_provider_cdc.sources.api.window import Committed

_RECORD = "delta/changes"


@dataclass(frozen=True)
class Piece:
    """The files with the single changes of a segment."""

    segment: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True)
class RowGroup:
    """A row group of a segment's file, both by their numbers."""

    segment: int
    file: int
    group: int


@dataclass(frozen=True)
class Late:
    """What a segment prepared under the id ``pending``, and a later one committed."""

    segment: int
    pending: str
    at: Committed


@dataclass(frozen=True)
class WindowChanges:
    """The single changes of a window: of ``tables`` (their indexes), its ``pieces`` in log order, and what is ``late``,
    in the order of the commits."""

    tables: tuple[int, ...]
    pieces: tuple[Piece, ...]
    late: tuple[Late, ...]

    @property
    def files(self) -> tuple[StagedFile, ...]:
        return tuple(file for piece in self.pieces for file in piece.files)


def window_changes(tables: Sequence[int], read: Sequence[SegmentRecord], decisions: Decisions) -> WindowChanges:
    """The single changes of a window whose segments are ``read``.

    :param decisions: what became of transactions that were prepared in one of them.
    """
    commits = {at.order: at for record in read for at in record.summary.commits.values()}
    # A segment that was read for none of the tables (they are left out) does not say where it commits.
    late = [Late(*prepared, commits[order]) for prepared, order in decisions.items() if order in commits]
    pieces = [Piece(record.segment, record.changes) for record in sorted(read, key=lambda record: record.segment)]
    return WindowChanges(tuple(tables), tuple(pieces), tuple(sorted(late, key=lambda one: one.at.order)))


def write_changes(run: Run, windows: Sequence[WindowChanges]) -> str:
    """Leave what extract_delta read for `stage_feeds`; returns the record's name."""
    return records.write_named(run.folder, _RECORD, list(windows))


def read_changes(run: Run) -> list[WindowChanges]:
    """What extract_delta left; nothing, if the run makes no feeds."""
    name = run.found(DeltaResult).changes
    return records.read_named(list[WindowChanges], run.folder, name) if name else []
