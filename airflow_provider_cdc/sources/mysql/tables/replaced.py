"""Whether tables were replaced behind the log's back: whether the log explains each change of their identity.

Why it suffices. A run records the identities after its place in the log (`server.LOG_PLACE`) and before its position.
Whoever replaces, alters or empties a table from then on changes its identity; what did so with a trace in the log is in
the log behind that place. So an identity that is asked for later is either the recorded one, or there is a statement in
the log, between the place and the end of the log as it was after the answer, that may have made each part of it what it
is. A creation time is that of the very statement that set it. What is left is a change in the dark, which the rows may
hold and which no window of the log puts back.

Identities are compared with the table held, so that nobody is halfway through altering it.

Statements are in the log before what they do can be seen, but for OPTIMIZE TABLE (and ALTER TABLE … OPTIMIZE PARTITION,
which does the same): it is logged once it has done all of its tables. Whoever may see other sessions (PROCESS) looks
for one that runs, before the end of the log is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ExactnessError, SchemaChanged, TransientError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log.long_prepared import PreparedWalker
from airflow_provider_cdc.sources.mysql.log.statements.copied_tables import names_of
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Statement
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, meaning
from airflow_provider_cdc.sources.mysql.log.survey import looked_through, stretches
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    backlog,
    check_place,
    end_of_log,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.session import Connection, query, variables
from airflow_provider_cdc.sources.mysql.tables.identity import (
    TableIdentity,
    held,
    read_identities,
    recorded_identities,
)

_MOST_BACKLOG = 2**30
"""Bytes of log that are looked through only so that more may be done to tables later on."""
_HINT = (
    "let whatever replaces tables log what it does: no sql_log_bin=0 (mysqldump --set-gtid-purged=OFF writes dumps "
    "without it), no OPTIMIZE LOCAL TABLE; if an OPTIMIZE TABLE was running, which is logged once it has done all of "
    "its tables, clear this task instead"
)
_OPTIMIZING = (
    "an OPTIMIZE TABLE is running, which is logged once it has done all of its tables: only then can be told whether "
    "it was what changed this one"
)


@dataclass(frozen=True)
class LoggedDdl:
    """A statement in the log that may have changed the identity of a table. ``when``: the second in which it began."""

    when: int
    effect: IdentityEffect
    place: LogPlace


def replaced_since(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    explained: dict[TableName, TableIdentity] | None = None,
    until: LogPlace | None = None,
) -> dict[TableName, str]:
    """Why tables, or the parents whose changes reach them, are not those that were recorded, as far as the log does not
    say it; all others are left out, and so are those of which no identity was recorded.

    A table that an OPTIMIZE TABLE may be at work on, for all that can be seen, is among them.

    :param begin: a place in the log before which the identities were not recorded.
    :param explained: identities that the log has explained before, for which it need not be read again; more are added.
    :param until: what was done to tables behind it with a trace in the log does not matter, whatever it was.
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
    explained: dict[TableName, TableIdentity] | None,
    until: LogPlace | None,
    at_position: Mapping[TableName, TableIdentity],
) -> tuple[dict[TableName, str], bool]:
    """As `replaced_since`, and whether an OPTIMIZE TABLE was running."""
    tables_by_name = {one.name: one for table in tables for one in (*table.cascades_from, table)}
    before = recorded_identities(tables)
    explanations = explained if explained is not None else {}

    def others(now: Mapping[TableName, TableIdentity]) -> list[TableName]:
        return [
            name
            for name, identity_before in before.items()
            if name in now
            and identity_before.differs(now[name])
            and explanations.get(name, identity_before).differs(now[name])
        ]

    now = read_identities(connection, list(before))
    replaced = {name: "it does not exist any more, or this user may not see it" for name in before if name not in now}
    if names := others(now):
        with held(connection, names):
            now = read_identities(connection, names)
        names = others(now)
    optimizing = bool(names) and _is_optimizing(connection)
    if names:
        ddl = _logged_ddl(settings, connection, begin, [tables_by_name[name] for name in names])
        for name in names:
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
                explanations[name] = now[name]
    return replaced, optimizing


def check_not_replaced(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    hint: str,
    explained: dict[TableName, TableIdentity],
    until: LogPlace | None = None,
    now: Sequence[Table] = (),
) -> None:
    """As `replaced_since`.

    :param hint: what to do now.
    :param now: the tables as they were recorded behind ``until``, before the position: what is logged after it does not
        explain these.
    :raises SchemaChanged: a table was replaced, and the log does not say so.
    :raises TransientError: that may be so, or an OPTIMIZE TABLE that runs did it.
    """
    replaced, optimizing = _replaced(settings, connection, begin, tables, explained, until, recorded_identities(now))
    for name, why in replaced.items():
        if optimizing:
            raise TransientError(_OPTIMIZING, where=str(name), hint="the task can be retried once it has ended")
        raise SchemaChanged(why, where=str(name), hint=f"{hint}; {_HINT}")


def made_since(
    settings: ConnectionSettings,
    connection: Connection,
    begin: LogPlace,
    tables: Sequence[Table],
    moment: datetime,
) -> dict[TableName, tuple[str, datetime]]:
    """Which tables were made or altered at ``moment`` or later, though the log since ``begin`` does not say so: why,
    and when it was.

    For positions at which no identities were recorded.
    """
    tables_by_name = {table.name: table for table in tables}
    late = {
        name: table_identity
        for name, table_identity in read_identities(connection, list(tables_by_name)).items()
        if _made(table_identity) >= moment
    }
    if not late:
        return {}
    with held(connection, list(late)):
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
    """The tables that no statement in the log since ``begin`` has written anew, or may have changed the rows of.

    The value is true: nor was a partition exchanged. None of them are told if the log is too long to look for that.

    :raises LogGone: the log was purged meanwhile.
    :raises SourceUnavailable: the server cannot be reached.
    """
    if backlog(connection, str(begin)) > _MOST_BACKLOG:
        return {}
    try:
        ddl = _logged_ddl(settings, connection, begin, tables)
    except ExactnessError:
        # Whoever nets this log stops for it.
        return {}
    altering = {IdentityEffect.REBUILT, IdentityEffect.ANY}
    return {name: True for name, own in ddl.items() if altering.isdisjoint(one.effect for one in own)}


def _is_optimizing(connection: Connection) -> bool:
    """Whether a session that this user may see is in the middle of an OPTIMIZE TABLE, or of an OPTIMIZE PARTITION."""
    statement = (
        "SELECT COUNT(*) FROM performance_schema.processlist WHERE ID <> CONNECTION_ID() "
        "AND (INFO LIKE %s OR INFO LIKE %s)"
    )
    return bool(query(connection, statement, ["%optimize%table%", "%optimize%partition%"])[0][0])


def _made(identity: TableIdentity) -> datetime:
    return datetime.fromtimestamp(identity.created, UTC)


def _unlogged(now: TableIdentity) -> str:
    return (
        f"it was made anew or altered at {_made(now):%Y-%m-%d %H:%M:%S} UTC by a statement that is not in the log: "
        "somebody replaced it with sql_log_bin=0, as a loaded dump does, and which rows it had before is unknown"
    )


def _unexplained(before: TableIdentity, now: TableIdentity, ddl: Sequence[LoggedDdl]) -> str:
    """Why the statements do not explain how an identity became another; empty if they do."""
    # Later ones may have begun after the identity was read.
    seen = max((number for number, one in enumerate(ddl, 1) if one.when == now.created), default=0)
    if before.created != now.created and not seen:
        return _unlogged(now)
    effects = {one.effect for one in ddl[:seen]}
    may_replace = IdentityEffect.REBUILT in effects or any(one.effect is IdentityEffect.ANY for one in ddl)
    other = before.lost_ids(now) if IdentityEffect.EXTENDED in effects else before.other_ids(now)
    if other and not may_replace:
        return (
            "InnoDB has another table for it (TABLE_ID) than was recorded, and no statement in the log wrote it anew: "
            "somebody emptied, exchanged, imported or rebuilt it with sql_log_bin=0 (or by an ALTER with "
            "old_alter_table=ON), and which rows it had before is unknown"
        )
    return ""


def _logged_ddl(
    settings: ConnectionSettings, connection: Connection, begin: LogPlace, tables: Sequence[Table]
) -> dict[TableName, list[LoggedDdl]]:
    """The statements from ``begin`` to the present end of the log that may have changed the identity of each table."""
    # The end first: its file is then among the files.
    end, files = end_of_log(settings, connection), log_files(connection)
    check_place(settings, files, begin)
    # Then no ALTER is done in place unless it says so.
    copies = variables(connection, ["old_alter_table"]).get("old_alter_table") == "ON"
    ddl_by_table: dict[TableName, list[LoggedDdl]] = {table.name: [] for table in tables}

    def walker_of(segment: LogSegment) -> _DdlWalker:
        return _DdlWalker(segment, tables)

    with looked_through(settings, files, stretches(files, begin, end), walker_of) as walkers:
        for walker, error in walkers:
            if error is not None:
                raise error
            for name, statements in walker.found.items():
                ddl_by_table[name] += statements
    if copies:
        narrower, rebuilt = (IdentityEffect.MARKED, IdentityEffect.EXTENDED), IdentityEffect.REBUILT
        ddl_by_table = {
            name: [
                replace(statement, effect=rebuilt) if statement.effect in narrower else statement
                for statement in statements
            ]
            for name, statements in ddl_by_table.items()
        }
    return ddl_by_table


_NAMES_TABLES = frozenset(["ALTER TABLE", "CREATE INDEX", "DROP INDEX", "DROP TABLE", "OPTIMIZE TABLE"])
"""Statements that touch a table only if their text has its name."""


class _DdlWalker(PreparedWalker):
    """Notes the statements that may change the identity of tables, whoever stops for them; rows are nothing to it."""

    def __init__(self, segment: LogSegment, tables: Sequence[Table]) -> None:
        # Whatever the position is, what comes after the place counts.
        super().__init__(segment.name, segment.start, segment.stop, GtidSet())
        self.found: dict[TableName, list[LoggedDdl]] = {table.name: [] for table in tables}
        # One by one: of a statement that names several tables, only one is told.
        self._each = {table.name: names_of([table]) for table in tables}
        self._names = names_of(tables)

    def _check(self, statement: Statement) -> None:
        # Whoever optimizes thousands of tables has as many statements in the log.
        statement_meaning = meaning(statement, self._names)
        if statement_meaning.effect in (Effect.HARMLESS, Effect.ELSEWHERE) and statement_meaning.identity is None:
            return
        text = statement.text.lower()
        names_all = statement_meaning.statement in _NAMES_TABLES and statement_meaning.effect in (
            Effect.HARMLESS,
            Effect.TOUCHES,
        )
        for name, names in self._each.items():
            # Of another name the server may still think that it is this one, or write it in another way.
            plain = text.isascii() and name.name.isascii() and name.name.replace("_", "a").isalnum()
            if plain and names_all and name.name.lower() not in text:
                continue
            table_meaning = meaning(statement, names)
            is_harmless = table_meaning.effect in (Effect.HARMLESS, Effect.ELSEWHERE)
            effect = table_meaning.identity if is_harmless else IdentityEffect.ANY
            if effect is not None:
                place = LogPlace(self.summary.segment.name, self.position)
                self.found[name].append(LoggedDdl(self.when, effect, place))
