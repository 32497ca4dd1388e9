"""The identity of the server behind a session, and its settings that the log does not show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import (
    ConfigurationError,
    LockNotGranted,
    LogGone,
    PositionError,
    SourceReplaced,
)
from airflow_provider_cdc.sources.api.source import (
    HISTORY_LIST,
    MEASURE_SECONDS,
    REPLICA_LAG,
    THREADS_RUNNING,
    ConnectionSettings,
    one_number,
)
from airflow_provider_cdc.sources.mysql.server.commit_times import last_commits
from airflow_provider_cdc.sources.mysql.server.dialect import (
    RETENTION_HOURS,
    SIGNS_OF_SERVICES,
    Service,
    service_of,
)
from airflow_provider_cdc.sources.mysql.server.driver import LOCK_WAIT_TIMEOUT
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    log_files,
    log_status,
    mark_of,
    place_of_present,
    previous_gtids,
    unambiguous_end_of_log,
)
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    RunSettings,
    account,
    batches,
    query,
    session,
    set_session,
    size_of,
    value,
    variables,
)

# The log does not show these settings, and only a restart changes them. If a setting has the same value before and
# after a single restart, it had this value all the time.
_FIXED = ("innodb_native_foreign_keys", "log_replica_updates", "lower_case_table_names", "version")
# The log does not show the values of these settings. To detect whether a setting was changed during a run, compare the
# time at which the setting was last set.
WATCHED = ("binlog_error_action", "binlog_order_commits", "replica_preserve_commit_order")
# A run that begins now records a place in the log. So the reader of the log also finds later transactions without a
# GTID. A past position is looked up by GTIDs. So the reader may start after transactions without a GTID and miss them.
# To prevent such missed transactions, require that gtid_mode has not changed since the past position.
WATCHED_IN_THE_PAST = (*WATCHED, "gtid_mode")
_DURABLE = ("sync_binlog", "innodb_flush_log_at_trx_commit")
_STARTED = (
    "(SELECT CAST(UNIX_TIMESTAMP() - VARIABLE_VALUE AS SIGNED) FROM performance_schema.global_status "
    "WHERE VARIABLE_NAME = 'Uptime')"
)
CLOCK = "CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"
"""The server's clock, in microseconds since 1970. The server takes the times of commits from the same clock."""
_PRIVILEGE_MISSING = 1227


def durability_warnings(connection: Connection) -> list[str]:
    """Return a warning for each setting with which the server may lose committed transactions if its machine fails."""
    values = variables(connection, _DURABLE)
    return [
        f"{name} is {values.get(name, 'unknown')}: if the server's machine fails, transactions that were already "
        "visible may be lost; a run in progress then begins anew, and a copy that was just published may contain them"
        for name in _DURABLE
        if values.get(name) != "1"
    ]


def identity(settings: ConnectionSettings, connection: Connection) -> MysqlFacts:
    """Return the identity and the settings of the server, and the end of its log.

    Call this function before the initial position is fixed. Then a comparison finds every setting that is changed
    later.
    """
    found = state(connection)
    here = RunSettings.of(settings, found)
    return replace(found, begun=unambiguous_end_of_log(here, connection))


def with_mark(
    settings: ConnectionSettings,
    connection: Connection,
    facts: MysqlFacts,
    position: GtidSet,
    place: LogPlace | None = None,
) -> MysqlFacts:
    """Return ``facts`` with the mark of ``position`` (`LogMark`). The position must have been fixed after ``facts``
    were read.

    :param place: the place of the position in the log. None: the current end of the log.
    """
    here = RunSettings.of(settings, facts)
    if place is None:
        there = place_of_present(here, connection, facts.place)
    else:
        there, facts = place, replace(facts, begun=place)
    return replace(facts, mark=mark_of(here, there, last_commits(here, connection, position)))


def started(connection: Connection) -> str:
    """Return the start time of the server. If the time differs, the server was started again."""
    # Uptime is the number of whole seconds from the start of the server to the start of the statement. So the current
    # time minus Uptime is constant.
    return str(value(connection, _STARTED))


def state(connection: Connection, watched: Sequence[str] = WATCHED) -> MysqlFacts:
    """Return the server's current identity, its start time, and the settings that the log does not show.

    :param watched: the settings for which to return the time at which they were last set.
    """
    uuid, host, start = query(connection, f"SELECT @@global.server_uuid, @@global.hostname, {_STARTED}")[0]
    _, _, alone, ignored, *_ = log_status(connection)
    fixed = variables(connection, _FIXED) | {"binlog_do_db": alone, "binlog_ignore_db": ignored}
    return MysqlFacts(
        str(uuid), str(host), str(start), resets(connection), fixed=fixed, last_set=set_times(connection, watched)
    )


def resets(connection: Connection) -> str:
    """Return how often sessions executed RESET since the start of the server, such as a reset of the log."""
    ((_, count),) = query(connection, "SHOW GLOBAL STATUS LIKE 'Com_reset'")
    return str(count)


def check_log(connection: Connection, initial: GtidSet, recorded: GtidSet | None = None) -> None:
    """Check that the server has executed ``initial``, and still has the log of everything after ``initial``.

    :param recorded: transactions whose log the run has already recorded.
    :raises SourceReplaced: the server's history does not contain ``initial``.
    :raises LogGone: the log was purged past ``initial``, or gtid_purged was extended.
    """
    # Read gtid_purged before gtid_executed. If the server purges log between the two reads, the reader of the log
    # detects the missing log later.
    purged, executed = (
        GtidSet.parse(value(connection, f"@@global.{name}")) for name in ("gtid_purged", "gtid_executed")
    )
    if not initial <= executed:
        raise SourceReplaced(
            f"the server's history lacks {initial - executed}, which the run's initial position contains",
            where="gtid_executed",
            hint="point the connection back to the server on which the run began, or trigger a new run",
        )
    initial = initial | recorded if recorded else initial
    if not purged <= initial:
        # What was purged from the log precedes its first file. Anything else was set by hand.
        if extended := purged - initial - previous_gtids(connection, next(iter(log_files(connection)))):
            raise LogGone(
                f"gtid_purged was extended by {extended}. The log of this server never had these transactions, so the "
                "run cannot find their changes",
                where="gtid_purged",
                hint="trigger a new run; do not set gtid_purged (SET GLOBAL gtid_purged = '+…') during a run",
            )
        raise LogGone(
            f"the server purged the log of {purged - initial}, which the run still needs",
            where="gtid_purged",
            hint="trigger a new run, and raise binlog_expire_logs_seconds so that the server keeps the log until the "
            "run ends",
        )


def replica_status(connection: Connection) -> list[dict[str, Any]]:
    """Return the replication channels of the server, by the names of the columns. Empty: the server is no replica."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW REPLICA STATUS")
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


FILTER = "replication filter"
_FILTERS = ("replication_applier_filters", "replication_applier_global_filters")


def replication_filters(connection: Connection) -> list[tuple[str, str]] | None:
    """Return the replication filters: name and rule. None: this user may not see them, or the server shows them to no
    user (``performance_schema=OFF``)."""
    if not value(connection, "@@global.performance_schema"):
        return None
    columns = "FILTER_NAME, FILTER_RULE"
    try:
        rows = (query(connection, f"SELECT {columns} FROM performance_schema.{name}") for name in _FILTERS)
        return [(str(name), str(rule)) for found in rows for name, rule in found]
    except pymysql.OperationalError as error:
        if error.args[0] != _TABLE_ACCESS_DENIED:
            raise
        return None


def filter_grants(connection: Connection) -> str:
    """Return a hint: what shows the replication filters to this user."""
    if not value(connection, "@@global.performance_schema"):
        return "start the server with performance_schema=ON"
    return "; ".join(f"GRANT SELECT ON performance_schema.{name} TO {account(connection)}" for name in _FILTERS)


def _filters_set(connection: Connection) -> str:
    """Return the last time at which a session set a filter that the server has, as text."""
    sql = "SELECT COALESCE(CAST(MAX(ACTIVE_SINCE) AS CHAR), '') FROM performance_schema.{} WHERE CONFIGURED_BY LIKE %s"
    try:
        return max(str(query(connection, sql.format(name), ("CHANGE%",))[0][0]) for name in _FILTERS)
    except pymysql.OperationalError as error:
        if error.args[0] != _TABLE_ACCESS_DENIED:
            raise
        # Another check reports the missing privilege.
        return ""


_APPLIERS = "performance_schema.replication_applier_configuration"


def applies_statements(connection: Connection) -> bool | None:
    """Return whether an applier of the server also executes statements that the source logged instead of the rows.
    None: this user may not see this."""
    try:
        return any(found != "YES" for (found,) in query(connection, f"SELECT REQUIRE_ROW_FORMAT FROM {_APPLIERS}"))
    except pymysql.OperationalError as error:
        if error.args[0] != _TABLE_ACCESS_DENIED:
            raise
        return None


def applier_grant(connection: Connection) -> str:
    """Return a hint: what shows the settings of the appliers to this user."""
    return f"GRANT SELECT ON {_APPLIERS} TO {account(connection)}"


def is_replica(connection: Connection) -> bool | None:
    """Return whether the server is a replica. None: the user lacks the privilege to query this. Another check reports
    the missing privilege."""
    try:
        return bool(query(connection, "SHOW REPLICA STATUS"))
    except pymysql.OperationalError as error:
        if error.args[0] == _PRIVILEGE_MISSING:
            return None
        raise


def last_set(connection: Connection, names: Sequence[str] = WATCHED_IN_THE_PAST) -> dict[str, datetime | None]:
    """Return, for each of these settings, the time at which it was last set in the running server.

    None: the setting was not set since the server's start. Settings for which the server does not show the time are
    omitted.
    """
    return {
        name: datetime.fromisoformat(when).replace(tzinfo=UTC) if when else None
        for name, when in set_times(connection, names).items()
    }


def set_times(connection: Connection, names: Sequence[str] = WATCHED) -> dict[str, str]:
    """Return the time at which each setting was last set in the running server, as text. Empty: it was not set.

    `FILTER` is the name for all replication filters.
    """
    marks = ", ".join(["%s"] * len(names))
    rows = query(
        connection,
        "SELECT VARIABLE_NAME, COALESCE(CAST(SET_TIME AS CHAR), '') FROM performance_schema.variables_info "
        f"WHERE VARIABLE_NAME IN ({marks})",
        names,
    )
    return dict(rows) | ({FILTER: _filters_set(connection)} if FILTER in names else {})


# Managed services: how they differ from a self-managed server. `dialect` describes them.


_NO_TABLE, _DENIED = 1146, (1142, 1143, 1044)


def service(connection: Connection) -> Service:
    """Return the service that runs the server."""
    return service_of(connection.greeted_version, variables(connection, SIGNS_OF_SERVICES))


def retention_hours(connection: Connection) -> int | None:
    """Return the number of hours for which Amazon keeps the log. This setting of Amazon does not depend on
    binlog_expire_logs_seconds.

    0: the setting has no value. None: the user may not read the setting.
    """
    try:
        rows = query(connection, f"SELECT value FROM mysql.rds_configuration WHERE name = '{RETENTION_HOURS}'")
    except pymysql.MySQLError as error:
        if error.args[0] in (_NO_TABLE, *_DENIED):
            return None
        raise
    return int(rows[0][0] or 0) if rows else 0


def kept_seconds(connection: Connection, host: Service) -> int | None:
    """Return the number of seconds for which a service keeps the log. 0: `Service.keep` has no value.

    None: without a limit, or the user may not read the setting.
    """
    if host.keep == RETENTION_HOURS:
        hours = retention_hours(connection)
        return None if hours is None else hours * 3600
    values = variables(connection, ["binlog_expire_logs_auto_purge", host.keep])
    if values.get("binlog_expire_logs_auto_purge", "ON") != "ON":
        return None
    return int(values.get(host.keep, "0")) or None


# Measures the load of a MySQL server.


def load(settings: ConnectionSettings, signals: Sequence[str]) -> dict[str, float]:
    """`Source.load`."""
    numbers = {}
    if REPLICA_LAG in signals and settings.replicas:
        # The run reads on these servers, so their lag matters.
        numbers[REPLICA_LAG] = max(load(replica, [REPLICA_LAG])[REPLICA_LAG] for replica in settings.replicas)
    with session(settings) as connection:
        set_session(connection, {"transaction_read_only": "ON", "max_execution_time": str(MEASURE_SECONDS * 1000)})
        for signal in (name for name in signals if name not in numbers):
            try:
                numbers[signal] = _SIGNALS[signal](connection) if signal in _SIGNALS else _of_query(connection, signal)
            except (pymysql.ProgrammingError, pymysql.OperationalError, pymysql.InternalError) as error:
                if not connection.open:
                    raise
                raise ConfigurationError(
                    f"cannot be measured: {error.args[-1]}",
                    where=f"parameter governor (Limits.governor), {signal}",
                    hint="correct the query, or grant the privilege to the user of the connection",
                ) from error
    return numbers


def _threads_running(connection: Connection) -> float:
    return float(query(connection, "SHOW GLOBAL STATUS LIKE 'Threads_running'")[0][1])


def _history_list_length(connection: Connection) -> float:
    sql = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
    return one_number(HISTORY_LIST, query(connection, sql))


def _replica_lag(connection: Connection) -> float:
    rows = replica_status(connection)
    if not rows:
        raise ConfigurationError(
            "the server is not a replica, and a primary does not know the lag of its replicas",
            where=f"parameter governor (Limits.governor), {REPLICA_LAG}",
            hint="give a query that returns the lag, such as one of a heartbeat table, as the key, or read the tables "
            "on replicas (`Read.read_conn_ids`)",
        )
    lags = [row["Seconds_Behind_Source"] for row in rows]
    # NULL: the replication is not running, so the lag grows.
    return float("inf") if None in lags else max(float(lag) for lag in lags)


def _of_query(connection: Connection, signal: str) -> float:
    return one_number(signal, query(connection, signal))


_SIGNALS: Mapping[str, Callable[[Connection], float]] = {
    THREADS_RUNNING: _threads_running,
    HISTORY_LIST: _history_list_length,
    REPLICA_LAG: _replica_lag,
}
SIGNALS = frozenset(_SIGNALS)


# Limits the time for which a session waits for table locks of other sessions, and names the sessions that hold these
# locks.


SECONDS = 10
_TABLE_ACCESS_DENIED = 1142

# The query includes pending locks. The server grants locks in the order of the requests, so a pending lock blocks
# readers, too. The query includes all tables of the schemas, because the locked table may be a table to which a copied
# table refers.
_HOLDERS = """
SELECT OBJECT_SCHEMA, OBJECT_NAME, LOCK_STATUS, LOCK_TYPE, PROCESSLIST_ID, PROCESSLIST_USER, PROCESSLIST_HOST,
    PROCESSLIST_TIME
FROM performance_schema.metadata_locks JOIN performance_schema.threads ON THREAD_ID = OWNER_THREAD_ID
WHERE OBJECT_TYPE = 'TABLE' AND LOCK_TYPE IN ('SHARED_NO_READ_WRITE', 'EXCLUSIVE')
    AND PROCESSLIST_ID <> CONNECTION_ID() AND OBJECT_SCHEMA IN ({})
ORDER BY LOCK_STATUS <> 'GRANTED', OBJECT_SCHEMA, OBJECT_NAME, PROCESSLIST_ID LIMIT 20
"""


@contextmanager
def naming_blockers(settings: ConnectionSettings, connection: Connection) -> Iterator[list[TableName]]:
    """Let the session wait for a table lock for at most `SECONDS`.

    Yields a list. The caller adds each table to the list before it runs a statement on the table.

    :raises LockNotGranted: one of the tables was locked for a longer time. The message names the sessions that hold the
        lock.
    """
    tables: list[TableName] = []
    set_session(connection, {"lock_wait_timeout": str(SECONDS)})
    try:
        yield tables
    except pymysql.OperationalError as error:
        if error.args[0] != LOCK_WAIT_TIMEOUT:
            raise
        holders = _holders(connection, tables)
        raise LockNotGranted(
            f"a lock blocked readers for {SECONDS} s: {'; '.join(holders) or 'the sessions are unknown'}",
            where=", ".join(map(str, tables)) or settings.address,
            hint="wait until the other session ends, or end it (KILL); the task can be retried. To see the other "
            f"session, this user needs: GRANT SELECT ON performance_schema.* TO {account(connection)}",
        ) from error


def _holders(connection: Connection, tables: Sequence[TableName]) -> list[str]:
    if not tables:
        return []
    schemas = sorted({table.schema for table in tables})
    try:
        rows = [
            row
            for some in batches(connection, schemas, lambda schema: size_of([schema]), len(schemas))
            for row in query(connection, _HOLDERS.format(", ".join(["%s"] * len(some))), some)
        ]
    except pymysql.OperationalError as error:
        if error.args[0] != _TABLE_ACCESS_DENIED:
            raise
        return []
    return [
        f"session {session} of {user}@{host} {'holds' if status == 'GRANTED' else 'waits for'} the lock {kind} on "
        f"{schema}.{table}, for {seconds} s"
        for schema, table, status, kind, session, user, host, seconds in rows
    ]


def executed(connection: Connection) -> GtidSet:
    """Return the set of transactions that the server has committed and made visible."""
    return GtidSet.parse(value(connection, "@@global.gtid_executed"))


def shown(connection: Connection) -> GtidSet:
    """Return a set with every transaction that a finished read on this server may have seen.

    A visible transaction may still be missing from ``@@gtid_executed``. In that case it is in ``@@gtid_owned``, so
    ``@@gtid_owned`` is read first.
    """
    owned = parse_owned(value(connection, "@@global.gtid_owned"))
    return executed(connection) | owned


_BEFORE_UUID = re.compile(r"(?=[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", re.IGNORECASE)
_OWNERS = re.compile(r"(?:#[0-9]+)+")


def parse_owned(text: str) -> GtidSet:
    """Parse a value of ``@@global.gtid_owned``: ``uuid:gno#thread`` and ``uuid:tag:gno#thread:gno#thread``.

    The server separates the sets of different UUIDs by a comma. MySQL 9 does not separate them: a UUID directly follows
    the digits of a thread.

    :raises PositionError: the text does not have this form.
    """
    before, *sets = _BEFORE_UUID.split(text)
    if before.strip():
        raise PositionError(f"not a value of gtid_owned: {text!r}", where="gtid_owned", hint="report it")
    return GtidSet.parse(",".join(_OWNERS.sub("", item).strip(", \n") for item in sets))
