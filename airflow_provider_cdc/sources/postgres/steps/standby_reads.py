"""Reads chunks of tables on standbys of the source.

A chunk that is read on a standby counts like one that was read on the source (docs/design/replicas.md):

- It shows all of the run's position: before the first chunk, the session waits until the standby has replayed it.
- It shows only what is in the source's log before the bound of the reads. After the last chunk, the run makes
  transactions on the source, and the same session waits until the standby shows them. So the standby has replayed the
  log of this source, and nothing else, and had replayed less of it when the chunks were read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_provider_cdc.core.checks import Moment, problems_of
from airflow_provider_cdc.core.run.manifest import TablePlan
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, ExactnessError, Problem
from airflow_provider_cdc.sources.api.source import ChunkReader, ConnectionSettings, ReplicaRead
from airflow_provider_cdc.sources.postgres.checks.standbys import (
    LOG_ON_STANDBY,
    STANDBYS,
    LogStandbyContext,
    StandbyContext,
    is_read_on_standbys,
)
from airflow_provider_cdc.sources.postgres.server import server, session_setup
from airflow_provider_cdc.sources.postgres.server.facts import PostgresFacts
from airflow_provider_cdc.sources.postgres.server.session import Connection, mapped_errors, query, session, value
from airflow_provider_cdc.sources.postgres.slots.standbys import (
    MAY_LOG_TRANSACTIONS,
    STATE,
    StandbySession,
    StandbyState,
)
from airflow_provider_cdc.sources.postgres.steps.chunk_reader import TableReader
from airflow_provider_cdc.sources.replicas import (
    REMOVE,
    name_of,
    planned_where,
    raise_problems,
    session_on_replica,
)
from airflow_provider_cdc.sources.session import Kept, session_of

if TYPE_CHECKING:
    from airflow_provider_cdc.sources.postgres.decode.rows import Reading, RowReader

_log = logging.getLogger(__name__)

_NO_SLOT = (
    "The standby %s has no primary_slot_name. So the source does not know that a standby decodes its log. If the "
    "standby loses its connection for a while, or a session runs VACUUM FULL on the catalog of the source, the run may "
    "fail (`could not map filenumber`, or a slot that is lost). Let the standby use a slot of the source"
)
_STARTED = "SELECT 'started at ' || pg_catalog.pg_postmaster_start_time()::text"


@dataclass
class _Session(StandbySession):
    """A session that reads tables. ``server`` distinguishes the server of the standby from others."""

    server: str = ""

    def check(self, moment: Moment, source: Connection) -> None:
        """Check the settings of both servers.

        :raises ExactnessError: a check finds a problem.
        """
        context = StandbyContext(source, name=name_of(self.standby), state=self.state())
        raise_problems(problems_of(STANDBYS, moment, context))

    def check_ended(self, source: Connection) -> None:
        self.check(Moment.READS_ENDED, source)


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
        reading, standby = opened
        yield _Reader(standby, rows_of(reading, table.as_read), table, settings.server)


class _Reader(TableReader):
    """Reads chunks of one table on a standby."""

    def __init__(self, opened: _Session, rows: RowReader, table: Table, server: PostgresFacts) -> None:
        super().__init__(session_setup.of_standby(opened.standby, server), rows, table, None)
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
def _open(settings: session_setup.RunSettings, wait_seconds: float) -> Iterator[tuple[Reading, _Session]]:
    from airflow_provider_cdc.sources.postgres.decode.rows import ask, open_reading

    def reading(standby: ConnectionSettings) -> AbstractContextManager[Reading]:
        return open_reading(session_setup.of_standby(standby, settings.server))

    with session_on_replica(settings, reading) as (standby, connection):

        def asked(sql: str) -> list[tuple[str | None, ...]]:
            with mapped_errors(f"replica {name_of(standby)}"):
                return ask(connection, sql)

        opened = _Session(asked, settings, standby, wait_seconds, REMOVE)
        with session(settings) as source:
            opened.check(Moment.EACH_SESSION, source)
        opened.wait_for(settings.position)
        ((found,),) = opened.ask(_STARTED)
        opened.server = str(found)
        yield connection, opened


def planned_on_standbys(plans: Sequence[TablePlan], tables: Sequence[Table]) -> list[TablePlan]:
    """Return the plans with reasons that say where each table is read."""
    return [
        planned_where(plan, is_read_on_standbys(table, plan.consistency))
        for plan, table in zip(plans, tables, strict=True)
    ]


def standby_problems(
    settings: ConnectionSettings, source: Connection, tables: Sequence[Table], plans: Sequence[TablePlan]
) -> list[Problem]:
    """Check, before a run begins, the standbys on which it is to read tables, and the one from which it is to read
    their log.

    :param source: a session of the source.
    :raises SourceUnavailable: a standby cannot be reached.
    """
    log_servers = () if settings.log_server is None else (settings.log_server,)
    standbys = [(one, False) for one in settings.replicas] + [(one, True) for one in log_servers]
    facts = server.identity(source) if standbys else PostgresFacts()
    problems: list[Problem] = []
    for standby, has_log in standbys:
        own, name = session_setup.of_standby(standby, facts), name_of(standby)
        try:
            with session(own) as connection:
                state = StandbyState.of(query(connection, STATE)[0])
                if has_log:
                    of_log = LogStandbyContext(
                        source, name=name, state=state, log=connection, settings=own, tables=tables, plans=plans
                    )
                    problems += problems_of(LOG_ON_STANDBY, Moment.PREFLIGHT, of_log)
                    if not value(connection, "current_setting('primary_slot_name')"):
                        _log.warning(_NO_SLOT, name)
                else:
                    of_reads = StandbyContext(source, name=name, state=state)
                    problems += problems_of(STANDBYS, Moment.PREFLIGHT, of_reads)
        except (ConfigurationError, ExactnessError) as error:
            problems.append(Problem(f"replica {name}", error.message, error.hint))
    if log_servers and not problems and not value(source, MAY_LOG_TRANSACTIONS):
        _log.warning(
            "To create the run's slot on a standby may take a minute. It takes a second after "
            "GRANT EXECUTE ON FUNCTION pg_log_standby_snapshot() TO %s on the source",
            settings.user,
        )
    return problems
