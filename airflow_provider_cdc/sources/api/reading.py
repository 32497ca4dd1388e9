"""The part of `Source` that reads the rows of tables, and checks that the tables stay as the run recorded them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

from airflow_provider_cdc.core.options.run import LockPolicy
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Era, Table, TableName
from airflow_provider_cdc.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.sources.api.unrepresentable import OddValue
    from airflow_provider_cdc.sources.api.window import UpperBound


class ChunkReader(Protocol):
    """A session that reads chunks of one table."""

    @property
    def upper(self) -> Position | None:
        """The exact position at which all chunks are read. None: each chunk is read at a different time."""

    @property
    def lock_seconds(self) -> float:
        """The time for which a lock was held to fix ``upper``."""

    @property
    def nulled(self) -> Mapping[str, int]:
        """For each column, the number of values that were read as null so far, because no Arrow type holds them."""

    @property
    def odd(self) -> Sequence[OddValue]:
        """The values in the last batch of `read` that no Arrow type holds. With the policy ``error``, a placeholder
        replaces such a value. With other policies, ``odd`` has only the values that the table's condition treats as
        null, although another value is published for them."""

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the chunk's rows as batches. The schema of the batches is ``Source.arrow_schema`` of `Table.as_read`.
        The used memory is limited, even if the chunk is large.

        :raises SourceUnavailable: the session broke. All rows of the chunk must be discarded.
        :raises ValueNotRepresentable: the policy is ``error``, and no Arrow type holds a value of a key, or a value of
            a keyless table that is copied as a whole. Or a table without a condition has too many such values for
            ``odd``.
        """

    def wait_until_durable(self) -> str:
        """Call this method after the last chunk. It waits until a crash of the server can no longer undo what was read,
        as far as the server can guarantee this. Then it returns the server's incarnation. The wait uses the session
        that read the chunks.

        The incarnation is an opaque value. It changes with every event that undoes what was read, at least with every
        restart after which data that was not yet durable is lost. The rows of a part count only if the bound of the
        reads has the same incarnation.

        :raises SourceUnavailable: the session broke. The part must be discarded.
        """


class KeyReader(ChunkReader, Protocol):
    """A session that also reads rows by their keys."""

    def find(self, keys: pa.BinaryArray) -> Iterator[pa.RecordBatch]:
        """Yield the rows with these keys, in the same form as `read`. The result may also have rows with other keys, if
        the source considers these keys equal to the requested keys.

        :param keys: the keys, as the log's own bytes.
        :raises SourceUnavailable: the session broke. All rows that this call returned must be discarded.
        """


class Reading(ABC):
    """The methods of `sources.api.source.Source` for reads of tables."""

    kind: ClassVar[str]

    @abstractmethod
    def reader(self, table: Table, consistency: str, lock: LockPolicy) -> AbstractContextManager[ChunkReader]:
        """Open a session that reads chunks of ``table``."""

    @abstractmethod
    def one_session(self) -> AbstractContextManager[Self]:
        """Return a context with a variant of this source, in which `plan_chunks` and `reader` reuse one session as far
        as possible. Only one thread may use the returned source, and only one of its readers may be open at a time.
        """

    def close_idle(self) -> None:
        """Close the sessions that are kept open. No reader may be open. The next reader opens a new session."""

    @abstractmethod
    def bound_reads(self) -> UpperBound:
        """Return a bound on everything that completed reads could have seen."""

    @abstractmethod
    def check_tables(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` had no hidden change since the initial position. A hidden change is visible neither in
        the tables nor in the log. Call this method after the last read.

        :raises SchemaChanged: there was a hidden change.
        """

    def note_tables(self, end: LogEnd, tables: Sequence[Table]) -> str:
        """Check ``tables`` as `check_tables` does. From then on, this source searches the log only from the
        place ``end`` on. The place was noted before this call.

        :returns: what later sessions must know, as text (`Link.known`).
        :raises SchemaChanged: a table was replaced.
        """
        return ""

    # Reads in one snapshot that all sessions share (consistency ``exported``), and touched rows that are read again in
    # such a snapshot (consistency ``again``). For ``again``, `reader` of a keyed table opens a `KeyReader`.

    def share_reads(self, lock: LockPolicy) -> AbstractContextManager[Self]:
        """Return a context with a source that reads the chunks of tables with the consistency ``exported``. The
        snapshot stays open as long as the context is open.

        :param lock: how long other sessions may delay the snapshot.
        :raises LockNotGranted: open transactions delayed the snapshot for longer than ``lock`` allows.
        :raises SourceUnavailable: the snapshot could not be opened.
        """
        return nullcontext(self)

    def shared_reads(self, consistencies: Collection[str], lock: LockPolicy) -> AbstractContextManager[Self]:
        """Return a context with a source that reads tables with these consistencies. If one of the consistencies is
        ``exported``, all sessions of the source read one shared snapshot (`share_reads`)."""
        return self.share_reads(lock) if "exported" in consistencies else nullcontext(self)

    def wait_until_visible(self, lock: LockPolicy) -> None:
        """Wait until readers see all commits that are in the log at the time of the call.

        :raises LockNotGranted: some commits were not visible within the time limit of the policy.
        """

    def bound_view(self, tables: Sequence[Table]) -> UpperBound:
        """Return the position of the shared snapshot. Call this method only on the source that
        `share_reads` returned.

        :raises SchemaChanged: the definition of a table in the snapshot differs from the definition that the run
            recorded.
        :raises SourceUnavailable: the snapshot no longer exists.
        """
        raise ConfigurationError(
            f"sessions of a {self.kind} source cannot share a snapshot",
            where="parameter consistency (Read.consistency)",
            hint="use `auto`",
        )

    # Finished reads that the log brings to a later position of the run

    def reason_not_rollable(self, table: Table) -> str:
        """Return the reason why the finished read of a table cannot be brought to a later position. Empty: it can."""
        return f"reads of a {self.kind} source cannot be brought to a later position"

    def check_continued(self, tables: Sequence[Table]) -> None:
        """Check that ``tables`` are unchanged since the initial point of the run, so that the log has all changes of
        their rows up to a position that is fixed before the call. More changes count than in
        `check_tables`, because the rows at the later position are published. For example, a new
        partition may have rows there.

        :raises SchemaChanged: a table was changed.
        """
        raise ConfigurationError(
            f"reads of a {self.kind} source cannot be brought to a later position",
            where="parameter on_schema_change (On.schema_change)",
            hint="set `On.schema_change` to `fail`",
        )

    def ends_of_reads(self, tables: Sequence[Table]) -> dict[TableName, LogEnd]:
        """Return the present end of the log for tables whose reads have ended. `carry_read` takes it.

        The schema changes after this end come after the reads. There is no end for a table if earlier schema changes
        cannot be ruled out, where the source needs this.

        :param tables: the tables as they were recorded when their reads began.
        """
        return {}

    def new_columns(self, table: Table, era: Era) -> pa.RecordBatch:
        """Return the published values of the columns of ``table`` that rows of ``era`` do not have, as one row."""
        raise ConfigurationError(
            f"rows of a {self.kind} source cannot be carried over schema changes",
            where=str(table.name),
            hint="set `refresh` to `full`",
        )
