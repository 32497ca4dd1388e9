"""Protocols for sources whose touched rows can be read again (consistency ``again``). Such sources also implement
`source.Source`."""

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
        """A number that is greater than the orders of all changes so far, and less than the orders of all later
        changes. Valid after `read` has ended."""

    @property
    def transactions(self) -> int:
        """The number of transactions that were read so far."""

    @property
    def row_images(self) -> int:
        """The number of row images that were read so far."""

    def go_on_from(self, order: int) -> None:
        """Make the orders of all later changes greater than the argument ``order``. The argument must not be less than
        the property `order`."""

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the keys that were touched since the last call, as batches of ``DELTA_SCHEMA``. If a key occurs in
        several rows, the last row counts. After an error, the log must be opened again from the start.

        :param log_end: the place at which to stop. None: stop at the current end of the log, or shortly after it.
        :raises ExactnessError: something in the log violates a condition of the proof.
        """


class KeyReader(ChunkReader, Protocol):
    """A session that also reads rows by their keys."""

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these keys, in the same form as `read`. The result may also have rows with other keys, if
        the source considers these keys equal to the requested keys.

        :param keys: the keys, as the log's own bytes.
        :raises SourceUnavailable: the session broke. All rows that this call returned must be discarded.
        """


@runtime_checkable
class ReadsAgain(Protocol):
    """A source whose copies can be exact at the end of their reads (consistency ``again``). For this consistency, it is
    enough that the log contains the keys of changed rows.

    Touched rows are read again in several passes. The last pass reads in a snapshot that all sessions share
    (`SharesReads`). For keyed tables, ``reader`` opens a `KeyReader`.
    """

    def follow(
        self, start: Position, identity: Mapping[str, str], tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        """Read the log from ``start`` on.

        :param start: the run's initial position. For tables that are rolled ``forward``: the position of their copies.
        """

    def settle(self, lock: LockPolicy) -> None:
        """Wait until readers see all commits that are in the log at the time of the call.

        :raises LockNotGranted: some commits were not visible within the time limit of the policy.
        """

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        """Return the position of the shared snapshot. Call this method only on the source that
        `SharesReads.share_reads` returned.

        :raises SchemaChanged: the definition of a table in the snapshot differs from the definition that the run
            recorded.
        :raises SourceUnavailable: the snapshot no longer exists.
        """
