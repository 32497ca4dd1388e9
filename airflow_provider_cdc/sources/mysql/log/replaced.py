"""Detect tables that were replaced without a trace in the log. The log must explain each change of a table's identity.

Why this is sufficient: a run records a place in the log (`MysqlFacts.begun`), then the identities, then its position.
After that, every statement that replaces, alters or empties a table changes the identity of the table. If the statement
is logged, the log contains it after the recorded place. If an identity later differs from the recorded identity, this
module reads the log from the recorded place to the current end. If all statements were logged, this part of the log has
a statement for each changed part of the identity. A creation time is the exact time of the statement that set it. If
the log has no such statement, the change was not logged. In this case, the rows may contain changes that the log cannot
rewind.

The table is locked (`identity.held`) while its identity is compared, so that no session can alter the table.

The server logs a statement before the effects of the statement are visible. The exceptions are OPTIMIZE TABLE and ALTER
TABLE … OPTIMIZE PARTITION: the server logs them only after they have processed all of their tables. If the user may see
other sessions (PROCESS), this module looks for a running OPTIMIZE before it reads the end of the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ExactnessError, SchemaChanged, TransientError
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import IdentityEffect
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    backlog,
    end_of_log,
    file_number,
    is_before,
)
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, table_sql, variables
from airflow_provider_cdc.sources.mysql.tables.identity import (
    Explained,
    TableIdentity,
    has_other_identity,
    held,
    identified,
    read_identities,
    recorded_identities,
)
from airflow_provider_cdc.sources.mysql.tables.schema import naming_missing_tables

_MOST_BACKLOG = 2**30
"""The maximum size of the log that `unaltered_since` searches. If the log is too long to search, the run accepts fewer
of the later statements on the tables."""
_HINT = (
    "log all statements that replace tables: do not use sql_log_bin=0 (mysqldump --set-gtid-purged=OFF writes dumps "
    "without it) or OPTIMIZE LOCAL TABLE; if an OPTIMIZE TABLE was running, which is logged after it has processed all "
    "of its tables, clear this task instead"
)
_OPTIMIZING = (
    "an OPTIMIZE TABLE is running, which is logged after it has processed all of its tables: only then can the run "
    "find out whether that statement changed this table"
)


@dataclass(frozen=True)
class LoggedDdl:
    """A logged statement that may have changed the identity of a table. ``when``: the second in which the statement
    started. ``columns``: it may have added or dropped columns instantly."""

    when: int
    effect: IdentityEffect
    place: LogPlace
    columns: bool = False


def replaced_since(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    explained: dict[TableName, Explained] | None = None,
    until: LogPlace | None = None,
) -> dict[TableName, str]:
    """Return the tables whose identity changed without an explanation in the log. The value of a table is the reason
    for this result.

    The result may include the parents whose changes reach the tables. The result omits tables without a recorded
    identity. The result includes a table that a running OPTIMIZE TABLE may have changed.

    :param begin: a place in the log; the identities were recorded after it.
    :param explained: identities that the log has already explained. Tables are compared with these identities instead
        of the recorded ones. So a statement that explained one of them explains no later change. This function adds
        newly explained identities.
    :param until: a place in the log. Statements that were logged after this place are accepted, whatever they did.
    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    replaced, optimizing = _replaced(settings, connection, begin, tables, explained, until, {})
    return {name: f"{why}; or {_OPTIMIZING}" if optimizing else why for name, why in replaced.items()}


def _replaced(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    explained: dict[TableName, Explained] | None,
    until: LogPlace | None,
    at_position: Mapping[TableName, TableIdentity],
) -> tuple[dict[TableName, str], bool]:
    """Like `replaced_since`; also return whether an OPTIMIZE TABLE was running."""
    tables_by_name = {one.name: one for table in tables for one in (*table.cascades_from, table)}
    explanations = explained if explained is not None else {}
    before = recorded_identities(tables)
    before |= {name: one.identity for name, one in explanations.copy().items() if name in before}

    def others(now: Mapping[TableName, TableIdentity]) -> list[TableName]:
        return [name for name in before if name in now and before[name].differs(now[name])]

    now = read_identities(connection, list(before))
    replaced = {name: "it no longer exists, or this user may not see it" for name in before if name not in now}
    if names := others(now):
        with naming_missing_tables(connection, names), held(connection, names):
            now = read_identities(connection, names)
            # Read the end of the log while no session can alter the tables: later statements are after this place.
            place = end_of_log(settings, connection)
        names = others(now)
    optimizing = bool(names) and _is_optimizing(connection)
    if names:
        begins = {name: explanations[name].place if name in explanations else begin for name in names}
        first = min(begins.values(), key=lambda one: (file_number(one.file), one.position))
        ddl = _logged_ddl(settings, connection, first, [tables_by_name[name] for name in names])
        for name in names:
            ddl[name] = [one for one in ddl[name] if not is_before(one.place, begins[name])]
            later = [one for one in ddl[name] if until is not None and not is_before(one.place, until)]
            if any(one.effect is IdentityEffect.ANY for one in later):
                then = at_position.get(name, before[name])
                others_then = [one for one in ddl[name] if one not in later or one.effect is not IdentityEffect.ANY]
                if before[name].differs(then) and (why := _unexplained(before[name], then, others_then)):
                    replaced[name] = why
                continue
            if why := _unexplained(before[name], now[name], ddl[name]):
                replaced[name] = why
            elif now[name].ids is not None or before[name].ids is None:
                explanations[name] = Explained(now[name], place)
    return replaced, optimizing


def check_not_replaced(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    hint: str,
    explained: dict[TableName, Explained],
    until: LogPlace | None = None,
    now: Sequence[Table] = (),
) -> None:
    """Make sure that the log explains each changed identity (`replaced_since`).

    :param hint: the beginning of the error's hint.
    :param now: the tables with the identities that were recorded after ``until`` and before the position. If the
        identity of a table had already changed by then, a statement after ``until`` that may change rows does not
        explain the change.
    :raises SchemaChanged: a table was replaced without a trace in the log.
    :raises TransientError: a table was replaced without a trace in the log, or an OPTIMIZE TABLE that is still running
        may have replaced it.
    """
    replaced, optimizing = _replaced(settings, connection, begin, tables, explained, until, recorded_identities(now))
    for name, why in replaced.items():
        if optimizing:
            raise TransientError(_OPTIMIZING, where=str(name), hint="retry the task when OPTIMIZE TABLE has ended")
        raise SchemaChanged(why, where=str(name), hint=f"{hint}; {_HINT}")


def made_since(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    moment: datetime,
) -> dict[TableName, tuple[str, datetime]]:
    """Return the tables that were created or altered at ``moment`` or later by a statement that is not in the log.

    The value of a table is the reason and the time. Use this function for positions at which no identities were
    recorded.

    :param begin: the place from which the log is searched.
    """
    tables_by_name = {table.name: table for table in tables}
    late = {
        name: table_identity
        for name, table_identity in read_identities(connection, list(tables_by_name)).items()
        if _made(table_identity) >= moment
    }
    if not late:
        return {}
    with naming_missing_tables(connection, list(late)), held(connection, list(late)):
        late = read_identities(connection, list(late))
    ddl = _logged_ddl(settings, connection, begin, [tables_by_name[name] for name in late])
    return {
        name: (_unlogged(table_identity), _made(table_identity))
        for name, table_identity in late.items()
        if table_identity.created not in {statement.when for statement in ddl[name]}
    }


def unaltered_since(
    settings: ConnectionSettings, connection: Connection, begin: LogPlace, tables: Sequence[Table]
) -> dict[TableName, bool]:
    """Return the tables for which the log since ``begin`` has no statement that rebuilds the table or may change its
    rows. Row events do not count as statements.

    The value of a table is true if no partition was exchanged either. The result is empty if the log since ``begin`` is
    too long.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    if backlog(connection, begin) > _MOST_BACKLOG:
        return {}
    try:
        ddl = _logged_ddl(settings, connection, begin, tables)
    except ExactnessError:
        # Ignore the error here, because the run stops with the same error when it reads this part of the log later.
        return {}
    altering = {IdentityEffect.REBUILT, IdentityEffect.ANY}
    return {name: True for name, own in ddl.items() if altering.isdisjoint(one.effect for one in own)}


def _is_optimizing(connection: Connection) -> bool:
    """Whether any of the sessions that this user may see is running OPTIMIZE TABLE or OPTIMIZE PARTITION."""
    statement = (
        "SELECT COUNT(*) FROM performance_schema.processlist WHERE ID <> CONNECTION_ID() "
        "AND (INFO LIKE %s OR INFO LIKE %s)"
    )
    return bool(query(connection, statement, ["%optimize%table%", "%optimize%partition%"])[0][0])


def _made(identity: TableIdentity) -> datetime:
    return datetime.fromtimestamp(identity.created, UTC)


def _unlogged(now: TableIdentity) -> str:
    return (
        f"it was created again or altered at {_made(now):%Y-%m-%d %H:%M:%S} UTC by a statement that is not in the log: "
        "a session replaced it with sql_log_bin=0, as a loaded dump does, and the rows that it had before are unknown"
    )


def _unexplained(before: TableIdentity, now: TableIdentity, ddl: Sequence[LoggedDdl]) -> str:
    """Return the reason why the statements do not explain the change of an identity; empty if they explain it."""
    # Statements at the end of the list may have started after the identity was read.
    seen = max((number for number, one in enumerate(ddl, 1) if one.when == now.created), default=0)
    if before.created != now.created and not seen:
        return _unlogged(now)
    effects = {one.effect for one in ddl[:seen]}
    may_replace = IdentityEffect.REBUILT in effects or any(one.effect is IdentityEffect.ANY for one in ddl)
    other = before.lost_ids(now) if IdentityEffect.EXTENDED in effects else before.other_ids(now)
    if other and not may_replace:
        return (
            "its InnoDB table (TABLE_ID) is not the recorded one, and no statement in the log rebuilt it: a session "
            "truncated, exchanged, imported or rebuilt it with sql_log_bin=0 (or by an ALTER with old_alter_table=ON "
            "or of an empty table), and the rows that it had before are unknown"
        )
    is_known = all(one.effect is not IdentityEffect.ANY for one in ddl)
    if is_known and before.more_versions(now) > sum(one.columns for one in ddl[:seen]):
        return (
            "columns were added or dropped instantly (TOTAL_ROW_VERSIONS) by a statement that is not in the log: a "
            "session replaced columns with sql_log_bin=0, and the values that they had before are unknown"
        )
    return ""


def _logged_ddl(
    settings: ConnectionSettings, connection: Connection, begin: LogPlace, tables: Sequence[Table]
) -> dict[TableName, list[LoggedDdl]]:
    """For each table, return the statements that may have changed its identity and that were logged between ``begin``
    and the current end of the log."""
    # Import this module late: `sources.mysql.source` explains why.
    from airflow_provider_cdc.sources.mysql.log.survey import survey

    # Pass an empty GTID set as the position, so that every statement after ``begin`` counts.
    facts = survey(settings, begin, GtidSet(), tables)
    if facts.stopped is not None:
        raise facts.stopped[0]
    # With old_alter_table=ON, the server executes an ALTER in place only if the statement requests this.
    copies = variables(connection, ["old_alter_table"]).get("old_alter_table") == "ON"
    narrower = (IdentityEffect.MARKED, IdentityEffect.EXTENDED) if copies else ()
    ddl: dict[TableName, list[LoggedDdl]] = {table.name: [] for table in tables}
    for statement in facts.statements:
        for name in statement.on:
            effect = statement.identity_effect(name)
            columns = statement.columns is not None and statement.columns.table == name
            rebuilt = IdentityEffect.REBUILT if effect in narrower else effect
            ddl[name].append(LoggedDdl(statement.when, rebuilt, statement.begins, columns))
    return ddl


# Watches the identities of a run's tables, although the server may remove log that the run has recorded.
#
# The log must explain each change of an identity since the run recorded it (`replaced`). If the run records its log in
# pieces, the server may remove the log of a statement that was explained before. So the identities are noted with each
# piece. From then on, they are compared with the noted identities, and the log is searched from the end of the piece
# on. The end of the piece is noted first, and then the identities are read, as at the beginning of the run.


_TRIGGER_NEW_RUN = "trigger a new run"
_WAIT_SECONDS = 10
_AT_ONCE = 50


@dataclass(frozen=True)
class _Noted:
    """The place in the log from which on the log must explain changes, and the identities there, by the table's name.
    Tables that still have their recorded identity are omitted."""

    place: LogPlace
    identities: Mapping[str, TableIdentity]

    def among(self, tables: Sequence[Table]) -> list[Table]:
        """Return the tables with the noted identities."""
        return [
            replace(self._with(table), cascades_from=tuple(map(self._with, table.cascades_from))) for table in tables
        ]

    def _with(self, table: Table) -> Table:
        identity = self.identities.get(str(table.name))
        return table if identity is None else identified(table, identity)


def _wait_for_statements(connection: Connection, names: Sequence[TableName]) -> None:
    """Wait until the tables show the effects of all statements that are in the log. The server logs a statement before
    its effects are visible, and holds the metadata lock of the table meanwhile."""
    query(connection, f"SET SESSION lock_wait_timeout = {_WAIT_SECONDS}")
    for start in range(0, len(names), _AT_ONCE):
        selects = [f"(SELECT 1 FROM {table_sql(name)} LIMIT 0)" for name in names[start : start + _AT_ONCE]]
        with naming_missing_tables(connection, names):
            query(connection, " UNION ALL ".join(selects))


class WatchedTables:
    """The tables of the run that recorded ``facts``."""

    def __init__(self, facts: MysqlFacts) -> None:
        self._facts = facts
        self._noted: _Noted | None = None
        # The thread that checks the tables each minute adds to it, too.
        self._explained: dict[TableName, Explained] = {}

    @property
    def _since(self) -> _Noted:
        if self._noted is not None:
            return self._noted
        spooled = self._facts.reached
        if spooled is None or not spooled.known:
            return _Noted(self._facts.place, {})
        known = json.loads(spooled.known)
        identities = {name: TableIdentity(**fields) for name, fields in known["identities"].items()}
        return _Noted(LogPlace.parse(known["place"]), identities)

    def check(self, settings: ConnectionSettings, connection: Connection, tables: Sequence[Table]) -> None:
        """Check that no table was replaced without a trace in the log.

        :raises SchemaChanged, TransientError: as `replaced.check_not_replaced`.
        """
        self._check(settings, connection, tables, self._since, self._explained)

    def refresh_identities(
        self, settings: ConnectionSettings, connection: Connection, tables: Sequence[Table]
    ) -> list[Table]:
        """Check the ``tables``, and return them with their present identities.

        If the log does not explain an identity yet, because a statement is under way, the table has the identity that
        was known before.

        :raises SchemaChanged, TransientError: as `replaced.check_not_replaced`.
        """
        since = self._since
        self._check(settings, connection, tables, since, self._explained)
        present = {str(name): one.identity for name, one in self._explained.copy().items()}
        return _Noted(since.place, {**since.identities, **present}).among(tables)

    def note(self, settings: ConnectionSettings, connection: Connection, end: LogEnd, tables: Sequence[Table]) -> str:
        """Check the ``tables``, and note their identities at the place ``end``, which was read before this call.

        :returns: the noted identities as text, for `Link.known`.
        """
        _wait_for_statements(connection, [table.name for table in tables])
        since = self._since
        self._check(settings, connection, tables, since, self._explained)
        identities = {**since.identities, **{str(name): one.identity for name, one in self._explained.copy().items()}}
        noted = _Noted(LogPlace.parse(end), identities)
        if not has_other_identity(connection, noted.among(tables), {}):
            # Otherwise a table has just been altered, or the server did not show its numbers in time.
            self._noted, self._explained, since = noted, {}, noted
        known = {name: asdict(identity) for name, identity in since.identities.items()}
        return json.dumps({"place": str(since.place), "identities": known})

    @staticmethod
    def _check(
        settings: ConnectionSettings,
        connection: Connection,
        tables: Sequence[Table],
        noted: _Noted,
        explained: dict[TableName, Explained],
    ) -> None:
        known = noted.among(tables)
        if has_other_identity(connection, known, explained):
            from airflow_provider_cdc.sources.mysql.log import replaced

            replaced.check_not_replaced(settings, connection, noted.place, known, _TRIGGER_NEW_RUN, explained)
