"""Protocols for sources whose copies can be rolled forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.as_of import AsOf
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.table import Column, Era, Evolution, Table, TableName

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sources.api.window import LogSegment


@runtime_checkable
class RollsForward(Protocol):
    """A source whose log has the new row of every change, so that a published copy can be rolled forward."""

    def refusals_since(
        self,
        identity: Mapping[str, str],
        position: Position,
        tables: Sequence[Table],
        to: AsOf | None,
        options: StepOptions,
        *,
        keys_only: bool = False,
        bases: int = 1,
        evolutions: dict[TableName, Evolution] | None = None,
    ) -> dict[TableName, str]:
        """Return the reasons why copies cannot be rolled forward, by table. Tables whose copies can be rolled forward
        are not in the result.

        :param identity: the identity of the server from which the copies were made.
        :param position: the position at which the copies are exact.
        :param to: the position or time to which the copies are rolled forward. None: now.
        :param keys_only: read only the keys of touched rows (consistency ``again``).
        :param bases: the number of different positions of the copies that the run may roll forward.
        :param evolutions: receives the schema changes of tables that can be rolled forward over them. None: tables with
            schema changes are refused.
        :raises ExactnessError: no copy can be rolled forward.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def check_since(self, identity: Mapping[str, str], position: Position) -> None:
        """Check three conditions. The connected server must be the server of ``identity``, which had ``position``. The
        server's history since ``position`` must be intact. Everything that the log does not show must be unchanged
        since ``position``.

        :raises ExactnessError: one of these conditions does not hold.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def segments_between(
        self,
        start: Position,
        end: Position,
        since: Mapping[str, str],
        identity: Mapping[str, str],
        slots: int = 1,
        tables: Sequence[Table] = (),
    ) -> list[LogSegment]:
        """Return the segments with all changes after ``start`` up to ``end``, in log order.

        :param since: the server's identity that was recorded at ``start``.
        :param identity: the identity in the run's initial point.
        :param slots: how many segments are read at once.
        :param tables: the tables that are rolled forward. No segment contains rows from both sides of one of their
            schema changes (`Table.eras`).
        :raises LogGone: the log no longer reaches back to ``start``.
        """


@runtime_checkable
class CarriesSchemaChanges(Protocol):
    """A source whose copies can be rolled forward over schema changes (`RollsForward.refusals_since`)."""

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        """Return the published values of the columns of ``table`` that rows of ``era`` do not have, as one row."""


@runtime_checkable
class CarriesReads(Protocol):
    """A source whose finished reads can be brought to a later position of the same run over schema changes."""

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        """Return the present end of the log for tables whose reads have ended. `carry_read` takes it.

        The schema changes after this end come after the reads. There is no end for a table if earlier schema changes
        cannot be ruled out, where the source needs this.

        :param tables: the tables as they were recorded when their reads began.
        """

    def carry_read(
        self,
        identity: Mapping[str, str],
        start: Position,
        table: Table,
        now: Table,
        ended: LogEnd,
        end: Position,
        recorded: LogEnd | None = None,
    ) -> Evolution:
        """Return the schema changes of a table since it was read.

        :param identity: the identity of the initial point ``start`` under which the read began.
        :param table: the table as it was recorded at ``start``.
        :param now: the table as it was recorded after ``end``.
        :param ended: an end of the log after the end of the read.
        :param end: the position to which the read is brought.
        :param recorded: the end of the recorded pieces of the log since ``start`` (`CarriesPieces`). None: the log is
            read from the source.
        :raises SchemaChanged: the rows of the read cannot be carried over the changes.
        :raises ExactnessError: the log since ``start`` is not complete.
        :raises SourceUnavailable: the server cannot be reached.
        """

    def segments_of_reads(
        self,
        start: Position,
        end: Position,
        since: Mapping[str, str],
        identity: Mapping[str, str],
        slots: int,
        tables: Sequence[Table],
    ) -> list[LogSegment]:
        """Return the segments with all changes since reads that are carried, as `RollsForward.segments_between`."""


@runtime_checkable
class CarriesPieces(Protocol):
    """A source whose reads can also be carried if the log since then is in recorded pieces, and perhaps no longer on
    the server (`jobs.restart.carried_pieces`)."""

    def carry_images(self, table: Table, columns: Sequence[Column], images: pa.BinaryArray) -> pa.BinaryArray:
        """Return images of the present ``table`` for images of the table with earlier ``columns``. Nulls stay.

        :param table: the present table, with the schema changes since it was read (`Table.eras`).
        :raises DecodeError: the bytes are not images of the table with these columns.
        """
