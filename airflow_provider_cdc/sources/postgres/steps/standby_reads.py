"""Reads chunks of tables on standbys of the source.

A chunk that is read on a standby counts like one that was read on the source (docs/design/replicas.md):

- It shows all of the run's position: before the first chunk, the session waits until the standby has replayed it.
- It shows only what is in the source's log before the bound of the reads. After the last chunk, the run makes
  transactions on the source, and the same session waits until the standby shows them. So the standby has replayed the
  log of this source, and nothing else, and had replayed less of it when the chunks were read.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError, Problem, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, ReplicaRead
from airflow_provider_cdc.sources.postgres.checks.standbys import (
    BACKEND,
    STANDBYS,
    STATE,
    StandbyContext,
    StandbyState,
    is_read_on_standbys,
)
from airflow_provider_cdc.sources.postgres.server import server, session_setup
from airflow_provider_cdc.sources.postgres.server.session import Connection, mapped_errors, query, session
from airflow_provider_cdc.sources.postgres.slots import waits
from airflow_provider_cdc.sources.postgres.steps.chunk_reader import TableReader
from airflow_provider_cdc.sources.replicas import (
    LOG_ON_SOURCE,
    REMOVE,
    name_of,
    planned_where,
    raise_problems,
    session_on_replica,
)
from airflow_provider_cdc.sources.session import Kept, session_of

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.postgres.decode.rows import Reading, RowReader

_POLL_SECONDS = (0.01, 0.5)
"""The shortest and the longest time between two looks at the standby."""
_BITS = 32
_STARTED = "SELECT 'started at ' || pg_catalog.pg_postmaster_start_time()::text"


# Proves which log a standby replays.
#
# A system identifier, a timeline and positions do not prove it: copies of the source's files have the same, and a copy
# that was promoted numbers its log and its transactions like the source. So the run makes transactions on the source of
# which some commit and some abort, by chance. A standby that shows the same of all of them has replayed their log.


@dataclass(frozen=True)
class TransactionMark:
    """Transactions that were made on the source: their ids, and whether each was committed. ``end`` is a position after
    them, and ``incarnation`` the start time of the source."""

    ids: tuple[str, ...]
    committed: tuple[bool, ...]
    end: Lsn
    incarnation: str

    @classmethod
    def make(cls, connection: Connection, where: str) -> TransactionMark:
        """Make the transactions. They are on disk when this method returns.

        :raises SourceUnavailable: the server does not flush its log.
        """
        committed = tuple(secrets.choice((True, False)) for _ in range(_BITS))
        made = [f"BEGIN; SELECT pg_current_xact_id()::text; {'COMMIT' if one else 'ROLLBACK'}" for one in committed]
        # They are flushed together. The setting has a transaction of its own, because the first one may be aborted.
        query(connection, "SET synchronous_commit = off")
        cursor = connection.execute("; ".join([*made, "SET synchronous_commit = local"]).encode())
        ids = []
        while True:
            ids += [str(xid) for (xid,) in cursor.fetchall()] if cursor.description else []
            if not cursor.nextset():
                break
        end, incarnation = waits.wait(partial(query, connection), where)
        return cls(tuple(ids), committed, end, incarnation)

    @property
    def shown(self) -> str:
        """A query for the states of the transactions on a server, and for its `BACKEND`. A server raises an error for
        ids that it does not know yet, so the query does not ask for their states."""
        ids = ", ".join(f"('{xid}'::xid8)" for xid in self.ids)
        return (
            "SELECT string_agg(CASE WHEN m.id < pg_snapshot_xmax(pg_current_snapshot()) THEN pg_xact_status(m.id) END, "
            f"' ' ORDER BY m.id), {BACKEND} FROM (VALUES {ids}) m(id)"
        )

    @property
    def states(self) -> str:
        """The states that a server shows that has the transactions."""
        return " ".join("committed" if one else "aborted" for one in self.committed)


@dataclass
class StandbySession:
    """A session on a standby that has replayed the position of the run.

    :param settings: the settings of the source.
    :param server: what distinguishes the server of the standby from others.
    :param seconds: how long to wait for a position.
    :param waited: the seconds that the session waited for positions, as long as no read has reported them.
    :param backend: the `BACKEND` of the session. Empty: no statement has asked for it yet.
    """

    reading: Reading
    settings: session_setup.RunSettings
    standby: ConnectionSettings
    seconds: float
    server: str = ""
    waited: float = 0.0
    backend: str = ""

    @property
    def where(self) -> str:
        return f"replica {name_of(self.standby)}"

    def ask(self, sql: str) -> list[tuple[str | None, ...]]:
        """Return the rows of a query whose columns are all text."""
        from airflow_provider_cdc.sources.postgres.decode.rows import ask

        with mapped_errors(self.where):
            return ask(self.reading, sql)

    def state(self) -> StandbyState:
        (row,) = self.ask(STATE)
        state = StandbyState.of(row)
        self.check_backend(state.backend)
        return state

    def check_backend(self, found: str | None) -> None:
        """Check that the process that answered a statement is the one that answered all others of the session.

        Between two transactions, a pooler may exchange the server behind a session. What one server has replayed proves
        nothing about the rows of another.

        :raises ExactnessError: the process is another one.
        """
        self.backend = self.backend or str(found)
        if found != self.backend:
            raise ExactnessError(
                f"several processes answer the statements of one session (started at, pid: {self.backend} and {found})",
                where=self.where,
                hint="this is typical of a pooler or a balancer of statements: connect to the standby directly, or "
                f"{REMOVE}",
            )

    def check(self, moment: Moment, source: Connection) -> None:
        """Check the settings of both servers.

        :raises ExactnessError: a check finds a problem.
        """
        context = StandbyContext(source, name=name_of(self.standby), state=self.state())
        raise_problems(problems_of(STANDBYS, moment, context))

    def wait_for(self, position: Lsn) -> None:
        """Wait until the standby has replayed the log up to ``position``.

        What is replayed is visible: the position that the server reports follows the work of each record.

        :raises SourceUnavailable: the standby does not get there in time, or was promoted.
        """
        began, pause = time.monotonic(), _POLL_SECONDS[0]
        while (state := self.state()).replayed < position or not state.recovering:
            if not state.recovering:
                raise SourceUnavailable("the standby was promoted meanwhile", where=self.where, hint="retry the task")
            if time.monotonic() - began > self.seconds:
                raise SourceUnavailable(
                    f"the standby has lagged behind position {position} for {self.seconds:.0f} s: it has replayed the "
                    f"log up to {state.replayed}{''.join(f'; {one}' for one in state.obstacles)}",
                    where=self.where,
                    hint="find out why the standby lags or gets no log (pg_stat_wal_receiver; pg_wal_replay_resume() "
                    "on the standby), or raise `Read.replica_wait_seconds`",
                )
            time.sleep(pause)
            pause = min(2 * pause, _POLL_SECONDS[1])
        self.waited += time.monotonic() - began

    def confirm(self) -> TransactionMark:
        """Check that all that the session has read is in the log of the source. Return a mark that comes later.

        :raises ExactnessError: the standby replays another log.
        :raises SourceUnavailable: the standby does not replay the mark in time, or was promoted.
        """
        with session(self.settings) as source:
            self.check(Moment.READS_ENDED, source)
            mark = TransactionMark.make(source, self.settings.address)
        self.wait_for(mark.end)
        ((states, backend),) = self.ask(mark.shown)
        self.check_backend(backend)
        if states != mark.states:
            raise ExactnessError(
                f"the standby does not replay the log of the source: at {mark.end}, it does not have the last "
                "transactions of the source",
                where=self.where,
                hint=f"it replays the log of a copy of the source. Name a standby that streams from the source, or "
                f"{REMOVE}",
            )
        return mark


@contextmanager
def open_reader(
    settings: session_setup.RunSettings, table: Table, wait_seconds: float, kept: Kept | None = None
) -> Iterator[ChunkReader]:
    """Open a session on one of the standbys to read chunks of ``table``.

    :param wait_seconds: how long to wait until the standby has replayed a position.
    :param kept: a pool of sessions that stay open after the block.
    :raises ExactnessError: the server is not a standby of the source.
    :raises SourceUnavailable: no standby can be reached, or the standby does not have the position in time.
    """
    # Imported here because the steps that only plan and record do not need the compiled decoders.
    from airflow_provider_cdc.sources.postgres.decode.rows import rows_of

    with session_of(kept, "reading on a standby", lambda: _open(settings, wait_seconds)) as opened:
        yield _Reader(opened, rows_of(opened.reading, table.as_read), table)


class _Reader(TableReader):
    """Reads chunks of one table on a standby."""

    def __init__(self, opened: StandbySession, rows: RowReader, table: Table) -> None:
        super().__init__(session_setup.of_standby(opened.standby, opened.settings.server), rows, table, None)
        self._opened = opened
        self._count = 0

    def read(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        for batch in super().read(chunk):
            self._count += batch.num_rows
            yield batch

    def _end(self) -> None:
        # The transaction of the read has not ended yet.
        self._opened.state()
        super()._end()

    def wait_until_durable(self) -> str:
        # What the source has on disk, it keeps in a crash (`_durable`), and only that is sent to standbys.
        opened = self._opened
        mark = opened.confirm()
        waited, opened.waited = opened.waited, 0.0
        self.replica_read = ReplicaRead(opened.server, name_of(opened.standby), self._count, waited, str(mark.end))
        return mark.incarnation


@contextmanager
def _open(settings: session_setup.RunSettings, wait_seconds: float) -> Iterator[StandbySession]:
    from airflow_provider_cdc.sources.postgres.decode.rows import open_reading

    def reading(standby: ConnectionSettings) -> AbstractContextManager[Reading]:
        return open_reading(session_setup.of_standby(standby, settings.server))

    with session_on_replica(settings, reading) as (standby, connection):
        opened = StandbySession(connection, settings, standby, wait_seconds)
        with session(settings) as source:
            opened.check(Moment.EACH_SESSION, source)
        opened.wait_for(settings.position)
        ((found,),) = opened.ask(_STARTED)
        opened.server = str(found)
        yield opened


def planned_on_standbys(plans: Sequence[TablePlan], tables: Sequence[Table]) -> list[TablePlan]:
    """Return the plans with reasons that say where each table is read."""
    return [
        planned_where(plan, is_read_on_standbys(table, plan.consistency))
        for plan, table in zip(plans, tables, strict=True)
    ]


def standby_problems(settings: ConnectionSettings, source: Connection) -> list[Problem]:
    """Check, before a run begins, the standbys on which it is to read tables.

    :param source: a session of the source.
    :raises SourceUnavailable: a standby cannot be reached.
    """
    if settings.log_server is not None:
        return [LOG_ON_SOURCE]
    if not settings.replicas:
        return []
    facts = server.identity(source)
    problems: list[Problem] = []
    for standby in settings.replicas:
        try:
            with session(session_setup.of_standby(standby, facts)) as connection:
                state = StandbyState.of(query(connection, STATE)[0])
        except (ConfigurationError, ExactnessError) as error:
            problems.append(Problem(f"replica {name_of(standby)}", error.message, error.hint))
        else:
            context = StandbyContext(source, name=name_of(standby), state=state)
            problems += problems_of(STANDBYS, Moment.PREFLIGHT, context)
    return problems
