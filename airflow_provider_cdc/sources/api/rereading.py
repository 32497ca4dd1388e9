"""Protocols of sources whose touched rows can be read again (consistency ``again``), in addition to `source.Source`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.api.source import ChunkReader
from airflow_provider_cdc.sources.api.window import TrackedTable, UpperBound


class LogTail(Protocol):
    """Reads the log in steps, from the initial position on, and returns only the touched keys."""

    @property
    def order(self) -> int:
        """After `read` has ended: a number greater than the orders of all changes so far, and less than the orders of
        all later changes."""

    @property
    def transactions(self) -> int:
        """The number of transactions read so far."""

    @property
    def row_images(self) -> int:
        """The number of row images read so far."""

    def go_on_from(self, order: int) -> None:
        """Make the orders of all later changes greater than ``order``, which must not be less than the property
        `order`."""

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the keys touched since the last call, as batches of ``DELTA_SCHEMA``. If a key occurs several times,
        its last row counts. After an error, the log must be opened again from the start.

        :param log_end: where to stop; None: stop at the current end of the log, or a little later.
        :raises ExactnessError: something in the log violates a condition of the proof.
        """


class KeyReader(ChunkReader, Protocol):
    """A session that also reads rows by their keys."""

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these keys, in the form of `read`. The result may have rows with other keys that the
        source considers equal.

        :param keys: the keys, as the log's own bytes.
        :raises SourceUnavailable: the session broke. All rows that it returned must be discarded.
        """


@runtime_checkable
class ReadsAgain(Protocol):
    """A source whose copies can be exact at the end of their reads (consistency ``again``). For this, the log needs to
    contain only the keys of changed rows.

    Touched rows are read again, the last time in a snapshot that all sessions share (`SharesReads`). For keyed tables,
    ``reader`` opens a `KeyReader`.
    """

    def follow(
        self, start: Position, identity: Mapping[str, str], tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        """Read the log from ``start`` on.

        :param start: the run's initial position; for tables that are rolled ``forward``, the position of their copies.
        """

    def settle(self, lock: LockPolicy) -> None:
        """Wait until all commits that are in the log now are visible to readers.

        :raises LockNotGranted: some commits were not visible within the time limit of the policy.
        """

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        """Return the position of the shared snapshot. Only for the source that `SharesReads.share_reads` returned.

        :raises SchemaChanged: a table in the snapshot differs from the table that was recorded.
        :raises SourceUnavailable: the snapshot no longer exists.
        """
