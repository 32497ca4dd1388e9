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
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.types import base_type
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import MATERIALIZED, VIEW
from airflow_provider_cdc.sources.postgres.checks.context import ServerContext, TablesContext
from airflow_provider_cdc.sources.postgres.checks.privileges import Privileges
from airflow_provider_cdc.sources.postgres.server.server import change_setting, platform
from airflow_provider_cdc.sources.postgres.server.session import Connection, value
from airflow_provider_cdc.sources.postgres.slots import slots
from airflow_provider_cdc.sources.postgres.slots.standbys import LOG_ELSEWHERE, StandbyState
from airflow_provider_cdc.sources.replicas import REMOVE

_FIRST_OF_USERS = 16_384
_MONEY = frozenset({790, 791})
_DECODE_SINCE = 160_000


@dataclass(kw_only=True)
class StandbyContext(ServerContext):
    """A standby, with a session of its primary (``connection``).

    :param name: the standby in messages.
    :param state: the state of the standby.
    :param elsewhere: the hint that says how to do without the standby.
    """

    name: str
    state: StandbyState
    elsewhere: str = REMOVE


@dataclass(kw_only=True)
class LogStandbyContext(StandbyContext, TablesContext):
    """A standby from which the log of tables is read.

    :param log: a session of the standby.
    :param settings: the settings of the standby.
    """

    log: Connection
    settings: ConnectionSettings
    elsewhere: str = LOG_ELSEWHERE


def _replays(context: StandbyContext) -> Iterable[Problem]:
    for obstacle in context.state.obstacles:
        yield Problem(
            f"replica {context.name}",
            f"{obstacle}, so the run would wait for log that the standby does not replay",
            "SELECT pg_wal_replay_resume(), and set recovery_min_apply_delay = 0 on the standby; or "
            f"{context.elsewhere}",
        )


def _durable(context: StandbyContext) -> Iterable[Problem]:
    if (found := value(context.connection, "current_setting('fsync')")) != "on":
        yield Problem(
            "source_conn_id",
            f"fsync is {found}: in a crash, the source may lose log that the standby {context.name} has replayed",
            f"set fsync = on on the source; or {context.elsewhere}",
        )
    if (found := context.state.fsync) != "on":
        yield Problem(
            f"replica {context.name}",
            f"fsync is {found}: in a crash, the standby may lose changes that it counts as replayed",
            f"set fsync = on on the standby, and build it anew; or {context.elsewhere}",
        )


STANDBYS: tuple[Check[StandbyContext], ...] = (
    Check(
        "postgres.read-replica-replays",
        "A standby on which tables or the log are read replays its log at once: it is not paused, and has no delay.",
        (Moment.PREFLIGHT,),
        f"resume the replay, set recovery_min_apply_delay = 0, or {REMOVE}",
        _replays,
        (Raised(Moment.EACH_SESSION, "sources.postgres.slots.standbys:StandbySession.wait_for"),),
    ),
    Check(
        "postgres.read-replica-durable",
        "A crash takes back nothing that a standby has replayed, neither on the source nor on the standby (`fsync`).",
        (Moment.PREFLIGHT, Moment.EACH_SESSION, Moment.READS_ENDED),
        "set fsync = on on both servers",
        _durable,
    ),
)


def _decodes(context: LogStandbyContext) -> Iterable[Problem]:
    where = f"replica {context.name}"
    if context.log.info.server_version < _DECODE_SINCE:
        yield Problem(
            where,
            "this version of PostgreSQL has no logical replication slots on standbys; 16 and later have them",
            context.elsewhere,
        )
    # A server that decodes on demand stops when its own last slot is dropped.
    for connection, there in ((context.connection, "source_conn_id"), (context.log, where)):
        if (level := value(connection, "current_setting('wal_level')")) != "logical":
            yield Problem(
                there,
                f"wal_level is {level}, but slots on a standby need `logical` on the standby and on the source",
                f"set wal_level = logical on both servers, and restart them; or {context.elsewhere}",
            )
    if (found := value(context.log, "current_setting('hot_standby_feedback')")) != "on":
        yield Problem(
            where,
            f"hot_standby_feedback is {found}: when the source removes old rows of its catalog, the standby loses the "
            "run's slot",
            f"set hot_standby_feedback = on on the standby, and let it use a slot (primary_slot_name); "
            f"or {context.elsewhere}",
        )


def _room_for_log(context: LogStandbyContext) -> Iterable[Problem]:
    # While the slot is created, there is a temporary one. Later, there is a temporary one for each read of the log.
    for setting, needed in (("max_replication_slots", 2), ("max_wal_senders", 1)):
        limit, used = slots.room(context.log, setting, needed)
        if limit - used < needed:
            yield Problem(
                f"replica {context.name}",
                f"{setting} is {limit}, of which {used} are in use: a run needs {needed}",
                change_setting(platform(context.connection), setting, str(used + max(needed, 4)))
                + "; or drop unused slots",
            )


def _own_values(context: LogStandbyContext) -> Iterable[Problem]:
    for table in context.logged:
        if others := [column.name for column in table.as_read.columns if not _is_of_server(column)]:
            yield Problem(
                str(table.name),
                f"the log of {', '.join(others)} can be read only on the source: the values are printed by other code "
                "than the server's own, which may differ on the standby",
                "leave out the columns (`Table.columns`) or the table; or leave `Read.log_conn_id` empty",
            )


def _may_read_log(context: LogStandbyContext) -> Iterable[Problem]:
    return Privileges(context.log).server_problems(context.settings, publishing=False)


LOG_ON_STANDBY: tuple[Check[LogStandbyContext], ...] = (
    *STANDBYS,
    Check(
        "postgres.log-replica-decodes",
        "The standby from which the log is read can keep and decode it for a slot of its own.",
        (Moment.PREFLIGHT,),
        f"set wal_level = logical on both servers and hot_standby_feedback = on on the standby, or {LOG_ELSEWHERE}",
        _decodes,
    ),
    Check(
        "postgres.log-replica-room",
        "The standby from which the log is read has enough free replication slots and WAL senders for a run.",
        (Moment.PREFLIGHT,),
        "raise max_replication_slots and max_wal_senders on the standby, or drop unused slots",
        _room_for_log,
    ),
    Check(
        "postgres.log-replica-values",
        "The log of a table is read on a standby only if the server's own code prints all values.",
        (Moment.PREFLIGHT,),
        "leave out the columns or the tables, or leave `Read.log_conn_id` empty",
        _own_values,
    ),
    Check(
        "postgres.log-replica-privileges",
        "The user may create and read slots on the standby from which the log is read.",
        (Moment.PREFLIGHT,),
        "grant what the message says, and let pg_hba.conf of the standby accept the connections",
        _may_read_log,
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
        raised_by=(Raised(Moment.READS_ENDED, "sources.postgres.slots.standbys:StandbySession.confirm"),),
    ),
    Check(
        "postgres.read-replica-direct",
        "One process of one standby answers all statements of a session, and each read is made by this process.",
        (),
        f"connect to the standby directly, or {REMOVE}",
        raised_by=(Raised(Moment.EACH_SESSION, "sources.postgres.slots.standbys:StandbySession.check_backend"),),
    ),
)
LOG_OF_STANDBYS: tuple[Check[None], ...] = (
    Check(
        "postgres.log-replica-slot",
        "The slot on the standby has all transactions after the run's position: it was created earlier, and was "
        "advanced to this position.",
        (),
        "trigger a new run",
        raised_by=(Raised(Moment.POSITION_FIXED, "sources.postgres.slots.standbys:slot_on_standby"),),
    ),
    Check(
        "postgres.log-replica-history",
        "Before its log is read up to a position, a standby replays transactions that the run makes on the source "
        "after this position.",
        (),
        LOG_ELSEWHERE,
        raised_by=(Raised(Moment.LOG_READ, "sources.postgres.slots.standbys:StandbySession.wait_for_log"),),
    ),
    Check(
        "postgres.log-replica-present-only",
        "If the log is read from a standby, the run copies the present, and keeps no log for later runs.",
        (),
        "leave `Read.log_conn_id`, or `Refresh.standing_slot` and `as_of`, empty",
        raised_by=(Raised(Moment.PREFLIGHT, "sources.postgres.source.starts:_require_log_of_source"),),
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
