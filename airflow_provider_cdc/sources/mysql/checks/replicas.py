"""Checks of a replica on which a run reads tables (`ConnectionSettings.replicas`).

A read on a replica is as good as a read on the source if the replica shows only what the source's log has, and all of
the run's position (docs/design/replicas.md). The position is waited for, and the source is asked for all that the
replica may have shown, by the read itself (`steps.replica_reads`).

A name may lead to several replicas, and anything may happen to a replica after ``preflight``. So every condition on
which exactness depends is checked in each session, and again after its reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from itertools import product
from typing import Any, TypeVar

import pymysql

from airflow_provider_cdc.core.checks import Check, Moment, Raised
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import Problem, SourceReplaced, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.context import ServerContext
from airflow_provider_cdc.sources.mysql.checks.replica_tables import differences_of_tables
from airflow_provider_cdc.sources.mysql.server import commit_times
from airflow_provider_cdc.sources.mysql.server.commit_times import last_transactions
from airflow_provider_cdc.sources.mysql.server.dialect import AURORA, RDS, XA_VISIBLE_WHEN_EXECUTED
from airflow_provider_cdc.sources.mysql.server.log_history import log_files, unclosed
from airflow_provider_cdc.sources.mysql.server.server import (
    FILTER,
    applier_grant,
    applies_statements,
    executed,
    filter_grants,
    replica_status,
    replication_filters,
    resets,
    set_times,
    shown,
)
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    RunSettings,
    is_server_itself,
    query,
    server_version,
    value,
    variables,
)

T = TypeVar("T")

_EACH = (Moment.PREFLIGHT, Moment.EACH_SESSION, Moment.READS_ENDED)
_CHECK_TABLE = "sources.mysql.steps.replica_reads:ReplicaSession.check_table"
_OTHER = "name a replica that replicates directly from the source"
_ONLY_ROWS = (
    "STOP REPLICA; CHANGE REPLICATION SOURCE TO REQUIRE_ROW_FORMAT = 1; START REPLICA. If the service does not let you "
    "do this, leave `Read.log_conn_id` empty"
)
_REBUILD = "build the replica anew from the source, or read no more from it"

_RULES = {
    "performance_schema": ("ON", "it does not show whether it has replication filters"),
    "gtid_mode": ("ON", "its transactions have no GTIDs, so what it shows is unknown"),
    "log_bin": ("ON", "without a log, it cannot show that its transactions are those of the source"),
    "log_replica_updates": ("ON", "without them in its log, it cannot show that its transactions are the source's"),
    "innodb_force_recovery": ("0", "damaged pages are skipped, and rows of uncommitted transactions may be visible"),
    "replica_skip_errors": ("OFF", "it skips changes that it cannot apply"),
    "replica_exec_mode": ("STRICT", "it skips changes that it cannot apply"),
    "replica_type_conversions": ("", "it may change values that do not fit into its columns"),
}
_READ_ONLY = ("super_read_only", "read_only")
WATCHED = (*_RULES, *_READ_ONLY, "slave_exec_mode", "slave_type_conversions", "gtid_purged", FILTER)
"""Settings that must not be set while tables are read, not even to the same value."""
_RESETS = "RESET"
_ZONE = """
WITH RECURSIVE days (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM days WHERE n < 960)
SELECT n, CAST(CONVERT_TZ('1970-01-02 00:00:00' + INTERVAL 25 * n DAY, '+00:00', 'SYSTEM') AS CHAR) FROM days ORDER BY n
"""
"""The local times of 961 moments until 2035. The name of a zone does not suffice: several zones are called CST, and one
zone has another name in summer."""
_NO_SCHEMA = 1049
_ATTEMPTS = 50
_DURABLE = ("sync_binlog", "innodb_flush_log_at_trx_commit")
_FLUSHES = "innodb_flush_log_at_trx_commit"
_NEWEST_FILES = 20
_SYSTEM = re.compile(r"(?:mysql|sys|innodb_memcache)\.[^,.]+(?:,(?:mysql|sys|innodb_memcache)\.[^,.]+)*")
_IGNORING = ("REPLICATE_IGNORE_TABLE", "REPLICATE_WILD_IGNORE_TABLE")


@dataclass(kw_only=True)
class ReplicaContext(ServerContext):
    """A replica, with a session of its source.

    :param name: the replica in messages.
    :param settings: the settings of the replica.
    :param primary: a session of the source.
    :param primary_settings: the settings of the source.
    :param position: transactions that the run needs.
    :param tables: tables that are read on the replica.
    :param compared: transactions that were already compared with those of the source.
    :param searched: transactions that were already looked up in the log of the replica.
    :param before: the `interventions` before the reads. None: nothing was read yet.
    :param is_log_server: whether the log is read from the replica, and not rows.
    :param commits: the commit times of the last transactions in ``position``, as far as they are known
        (`LogMark.commits`).
    """

    name: str
    settings: ConnectionSettings
    primary: Connection
    primary_settings: ConnectionSettings
    position: GtidSet
    tables: Sequence[Table] = ()
    compared: GtidSet = field(default_factory=GtidSet)
    searched: GtidSet = field(default_factory=GtidSet)
    before: Mapping[str, str] | None = None
    is_log_server: bool = False
    commits: str = ""

    @cached_property
    def server_uuid(self) -> str:
        return str(value(self.connection, "@@global.server_uuid"))

    @cached_property
    def here(self) -> RunSettings:
        """Settings with which a session accepts only this replica."""
        plain = {each.name: getattr(self.settings, each.name) for each in fields(ConnectionSettings)}
        return RunSettings(**plain, server_uuid=self.server_uuid)

    @cached_property
    def source(self) -> str:
        return str(value(self.primary, "@@global.server_uuid"))

    @cached_property
    def channels(self) -> list[dict[str, Any]]:
        return replica_status(self.connection)

    @cached_property
    def shown(self) -> GtidSet:
        """A set with every transaction that the reads on the replica may have seen, if they have ended."""
        return shown(self.connection)

    @cached_property
    def unreadable(self) -> list[Problem]:
        """The problems of this user's privileges, and of tables that the replica cannot read."""
        problems = self.privileges.server_problems()
        for table in self.tables:
            try:
                problem = self.privileges.read_problem(table.name)
            except pymysql.OperationalError as error:
                if error.args[0] != _NO_SCHEMA:
                    raise
                problem = Problem(str(table.name), "its schema does not exist there", _REBUILD)
            problems += [problem] if problem is not None else []
        return [Problem(f"replica {self.name}, {one.where}", one.what, one.hint) for one in problems]

    def problem(self, what: str, hint: str) -> Problem:
        return Problem(f"replica {self.name}", what, hint)


def _replicates(context: ReplicaContext) -> Iterable[Problem]:
    if not is_server_itself(context.connection):
        yield context.problem("a proxy answers instead of the server", "connect to the replica directly")
    elif context.server_uuid == context.source:
        yield context.problem(f"is the source itself (server_uuid {context.source})", _OTHER)
    elif not context.channels:
        yield context.problem("is not a replica: it replicates from no server", _OTHER)
    elif len(context.channels) > 1:
        yield context.problem(f"replicates from {len(context.channels)} servers", _OTHER)
    elif not (found := str(context.channels[0]["Source_UUID"])):
        raise SourceUnavailable(
            "the replica has not connected to its source since it was started",
            where=context.name,
            hint="START REPLICA, and retry the task",
        )
    elif found != context.source:
        yield context.problem(f"replicates from server {found}, not from the source ({context.source})", _OTHER)


def _running(context: ReplicaContext) -> Iterable[Problem]:
    for channel, thread in product(context.channels, ("IO", "SQL")):
        if channel[f"Replica_{thread}_Running"] == "No":
            error = str(channel[f"Last_{thread}_Error"])
            yield context.problem(
                f"its {thread} thread is stopped" + (f": {error[:300]}" if error else ""),
                "START REPLICA, or read no more from the replica",
            )


def _failed(context: ReplicaContext) -> Iterable[Problem]:
    # An applier that was merely stopped has rows of the source.
    for error in (str(channel["Last_SQL_Error"]) for channel in context.channels):
        if error:
            yield context.problem(f"it cannot apply a change, so its rows may be others: {error[:300]}", _REBUILD)


def _settings(context: ReplicaContext) -> Iterable[Problem]:
    values = context.variables(list(_RULES))
    for name, (allowed, why) in _RULES.items():
        if (found := values.get(name, "unknown")) != allowed:
            yield context.problem(f"{name} is {found}: {why}", f"set {name} = {allowed or repr('')}")
    if context.before is not None:
        now = interventions(context.connection)
        for name in sorted(now.keys() | context.before.keys()):
            if now.get(name) != context.before.get(name):
                what = "was executed" if name == _RESETS else "was set"
                yield context.problem(f"{name} {what} while tables were read", "leave it as it is, and retry the task")


def interventions(connection: Connection) -> dict[str, str]:
    """Return what shows that settings were set, or that the log was reset, between two calls: the times of the settings
    (`set_times`), and how often sessions executed RESET."""
    return set_times(connection, WATCHED) | {_RESETS: resets(connection)}


def _read_only(context: ReplicaContext) -> Iterable[Problem]:
    # Users of Amazon RDS cannot write if read_only is set, and cannot set super_read_only.
    name = _READ_ONLY[context.service in (RDS, AURORA)]
    if (found := context.variables(_READ_ONLY).get(name, "unknown")) != "ON":
        yield context.problem(
            f"{name} is {found}, so sessions may write on it", f"SET PERSIST {name} = ON on the replica"
        )


def _filters(context: ReplicaContext) -> Iterable[Problem]:
    filters = replication_filters(context.connection)
    if filters is None:
        yield context.problem("this user may not see whether it leaves out changes", filter_grants(context.connection))
    for name, rule in filters or ():
        # Managed services leave out their own tables.
        if name not in _IGNORING or not _SYSTEM.fullmatch(rule):
            yield context.problem(
                f"it leaves out changes: replication filter {name} ({rule})",
                "remove the filter and build the replica anew, or read no more from it",
            )


def _only_rows(context: ReplicaContext) -> Iterable[Problem]:
    # What a statement changes here may not be what it changed on the source, and the log of the replica has rows.
    if not context.is_log_server:
        return
    executes = applies_statements(context.connection)
    if executes is None:
        what = "this user may not see whether it executes statements of the source (REQUIRE_ROW_FORMAT)"
        yield context.problem(what, applier_grant(context.connection))
    elif executes:
        yield context.problem(
            "it executes statements that a session of the source logs instead of the rows (SET binlog_format), so its "
            "log may have other rows than the source",
            _ONLY_ROWS,
        )


def _own_writes(context: ReplicaContext) -> Iterable[Problem]:
    # An empty transaction with the same GTID on the source hides such a write from all comparisons.
    own = {uuid for uuid, _, _ in GtidSet.parse(f"{context.server_uuid}:1").items()}
    found = [uuid for uuid, _, _ in context.shown.items() if uuid in own]
    if context.server_uuid != context.source and found:
        yield context.problem(
            f"it has transactions of its own ({context.server_uuid}): someone wrote on it, or it was the source "
            "before, so its rows may differ from the source's",
            f"{_REBUILD}; set super_read_only = ON, and use sql_log_bin = 0 for maintenance that changes no rows",
        )


REPLICAS: tuple[Check[ReplicaContext], ...] = (
    Check(
        "mysql.read-replica",
        "A server that is read replicates from the source, directly and from no other server.",
        _EACH,
        _OTHER,
        _replicates,
    ),
    Check(
        "mysql.read-replica-settings",
        "A replica that is read applies every change, and keeps it in its log.",
        _EACH,
        "correct the setting, or read no more from the replica",
        _settings,
    ),
    Check(
        "mysql.read-replica-filters",
        "A replica that is read leaves out no changes (replication filters).",
        _EACH,
        "remove the filter and build the replica anew",
        _filters,
    ),
    Check(
        "mysql.log-replica-rows",
        "A replica whose log is read executes no statement that the source logged instead of the rows "
        "(`REQUIRE_ROW_FORMAT`).",
        _EACH,
        _ONLY_ROWS,
        _only_rows,
    ),
    Check(
        "mysql.read-replica-read-only",
        "Sessions cannot write on a replica that is read.",
        _EACH,
        "SET PERSIST super_read_only = ON on the replica",
        _read_only,
    ),
    Check(
        "mysql.read-replica-writes",
        "No session ever wrote on a replica that is read, since it was built.",
        _EACH,
        _REBUILD,
        _own_writes,
    ),
    Check(
        "mysql.read-replica-runs",
        "The replication to a replica that is read works.",
        (Moment.PREFLIGHT,),
        "START REPLICA, or read no more from the replica",
        _running,
    ),
    Check(
        "mysql.read-replica-failed",
        "A replica that is read could apply every change so far.",
        (Moment.EACH_SESSION, Moment.READS_ENDED),
        _REBUILD,
        _failed,
    ),
)
"""The checks that need only a session of the replica. They are made before a read waits for the run's position."""


def _privileges(context: ReplicaContext) -> Iterable[Problem]:
    return context.unreadable


def _transactions(context: ReplicaContext) -> Iterable[Problem]:
    # What the replica shows was in the log of the source before.
    if errant := context.shown - shown(context.primary):
        yield context.problem(errant_transactions(errant), _REBUILD)


def errant_transactions(errant: GtidSet) -> str:
    return f"it has {format_count(len(errant), 'transaction')} that the source lacks: {str(errant)[:200]}"


def _same_history(context: ReplicaContext) -> Iterable[Problem]:
    if context.unreadable:
        return
    # The replica may lag behind, so compare the last transactions that it has.
    common = executed(context.connection) & executed(context.primary)
    positions = common, context.position & common
    last = last_transactions(*positions)
    if context.compared and last <= context.compared:
        return
    # A run has recorded the commit times of its position, and the source may have purged these transactions.
    found = _differences(context, context.commits)
    if all(one is None for one in found):
        source, without = context.primary, context.compared
        found = _differences(
            context, commit_times.last_commits(context.primary_settings, source, *positions, without=without)
        )
    if others := "; ".join(filter(None, found)):
        yield context.problem(f"it has another history than the source: {others}", _REBUILD)
    elif any(one is not None for one in found):
        context.compared |= last
    elif context.commits and not context.position <= common:
        # It is compared again when it has the position of the run.
        return
    elif any(tag for _, tag, _ in common.items()):
        yield context.problem(
            "transactions with tags (gtid_next = AUTOMATIC:tag) are in the log of the source, and cannot be compared",
            "leave `Read.read_conn_ids` and `Read.log_conn_id` empty until these transactions are purged from the log, "
            "or set no tags",
        )
    else:
        yield context.problem(
            "the logs of both servers have none of the last transactions in common, so it is unknown whether it has "
            "the history of the source",
            "commit a transaction on the source, wait until the replica has it, and retry the task",
        )


def _differences(context: ReplicaContext, commits: str) -> list[str | None]:
    return [
        _of_log(partial(commit_times.difference, context.here, context.connection, one), context)
        for one in commits.split(",")
        if one
    ]


def _written_there(context: ReplicaContext) -> Iterable[Problem]:
    if context.unreadable:
        return
    has = executed(context.connection)
    search = partial(commit_times.committed_by_sessions, context.here, context.connection, context.searched)
    found = _of_log(search, context)
    if found:
        yield context.problem(
            f"sessions on it committed {format_count(len(found), 'transaction')} with GTIDs of other servers "
            f"({', '.join(found[:3])}), so it may lack the changes of these transactions",
            _REBUILD,
        )
    context.searched |= has


def _lost(context: ReplicaContext) -> Iterable[Problem]:
    names = _DURABLE if context.is_log_server else (_FLUSHES,)
    values = context.variables(names)
    wrong = ", ".join(f"{name} is {values.get(name, 'unknown')}" for name in names if values.get(name) != "1")
    # A crash ends all sessions, so a session looks only once.
    if context.searched or context.unreadable or not wrong:
        return
    files = dict([*log_files(context.connection).items()][-_NEWEST_FILES:])
    file = _of_log(partial(unclosed, context.here, files), context)
    # A file that was purged meanwhile looks like an unclosed one.
    if file in log_files(context.connection):
        yield context.problem(
            f"it crashed while it wrote the log file {file}, and {wrong}, so it may lack changes of transactions that "
            "it lists as executed",
            f"{_REBUILD}; set {' and '.join(f'{name} = 1' for name in names)}",
        )


def _of_log(read: Callable[[], T], context: ReplicaContext) -> T:
    # The log is read in another session, which may reach another server if the name leads to several.
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return read()
        except SourceReplaced as error:
            if attempt == _ATTEMPTS:
                raise SourceUnavailable(
                    f"{_ATTEMPTS} sessions in turn reached other servers than {context.server_uuid}",
                    where=context.name,
                    hint="let the connection name one replica",
                ) from error
    raise AssertionError(_ATTEMPTS)


def _definitions(context: ReplicaContext) -> Iterable[Problem]:
    if context.unreadable:
        return
    has_all = executed(context.connection)
    differences = differences_of_tables(context.primary, context.connection, [one.name for one in context.tables])
    # A replica that lags behind may lack a change. Each read compares the definitions again.
    if differences and shown(context.primary) <= has_all:
        for name, what in differences.items():
            yield Problem(f"replica {context.name}, {name}", f"differs from the source: {what}", _REBUILD)


def _names(context: ReplicaContext) -> Iterable[Problem]:
    setting = "lower_case_table_names"
    here, there = (variables(one, [setting]).get(setting) for one in (context.connection, context.primary))
    if here != there:
        yield context.problem(f"{setting} is {here}, and {there} on the source", _OTHER)


def _version(context: ReplicaContext) -> Iterable[Problem]:
    here, there = context.connection.greeted_version, context.primary.greeted_version
    if server_version(context.connection) != server_version(context.primary):
        yield context.problem(
            f"its version is {here}, and {there} on the source: it may compute other values when it executes DDL",
            "upgrade the older server, and read no more from the replica until then",
        )
    elif not XA_VISIBLE_WHEN_EXECUTED.known_to(server_version(context.connection)):
        needed = XA_VISIBLE_WHEN_EXECUTED.versions
        yield context.problem(f"its version is {here}, but MySQL {needed} is required", "upgrade both servers")


def _time_zone(context: ReplicaContext) -> Iterable[Problem]:
    here, there = (query(one, _ZONE) for one in (context.connection, context.primary))
    if here != there:
        names = [value(one, "@@global.system_time_zone") for one in (context.connection, context.primary)]
        yield context.problem(
            f"the time zone of its system ({names[0]}) is not that of the source ({names[1]}): statements of sessions "
            "with time_zone = SYSTEM give other values there",
            "start the server in the time zone of the source, and build the replica anew",
        )


def _durable(context: ReplicaContext) -> Iterable[Problem]:
    values = variables(context.primary, _DURABLE)
    if wrong := [f"{name} is {values.get(name, 'unknown')}" for name in _DURABLE if values.get(name) != "1"]:
        yield Problem(
            "source_conn_id",
            f"{', '.join(wrong)}: after a crash, the source may lack transactions that the replica {context.name} has, "
            "and give their GTIDs to other transactions",
            "set both to 1 on the source, or leave `Read.read_conn_ids` and `Read.log_conn_id` empty",
        )


SKIPPED: Check[ReplicaContext] = Check(
    "mysql.read-replica-skipped",
    "No session committed a transaction of another server on a replica that is read, as far as the newest part of its "
    "log and its log since the reads began tell.",
    _EACH,
    _REBUILD,
    _written_there,
    (Raised(Moment.LOG_READ, "sources.mysql.log.refusals:written_on_replica"),),
)
COMPARED: tuple[Check[ReplicaContext], ...] = (
    Check(
        "mysql.read-replica-privileges",
        "The user may read the tables and the log on a replica that is read.",
        _EACH,
        "grant the user on the replica what it has on the source",
        _privileges,
    ),
    Check(
        "mysql.read-replica-crashed",
        "A replica that is read did not crash while it might lose changes (in its 20 newest log files).",
        (Moment.PREFLIGHT, Moment.EACH_SESSION),
        _REBUILD,
        _lost,
    ),
    Check(
        "mysql.read-replica-durable",
        "A crash of the source takes back no transaction that a replica may have shown.",
        _EACH,
        "set sync_binlog = 1 and innodb_flush_log_at_trx_commit = 1 on the source",
        _durable,
    ),
    Check(
        "mysql.read-replica-transactions",
        "The source has every transaction that a replica may have shown.",
        _EACH,
        _REBUILD,
        _transactions,
    ),
    Check(
        "mysql.read-replica-history",
        "The last transactions of each server that the replica has, and those of the position, are those of the "
        "source.",
        _EACH,
        _REBUILD,
        _same_history,
    ),
    SKIPPED,
    Check(
        "mysql.read-replica-tables",
        "A table that is read on a replica has the same definition as on the source.",
        (Moment.PREFLIGHT,),
        _REBUILD,
        _definitions,
        (Raised(Moment.EACH_SESSION, _CHECK_TABLE), Raised(Moment.READS_ENDED, _CHECK_TABLE)),
    ),
    Check(
        "mysql.read-replica-names",
        "The names of tables mean the same on a replica that is read (`lower_case_table_names`).",
        _EACH,
        _OTHER,
        _names,
    ),
    Check(
        "mysql.read-replica-version",
        "A replica that is read has the version of the source.",
        _EACH,
        "upgrade the older server",
        _version,
    ),
    Check(
        "mysql.read-replica-time-zone",
        "The system of a replica that is read has the time zone of the source's system.",
        _EACH,
        "start the server in the time zone of the source, and build the replica anew",
        _time_zone,
    ),
)
"""The checks that compare a replica with its source. They need a replica that passes the checks in `REPLICAS`."""
