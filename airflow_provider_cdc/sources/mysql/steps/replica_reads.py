"""Reads chunks of tables on replicas of the source, without a lock.

A chunk that is read on a replica counts like one that was read on the source (docs/design/replicas.md):

- It shows all of the run's position: before the first chunk, the session waits until the replica has executed it.
- It shows only what is in the source's log before the bound of the reads: after the last chunk, the session asks the
  replica what it may have shown, and waits until the source has executed that. The bound is noted later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ExactnessError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, ReplicaRead
from airflow_provider_cdc.sources.mysql.checks.replica_tables import differences_of_tables, is_read_on_replicas
from airflow_provider_cdc.sources.mysql.checks.replicas import (
    COMPARED,
    REPLICAS,
    ReplicaContext,
    errant_transactions,
    interventions,
)
from airflow_provider_cdc.sources.mysql.server.replication import has_executed, wait_until_executed
from airflow_provider_cdc.sources.mysql.server.server import executed, shown, started
from airflow_provider_cdc.sources.mysql.server.session import Connection, RunSettings, session, value
from airflow_provider_cdc.sources.mysql.steps.chunk_reader import Held, TableReader
from airflow_provider_cdc.sources.replicas import name_of, raise_problems, session_on_replica
from airflow_provider_cdc.sources.session import Kept, session_of

_SOURCE_SECONDS = 60.0
"""How long the source may take to finish commits that a replica has already shown. With semisynchronous replication,
these commits wait for acknowledgements."""


@dataclass
class ReplicaSession:
    """A session on a replica that has executed the position of the run.

    :param settings: the settings of the source.
    :param waited: the seconds that the session waited for the position, as long as no read has reported them.
    :param compared: transactions that were compared with those of the source.
    :param searched: transactions that were looked up in the log of the replica.
    :param before: the `interventions` on the replica before the first read.
    """

    connection: Connection
    settings: RunSettings
    replica: ConnectionSettings
    server_uuid: str
    waited: float = 0.0
    compared: GtidSet = field(default_factory=GtidSet)
    searched: GtidSet = field(default_factory=GtidSet)
    before: Mapping[str, str] | None = None

    def check_replica(self, moment: Moment, source: Connection) -> ReplicaContext:
        """Check the replica, before it is compared with the source.

        :raises ExactnessError: a check finds a problem.
        """
        context = self._context(source)
        raise_problems(problems_of(REPLICAS, moment, context))
        return context

    def compare(self, moment: Moment, source: Connection, table: Table) -> None:
        """Compare the replica with the source.

        :raises ExactnessError: a check finds a problem.
        """
        context = self._context(source, table)
        raise_problems(problems_of(COMPARED, moment, context))
        self.compared, self.searched = context.compared, context.searched
        self.check_table(source, table)

    def _context(self, source: Connection, *tables: Table) -> ReplicaContext:
        return ReplicaContext(
            connection=self.connection,
            name=name_of(self.replica),
            settings=self.replica,
            primary=source,
            primary_settings=self.settings,
            position=self.settings.position,
            tables=tables,
            compared=self.compared,
            searched=self.searched,
            before=self.before,
        )

    def check_table(self, source: Connection, table: Table) -> None:
        """Check that the table has the same definition as on the source.

        :raises ExactnessError: its definition differs.
        :raises SourceUnavailable: the replica may lack a change of the table.
        :raises SchemaChanged: the table does not exist on the source.
        """
        has_all = executed(self.connection)
        what = differences_of_tables(source, self.connection, [table.name]).get(table.name)
        if what is None:
            return
        where = f"replica {name_of(self.replica)}, {table.name}"
        # A change that the source already shows may still be missing from its gtid_executed.
        if not shown(source) <= has_all:
            raise SourceUnavailable(
                f"the replica does not yet have the present definition of the table: {what}",
                where=where,
                hint="retry the task",
            )
        raise ExactnessError(
            f"the table differs from the table on the source: {what}",
            where=where,
            hint="build the replica anew, or remove it from `Read.read_conn_ids`; then retry the task",
        )

    def confirm(self, source: Connection, table: Table) -> tuple[str, GtidSet]:
        """Check everything again. Wait until all that the finished reads of the table may have shown is in the source's
        log. Return the start time of the source, and what the reads may have shown.

        :raises ExactnessError: the rows on the replica may not be those of the source.
        :raises SourceUnavailable: the source takes too long to commit what the replica showed, or the replica lost
            transactions.
        """
        found = self.check_replica(Moment.READS_ENDED, source).shown
        if not self.settings.position <= found:
            raise SourceUnavailable(
                "the replica lost transactions of the run's position meanwhile, so it was reset or restored",
                where=name_of(self.replica),
                hint="retry the task",
            )
        until = time.monotonic() + _SOURCE_SECONDS
        while not self._is_committed(source, found):
            if time.monotonic() > until:
                raise SourceUnavailable(
                    f"the source has not finished transactions that the replica {name_of(self.replica)} already shows",
                    where=self.settings.address,
                    hint="find out why commits on the source take so long (semisynchronous replication), then retry "
                    "the task",
                )
        self.compare(Moment.READS_ENDED, source, table)
        return started(source), found

    def _is_committed(self, source: Connection, found: GtidSet) -> bool:
        if errant := found - shown(source):
            raise_problems(
                [Problem(f"replica {name_of(self.replica)}", errant_transactions(errant), "build the replica anew")]
            )
        return has_executed(source, found, 1.0)


@contextmanager
def open_reader(
    settings: RunSettings, table: Table, wait_seconds: float, kept: Kept | None = None
) -> Iterator[ChunkReader]:
    """Open a session on one of the replicas to read chunks of ``table``.

    :param wait_seconds: how long to wait until the replica has the run's position.
    :param kept: a pool of sessions that stay open after the block.
    :raises ExactnessError: the rows on the replica may not be those of the source.
    :raises SourceUnavailable: no replica can be reached, or the replica does not have the position in time.
    """
    with session_of(kept, "reading on a replica", lambda: _open(settings, wait_seconds)) as opened:
        # The read may take longer than the server keeps an idle session.
        with session(settings) as source:
            opened.compare(Moment.EACH_SESSION, source, table)
        reader = _Reader(opened, table)
        yield reader
        reader.close()


class _Reader(TableReader):
    """Reads chunks of one table on a replica."""

    def __init__(self, opened: ReplicaSession, table: Table) -> None:
        super().__init__(opened.connection, table, None, Held())
        self._opened, self._table = opened, table
        self._rows = 0

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        for batch in super().read(chunk):
            self._rows += batch.num_rows
            yield batch

    def wait_until_durable(self) -> str:
        # What the source has in its log, it keeps in a crash (`_durable`), and a part counts only if the source was
        # not restarted since.
        opened = self._opened
        with session(opened.settings) as source:
            start, found = opened.confirm(source, self._table)
        waited, opened.waited = opened.waited, 0.0
        self.replica_read = ReplicaRead(opened.server_uuid, name_of(opened.replica), self._rows, waited, str(found))
        return start


@contextmanager
def _open(settings: RunSettings, wait_seconds: float) -> Iterator[ReplicaSession]:
    with session_on_replica(settings, partial(session, reading=True)) as (replica, connection):
        opened = ReplicaSession(connection, settings, replica, str(value(connection, "@@global.server_uuid")))
        with session(settings) as source:
            # Read the times before the values.
            before = interventions(connection)
            opened.check_replica(Moment.EACH_SESSION, source)
            opened.before = before
        where = f"replica {name_of(replica)}"
        opened.waited = wait_until_executed(
            connection, lambda: settings.position, wait_seconds, where, "the run's position"
        )
        yield opened


def replica_problems(
    settings: ConnectionSettings, source: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]
) -> list[Problem]:
    """Check, before a run begins, the replicas on which it is to read tables.

    :param source: a session of the source.
    :raises SourceUnavailable: a replica cannot be reached.
    """
    names = {plan.table: plan.consistency for plan in plans}
    read = [table for table in tables if is_read_on_replicas(table, names[table.name])]
    problems: list[Problem] = []
    for replica in settings.replicas:
        with session(replica) as connection:
            context = ReplicaContext(
                connection=connection,
                name=name_of(replica),
                settings=replica,
                primary=source,
                primary_settings=settings,
                position=executed(source),
                tables=read,
            )
            found = problems_of(REPLICAS, Moment.PREFLIGHT, context)
            problems += found or problems_of(COMPARED, Moment.PREFLIGHT, context)
    return problems
