"""Checks of a standby on which a run reads tables (`ConnectionSettings.replicas`).

A standby is a copy of the primary, block by block, and no session can write on it. So a read on a standby is as good as
a read on the primary if the standby replays the log of this primary, and has replayed all of the run's position
(docs/design/replicas.md). `steps.standby_reads` waits for the position, and checks after the reads of each standby
which log it replays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.postgres.catalog.types import base_type
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.context import ServerContext
from airflow_provider_cdc.sources.postgres.server.session import value
from airflow_provider_cdc.sources.replicas import REMOVE

_FIRST_OF_USERS = 16_384
_MONEY = frozenset({790, 791})

BACKEND = "pg_catalog.concat_ws(' ', pg_catalog.pg_postmaster_start_time(), pg_catalog.pg_backend_pid())"
"""Tells the process of a server that answers a statement from those of all servers."""
STATE = f"""
SELECT pg_catalog.pg_is_in_recovery()::text,
    COALESCE(pg_catalog.pg_last_wal_replay_lsn(), '0/0')::text,
    CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_get_wal_replay_pause_state() ELSE 'ended' END,
    pg_catalog.current_setting('recovery_min_apply_delay'),
    pg_catalog.current_setting('fsync'),
    {BACKEND}
"""


@dataclass(frozen=True)
class StandbyState:
    """The present state of a standby, from the result of `STATE`."""

    recovering: bool
    replayed: Lsn
    pausing: str
    delay: str
    fsync: str
    backend: str

    @classmethod
    def of(cls, row: tuple[str | None, ...]) -> StandbyState:
        recovering, replayed, pausing, delay, fsync, backend = (text or "" for text in row)
        return cls(recovering == "true", Lsn.parse(replayed), pausing, delay, fsync, backend)

    @property
    def obstacles(self) -> list[str]:
        """What keeps the standby from replaying the log at once."""
        paused = [] if self.pausing == "not paused" else [f"its replay is paused ({self.pausing})"]
        return [*paused, *([] if self.delay == "0" else [f"recovery_min_apply_delay is {self.delay}"])]


@dataclass(kw_only=True)
class StandbyContext(ServerContext):
    """A standby, with a session of its primary (``connection``).

    :param name: the standby in messages.
    :param state: the state of the standby.
    """

    name: str
    state: StandbyState


def _replays(context: StandbyContext) -> Iterable[Problem]:
    for obstacle in context.state.obstacles:
        yield Problem(
            f"replica {context.name}",
            f"{obstacle}, so each read would wait for log that the standby does not replay",
            f"SELECT pg_wal_replay_resume(), and set recovery_min_apply_delay = 0 on the standby; or {REMOVE}",
        )


def _durable(context: StandbyContext) -> Iterable[Problem]:
    if (found := value(context.connection, "current_setting('fsync')")) != "on":
        yield Problem(
            "source_conn_id",
            f"fsync is {found}: in a crash, the source may lose log that the standby {context.name} has replayed",
            "set fsync = on on the source, or leave `Read.read_conn_ids` empty",
        )
    if (found := context.state.fsync) != "on":
        yield Problem(
            f"replica {context.name}",
            f"fsync is {found}: in a crash, the standby may lose changes that it counts as replayed",
            f"set fsync = on on the standby, and build it anew; or {REMOVE}",
        )


STANDBYS: tuple[Check[StandbyContext], ...] = (
    Check(
        "postgres.read-replica-replays",
        "A standby on which tables are read replays its log at once: it is not paused, and has no delay.",
        (Moment.PREFLIGHT,),
        f"resume the replay, set recovery_min_apply_delay = 0, or {REMOVE}",
        _replays,
        (Raised(Moment.EACH_SESSION, "sources.postgres.steps.standby_reads:StandbySession.wait_for"),),
    ),
    Check(
        "postgres.read-replica-durable",
        "A crash takes back nothing that a standby has replayed, neither on the source nor on the standby (`fsync`).",
        (Moment.PREFLIGHT, Moment.EACH_SESSION, Moment.READS_ENDED),
        "set fsync = on on both servers",
        _durable,
    ),
)
READ_ON_STANDBYS: tuple[Check[None], ...] = (
    Check(
        "postgres.read-replica-standby",
        "A server on which tables are read is in recovery, and has the system identifier, the database, the currency "
        "and no later timeline than the source.",
        (),
        f"name a standby of the source, or {REMOVE}",
        raised_by=(
            Raised(Moment.PREFLIGHT, "sources.postgres.steps.standby_reads:standby_problems"),
            Raised(Moment.EACH_SESSION, "sources.postgres.server.session_setup:_check_standby"),
        ),
    ),
    Check(
        "postgres.read-replica-history",
        "After its reads, a standby replays transactions that the run makes on the source, and was not promoted.",
        (),
        f"name a standby of the source, or {REMOVE}",
        raised_by=(Raised(Moment.READS_ENDED, "sources.postgres.steps.standby_reads:StandbySession.confirm"),),
    ),
    Check(
        "postgres.read-replica-direct",
        "One process of one standby answers all statements of a session, and each read is made by this process.",
        (),
        f"connect to the standby directly, or {REMOVE}",
        raised_by=(Raised(Moment.EACH_SESSION, "sources.postgres.steps.standby_reads:StandbySession.check_backend"),),
    ),
)


def is_read_on_standbys(table: Table, consistency: str) -> bool:
    """Return whether a run reads the chunks of the table on the standbys that it has, and not on the source.

    The standby has the same bytes as the primary. What it computes from them may differ if its operating system, its
    libraries or its extensions differ. So a table is read there only if no value that is read is computed by other code
    than the server's own.
    """
    in_chunks = consistency in ("watermark", "again") and table.details["kind"] not in (VIEW, MATERIALIZED)
    return in_chunks and all(map(_is_of_server, table.as_read.columns))


def _is_of_server(column: Column) -> bool:
    oid, _ = base_type(column)
    # The format of money depends on the locale of the operating system.
    built_in = oid < _FIRST_OF_USERS and oid not in _MONEY
    return (built_in or column.details.get("kind") == "enum") and column.details.get("generated") != "virtual"
