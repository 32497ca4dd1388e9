"""Decides whether a server may continue what rests on a position of another server.

After a failover, a switch or an upgrade by blue/green, the connection leads to another server, with another
``server_uuid``. Files and offsets of one server mean nothing on another one. But a GTID set does, if the new server
went through this state: all of its transactions, and no others, are a prefix of the new server's log. Then the rows at
this position were the same on both servers, and the new server's log has all changes since. So the copy can be rolled
forward as if it had been made on the new server, at a past position (`steps.past`).

If the old server's last transactions were lost, the position is not in the new server's history. If the new server had
transactions of its own before it took over (errant transactions), they are in its log before transactions of the
position, or purged, and no prefix of the log is the position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_cdc.core.options.run import FULL, StepOptions
from airflow_provider_cdc.core.positions.facts import Finding, HistoryRelation, Trace
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import KNOWN_AT_POSITION, Table, TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import ExactnessError, LogGone, PositionError, SchemaChanged, SourceReplaced
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.checks.past import Past
from airflow_provider_cdc.sources.mysql.log.replaced import made_since, replaced_since
from airflow_provider_cdc.sources.mysql.server import commit_times, log_history
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import LogMark, LogPlace, mark_of
from airflow_provider_cdc.sources.mysql.server.privileges import Privileges
from airflow_provider_cdc.sources.mysql.server.replication import log_session
from airflow_provider_cdc.sources.mysql.server.server import executed, filter_grants, replication_filters, state
from airflow_provider_cdc.sources.mysql.server.session import Connection, RunSettings, session, value
from airflow_provider_cdc.sources.mysql.steps.log_server import continued_log as continued_log
from airflow_provider_cdc.sources.mysql.steps.positions import since_position
from airflow_provider_cdc.sources.mysql.tables.cascades import with_parents

_FAILS = "a run in progress fails"
_ANEW = "read the tables in full: set `refresh` to `auto` or `full`"


class Takeover:
    """A server that continues what rests on a position of another server.

    :param facts: the facts of this server at the position.
    """

    def __init__(self, settings: ConnectionSettings, facts: MysqlFacts, past: Past) -> None:
        self.facts = facts
        self._settings = settings
        self._past = past

    def replaced(self, connection: Connection, tables: Sequence[Table]) -> dict[TableName, str]:
        """Return the tables that a statement outside the log may have replaced since the position, with the reason.

        The identities of tables that were recorded on the other server cannot be compared. Statements count from the
        last commit of the position on, not only from the next commit on (`Past.until`): they changed rows of this
        server only.
        """
        copied = list({one.name: one for table in tables for one in (*table.cascades_from, table)}.values())
        place = self._past.prefix.place
        found = made_since(self._settings, connection, place, copied, self._past.moment)
        return {name: why for name, (why, _) in found.items()}


def take_over(
    settings: ConnectionSettings, connection: Connection, facts: MysqlFacts, position: GtidSet
) -> Takeover | None:
    """Return how the connected server continues what rests on ``position``. None: it is the server of ``facts``.

    :raises SourceReplaced: the position is not in the server's history.
    :raises LogGone: the server no longer has the log that shows this, or the log since the position.
    :raises ExactnessError: settings that the log does not show were changed since the position, or are wrong.
    """
    # Read the state first. Then a later comparison finds settings that are changed from now on.
    here = state(connection)
    if here.server_uuid == facts.server_uuid:
        return None
    found = f"server {facts.server_uuid} was replaced by {here.server_uuid} ({here.hostname})"
    own = RunSettings.of(settings, here)
    relation = _relation(own, connection, position, facts.mark)
    if relation.relation is HistoryRelation.OTHER:
        raise SourceReplaced(f"{found}: {relation.why}", where=settings.address, hint=_ANEW)
    if relation.relation is HistoryRelation.UNKNOWN:
        raise LogGone(f"{found}: {relation.why}", where=settings.address, hint=_ANEW)
    try:
        past, problems = since_position(own, connection, position)
    except SourceReplaced as error:
        raise SourceReplaced(
            f"{found}, and has transactions of its own among those of the position: {error.message}",
            where=settings.address,
            hint=f"{_ANEW}; do not write on a replica before it takes over",
        ) from error
    if problems:
        what = "; ".join(f"{problem.where} {problem.what}" for problem in problems)
        raise ExactnessError(f"{found}, and since the position: {what}", where=settings.address, hint=_ANEW)
    _check_filters(settings, connection, found)
    place = past.prefix.place
    commits = LogMark.parse(facts.mark).commits
    return Takeover(own, replace(here, begun=place, mark=mark_of(own, place, commits)), past)


def replaced_on(
    taken: Takeover | None,
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    until: LogPlace | None,
) -> dict[TableName, str]:
    """Return the tables that a statement outside the log replaced, or may have replaced, since ``begin``.

    :param taken, until: the result of `take_over`, and as for `replaced_since`.
    """
    if taken is not None:
        return taken.replaced(connection, tables)
    return replaced_since(settings, connection, begin, tables, until=until)


def continued(
    settings: ConnectionSettings, facts: MysqlFacts, position: GtidSet, tables: Sequence[Table]
) -> MysqlFacts:
    """Implements `Starts.take_over`."""
    with session(settings) as connection:
        taken = take_over(settings, connection, facts, position)
        for name, why in (taken.replaced(connection, tables) if taken is not None else {}).items():
            raise SchemaChanged(why, where=str(name), hint=_ANEW)
        return continued_log(settings, connection, facts if taken is None else taken.facts, position)


def as_here(connection: Connection, tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return tables of another server without the facts that were known about them there, and with the parents whose
    changes are not logged here: this server may have other foreign keys, or log less of what they change."""
    unknown = [replace(table, details={**table.details, KNOWN_AT_POSITION: []}) for table in tables]
    return with_parents(connection, Privileges(connection), unknown)[0]


def relations(settings: RunSettings, connection: Connection, traces: Sequence[Trace]) -> list[Finding]:
    """Implements `Source.relations` for the server of ``connection``."""
    found = []
    for trace in traces:
        if trace.server in ("", settings.server_uuid):
            (finding,) = log_history.relations(settings, connection, [trace])
            if finding.relation is HistoryRelation.UNKNOWN and settings.log_server is not None:
                finding = _relation_in_log(settings, trace) or finding
            found.append(finding)
        elif isinstance(trace.position, GtidSet):
            found.append(_relation(settings, connection, trace.position, trace.mark))
        else:
            found.append(Finding(HistoryRelation.UNKNOWN, "the copy does not record its position"))
    return found


def _relation_in_log(settings: RunSettings, trace: Trace) -> Finding | None:
    """Return the relation according to the server from which the log is read, which has the history of the source."""
    with log_session(settings) as (here, connection):
        if not isinstance(trace.position, GtidSet) or not trace.position <= executed(connection):
            return None
        return _relation(here, connection, trace.position, trace.mark)


def _check_filters(settings: ConnectionSettings, connection: Connection, found: str) -> None:
    """Check that the server, as a replica, did not leave out changes. Their GTIDs would be in its log without rows."""
    filters = replication_filters(connection)
    if filters is None:
        raise ExactnessError(
            f"{found}, and the server does not show this user whether it left out changes as a replica",
            where=settings.address,
            hint=filter_grants(connection),
        )
    if filters:
        raise ExactnessError(
            f"{found}, and the server has a replication filter: as a replica, it may have left out changes",
            where=settings.address,
            hint=_ANEW,
        )


def after_failover(settings: ConnectionSettings, options: StepOptions) -> str:
    """Implements `Source.after_failover`."""
    if options.refresh == FULL:
        return f"{_FAILS}; the next run reads the tables in full, as always"
    with session(settings) as connection:
        if replication_filters(connection) is None:
            return (
                f"{_FAILS}, and the next run reads the tables in full, because the server does not show this user its "
                f"replication filters: {filter_grants(connection)}"
            )
    return (
        f"{_FAILS}; the next run goes on from the last copies if the new server has all of their transactions, has "
        "the log since then, and was not restarted since then; otherwise it reads the tables in full"
    )


def _relation(settings: RunSettings, connection: Connection, position: GtidSet, mark: str) -> Finding:
    """Return whether ``position`` and ``mark``, of another server, are in the history of the connected server."""
    purged, executed = (
        GtidSet.parse(value(connection, f"@@global.{name}")) for name in ("gtid_purged", "gtid_executed")
    )
    if lost := position - executed:
        why = (
            f"it lacks {format_count(len(lost), 'transaction')} of the position, {str(lost)[:200]}: the end of the log "
            "of the earlier server was lost, or a backup was restored"
        )
        return Finding(HistoryRelation.OTHER, why)
    try:
        commits = LogMark.parse(mark).commits
    except PositionError:
        commits = ""
    if not commits:
        why = "there is no record of the commit times by which the transactions are recognized on another server"
        return Finding(HistoryRelation.UNKNOWN, why)
    difference = commit_times.difference(settings, connection, commits)
    if difference:
        return Finding(HistoryRelation.OTHER, difference)
    if difference is None or purged - position:
        why = "it no longer has the log since the last transactions of the position"
        return Finding(HistoryRelation.UNKNOWN, why)
    return Finding(HistoryRelation.SAME)
