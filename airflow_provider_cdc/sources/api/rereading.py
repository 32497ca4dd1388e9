"""What a source can do whose touched rows are read again (consistency ``again``), beside `sources.capabilities`."""

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
    """The log, read on and on from the initial position: which keys were touched, and no more."""

    @property
    def order(self) -> int:
        """Once `read` has ended: what is greater than the orders of all changes so far, and less than those of all that
        come next."""

    @property
    def transactions(self) -> int:
        """How many were read so far."""

    @property
    def row_images(self) -> int:
        """How many were read so far."""

    def go_on_from(self, order: int) -> None:
        """Have the orders of all changes that come next be greater than ``order``, which is none that is less than
        `order`."""

    def read(self, log_end: LogEnd | None = None) -> Iterator[pa.RecordBatch]:
        """What was touched since the last call, up to ``log_end``; None: up to the log's present end or a little
        further: batches of ``DELTA_SCHEMA``. A key may come several times: what the last one says counts.

        If it raises, the whole of it has to be opened anew.

        :raises ExactnessError: something in the log broke what the proof rests on.
        """


class KeyReader(ChunkReader, Protocol):
    """A session that also reads rows by their keys."""

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """The rows with these keys, given as the log's own bytes, as `read` gives rows. There may be some with other
        keys among them, which the source takes for equal.

        :raises SourceUnavailable: the session broke. Nothing of it counts then.
        """


@runtime_checkable
class ReadsAgain(Protocol):
    """A source of which a copy can be exact where its reads end, by keys alone (consistency ``again``): rows that were
    touched are read again, at last in a view that all its sessions share (`SharesReads`). Its readers of keyed tables
    are `KeyReader`.
    """

    def follow(
        self, start: Position, identity: Mapping[str, str], tables: Sequence[TrackedTable]
    ) -> AbstractContextManager[LogTail]:
        """Read the log on from ``start``: the run's initial position; or that of copies, of tables that are rolled
        ``forward`` from there."""

    def settle(self, lock: LockPolicy) -> None:
        """Wait until every commit that the log holds now can be seen.

        :raises LockNotGranted: some could not for longer than the policy has.
        """

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        """Of the source that `SharesReads.share_reads` gave: the position of its view.

        :raises SchemaChanged: a table is not there what was recorded of it.
        :raises SourceUnavailable: the view is gone.
        """
