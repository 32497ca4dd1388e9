"""Users' code that the server runs in our sessions, and the search_path that it needs.

Our sessions look for names in ``pg_catalog`` alone, so no object of a user can stand for one of the server's. But the
server runs code of the database's users in them, which may rely on the path that the user's sessions have by
themselves:

- event triggers, when a publication is made, altered, commented on or dropped;
- functions in SQL, when a SELECT is planned: the planner puts their bodies in place of their calls in the expressions
  of indexes and of extended statistics, and looks up the names in them.

So such a statement runs under the user's own path, where there is an event trigger, or where its table cannot be
planned without it. Each name of ours in these statements is either qualified or a type of ``pg_catalog``, which comes
first in the path for reads. So nothing of ours can mean a user's object.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

import adbc_driver_manager
import psycopg

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError, Problem
from airflow_provider_cdc.sources.postgres.catalog.schema import Leaf, leaves
from airflow_provider_cdc.sources.postgres.catalog.types import select_list, unmapped
from airflow_provider_cdc.sources.postgres.catalog.view_definitions import VIEW
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session import (
    APPLICATION,
    Connection,
    is_denied,
    literal,
    may_pass,
    parameters_of,
    query,
    quote,
    said,
)

PINNED = f"SELECT pg_catalog.set_config('search_path', {literal(session_setup.SETTINGS['search_path'])}, true)"
"""Restores the session's own path, where `own_path` was set in a transaction."""

NO_INDEX = """
SELECT pg_catalog.set_config('enable_indexscan', 'off', true), pg_catalog.set_config('enable_bitmapscan', 'off', true),
    pg_catalog.set_config('enable_indexonlyscan', 'off', true)
"""
"""Where a search_path may lead to another function than when an index was built: the planner may then think that a
partial index has all rows that are asked for, or that an expression is the column itself."""

# The server's own functions and operators are in no dependency.
INDEXES_BY_USERS = """
SELECT count(*)::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid
    AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
WHERE i.indrelid = {0} AND (i.indpred IS NOT NULL OR EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = i.indexrelid AND i.indkey[a.attnum - 1] = 0 AND t.typcategory IN ('N', 'D')))
"""
"""How many dependencies on functions and operators of users those indexes of a relation, given by its OID, have that
are partial, or have an expression of a type that conditions are pushed down for (`pushed`)."""

_PLANNED_AT_ONCE = 50
"""Planning locks a relation and all of its indexes."""
_DRY_RUN = "SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '30s'"
_TRIED_AT_ONCE = 200
_PUBLICATION_TAKEN = (psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege)
_LONGEST = 1000
"""Characters of a message of the server."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EventTrigger:
    """An event trigger that is not disabled. ``tags``: the commands that it is for; empty: all."""

    name: str
    event: str
    tags: tuple[str, ...]
    function: str
    function_name: str

    def __str__(self) -> str:
        return f"{quote(self.name)} (ON {self.event}, function {self.function})"


_EVENT_TRIGGERS = """
SELECT t.evtname::text, t.evtevent::text, COALESCE(t.evttags, '{}'), p.oid::regprocedure::text, p.proname::text
FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid
WHERE t.evtenabled <> 'D' AND t.evtevent IN ('ddl_command_start', 'ddl_command_end', 'sql_drop') ORDER BY 1
"""


def event_triggers(connection: Connection) -> list[EventTrigger]:
    """The event triggers that publications may set off."""
    return [
        EventTrigger(name, event, tuple(tags), function, function_name)
        for name, event, tags, function, function_name in query(connection, _EVENT_TRIGGERS)
    ]


def own_path(connection: Connection) -> str:
    """The search_path that sessions of this user have by themselves (ALTER ROLE, ALTER DATABASE, postgresql.conf)."""
    arguments = parameters_of(connection)
    arguments["options"] = re.sub(r"-c search_path=(\\.|[^ ])* ?", "", arguments.get("options", ""))
    with psycopg.connect(autocommit=True, **arguments) as other:  # type: ignore[arg-type]
        # No query: that would look up names in the path.
        row = other.execute("SHOW search_path").fetchone()
    assert row is not None
    return str(row[0])


def execute(connection: Connection, sql: str) -> None:
    """Run a command on a publication: under the user's own path if it may set off an event trigger. The session's
    settings are what they were before.

    :raises ConfigurationError: an event trigger raises an error.
    """
    triggers = event_triggers(connection)
    if not triggers:
        query(connection, sql)
        return
    before = _settings(connection)
    try:
        with connection.transaction():
            set_path(connection, own_path(connection))
            query(connection, sql)
            query(connection, PINNED)
    except psycopg.Error as error:
        if (problem := _refused(connection, error, triggers, sql)) is None:
            raise
        raise ConfigurationError(problem.what, where=problem.where, hint=problem.hint) from error
    for name, setting in before.items() - _settings(connection).items():
        query(connection, "SELECT pg_catalog.set_config(%s, %s, false)", (name, setting))


def _settings(connection: Connection) -> dict[str, str]:
    """What our sessions rely on. The query holds no operator, which a user's path could lead elsewhere."""
    names = [*session_setup.SETTINGS, *session_setup.SET_AT_ONCE, "role"]
    expressions = ", ".join(f"pg_catalog.current_setting({literal(name)}, true)" for name in names)
    (row,) = query(connection, f"SELECT {expressions}")
    return {name: setting for name, setting in zip(names, row, strict=True) if setting is not None}


def set_path(connection: Connection, path: str) -> None:
    """Set the path until the transaction ends."""
    query(connection, "SELECT pg_catalog.set_config('search_path', %s, true)", (path,))


def _refused(
    connection: Connection, error: psycopg.Error, triggers: Sequence[EventTrigger], sql: str
) -> Problem | None:
    """The problem, if an event trigger raised an error that stays: only what functions raise has a context."""
    if not error.diag.context or may_pass(error.sqlstate or ""):
        return None
    return _problem(connection, error, triggers, sql)


def _problem(connection: Connection, error: psycopg.Error, triggers: Sequence[EventTrigger], sql: str) -> Problem:
    context = error.diag.context or ""
    tags = re.findall("(?:^|; )((?:CREATE|ALTER|DROP) PUBLICATION|COMMENT)", sql)
    # What fails without a context may be the work of an earlier command's trigger.
    concerned = [entry for entry in triggers if not context or not entry.tags or {*entry.tags} & {*tags}]
    raising = [entry for entry in concerned if f"{entry.function_name}(" in context] or concerned or list(triggers)
    entry = raising[0]
    ((user,),) = query(connection, "SELECT session_user::text")
    command = f"{' or '.join(tags)}, which runs need"
    return Problem(
        f"event trigger {' or '.join(map(str, raising))}",
        f"it raises an error at {command}: {_shortened(said(error))}"
        if context
        else f"{command}, fails; it may have dropped the publication, or changed its owner or the session's role: "
        f"{said(error)}",
        f"qualify the names in its function with their schemas, or ALTER FUNCTION {entry.function} SET "
        f"search_path = …; grant {quote(user)} what the function uses, or make it SECURITY DEFINER; "
        "let it RETURN for this user; or let the tables' owner make the publication, and name it in the connection "
        "(publication), so that runs need no "
        "such command",
    )


def _shortened(text: str) -> str:
    """A message of bounded length: the context of an error in a recursion has thousands of lines."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def publication_refused(connection: Connection, tables: Sequence[Table]) -> list[Problem]:
    """Why event triggers would refuse what a run does with its publication: it is tried, and rolled back.

    Without event triggers nothing is tried. It waits for no lock longer than a second, and takes no more than 30 s for
    a command.
    """
    triggers = event_triggers(connection)
    if not triggers:
        return []
    name = quote(f"cdc_preflight_{uuid4().hex[:12]}")
    listed = [leaf.sql for table in tables for leaf in leaves(table)][:_TRIED_AT_ONCE]
    commands = [f"CREATE PUBLICATION {name}", f"COMMENT ON PUBLICATION {name} IS {literal(APPLICATION)}"]
    if listed:
        commands.append(f"ALTER PUBLICATION {name} ADD TABLE {', '.join(f'ONLY {sql}' for sql in listed)}")
    commands.append(f"DROP PUBLICATION {name}")
    path, sql = own_path(connection), ""
    try:
        with connection.transaction(force_rollback=True):
            query(connection, _DRY_RUN)
            set_path(connection, path)
            for sql in commands:
                query(connection, sql)
    except psycopg.Error as error:
        if problem := _refused(connection, error, triggers, sql):
            return [problem]
        # The publication was made just now, by this user. But what the server itself refuses to publish (an unlogged
        # table, say) is told with the tables.
        by_trigger = isinstance(error, _PUBLICATION_TAKEN) or not sql.startswith("ALTER")
        if by_trigger and not may_pass(error.sqlstate or ""):
            return [_problem(connection, error, triggers, sql)]
        _log.info("Whether event triggers refuse a publication could not be tried: %s", said(error))
    return []


def planned_under(connection: Connection) -> str:
    """The path under which tables are read that cannot be planned under our own."""
    return ", ".join(part for part in ("pg_catalog", own_path(connection), "pg_temp") if part)


def is_unplannable(error: psycopg.Error | adbc_driver_manager.Error) -> bool:
    """Whether an error may be one of users' code, which the planner ran or looked into."""
    return not may_pass(error.sqlstate or "") and not is_denied(error.sqlstate or "")


def _is_of_users(error: psycopg.Error) -> bool:
    """Whether an error is one of users' code, and not of the table: that it is gone, or that this user may not read it,
    or not all of its rows, is told otherwise. Only what functions raise has a context."""
    of_table = is_denied(error.sqlstate or "") or isinstance(error, _GONE)
    return bool(error.diag.context) if of_table else is_unplannable(error)


_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)
_FOREIGN = "SELECT oid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relkind = 'f'"


def may_be_read_under_own_path(table: Table) -> bool:
    """Whether each name in the statements that read a table is qualified. The expression of a virtual column is not,
    which is asked for where a partition may have another one."""
    return not (table.details["kind"] == "p" and any("expression" in column.details for column in table.columns))


def unplannable(connection: Connection, tables: Sequence[Table]) -> list[Problem]:
    """A problem for each table of which the server cannot plan a SELECT, under our path or under the user's own.

    :raises psycopg.errors.LockNotAvailable: a table is locked against readers.
    """
    every = [(table, leaf) for table in tables for leaf in leaves(table)]
    # The planner may ask the other server about a foreign table, which is refused otherwise.
    foreign = query(connection, _FOREIGN, ([leaf.oid for _, leaf in every],))
    # A view is planned where it is known to call nothing of users (`safe_views`).
    listed = [(table, leaf) for table, leaf in every if (leaf.oid,) not in foreign and table.details["kind"] != VIEW]
    problems: dict[str, Problem] = {}
    path = ""
    for start in range(0, len(listed), _PLANNED_AT_ONCE):
        some = listed[start : start + _PLANNED_AT_ONCE]
        if _planning_error(connection, some) is None:
            continue
        for table, leaf in some:
            error = _planning_error(connection, [(table, leaf)])
            if error is None or str(table.name) in problems or not _is_of_users(error):
                continue
            path = path or planned_under(connection)
            if may_be_read_under_own_path(table):
                again = _planning_error(connection, [(table, leaf)], path)
                if again is None:
                    _log.info("%s is planned under search_path %s, since without it: %s", leaf.sql, path, said(error))
                    continue
                error = again
            problems[str(table.name)] = _unplannable(connection, table, leaf, error)
    return list(problems.values())


def _planning_error(
    connection: Connection, listed: Sequence[tuple[Table, Leaf]], path: str = ""
) -> psycopg.Error | None:
    selects = [f"(SELECT count(*) FROM ({_select(table, leaf)}) AS r)" for table, leaf in listed]
    try:
        with connection.transaction():
            if path:
                set_path(connection, path)
            query(connection, f"EXPLAIN SELECT {', '.join(selects)}")
    except psycopg.Error as error:
        if may_pass(error.sqlstate or ""):
            raise
        return error
    return None


def _select(table: Table, leaf: Leaf) -> str:
    read = table.as_read
    columns = "1" if any(map(unmapped, read.columns)) else select_list(read) or "1"
    return f"SELECT {columns} FROM ONLY {leaf.sql} WHERE ctid OPERATOR(pg_catalog.>=) '(0,0)'::pg_catalog.tid"


# What of a relation has expressions or a condition that call functions of users, also by operators, and these.
_EXPRESSIONS = """
SELECT CASE d.classid WHEN 'pg_class'::regclass THEN concat('index ', d.objid::regclass)
    ELSE concat('statistics ', (SELECT format('%%I.%%I', n.nspname, s.stxname) FROM pg_statistic_ext s
        JOIN pg_namespace n ON n.oid = s.stxnamespace WHERE s.oid = d.objid)) END, p.oid::regprocedure::text, p.proname
FROM pg_depend d
LEFT JOIN pg_operator o ON o.oid = d.refobjid AND d.refclassid = 'pg_operator'::regclass
JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid ELSE o.oprcode END
WHERE p.pronamespace <> 'pg_catalog'::regnamespace AND (
    (d.classid = 'pg_class'::regclass AND d.objid IN (SELECT indexrelid FROM pg_index WHERE indrelid = %(oid)s))
    OR (d.classid = 'pg_statistic_ext'::regclass
        AND d.objid IN (SELECT oid FROM pg_statistic_ext WHERE stxrelid = %(oid)s)))
ORDER BY 1, 2
"""


def _unplannable(connection: Connection, table: Table, leaf: Leaf, error: psycopg.Error) -> Problem:
    expressions = query(connection, _EXPRESSIONS, {"oid": leaf.oid})
    context = error.diag.context or ""
    # The context names the functions without their schemas.
    expressions = [expression for expression in expressions if f'"{expression[2]}"' in context] or expressions
    causes = ", ".join(f"{what} (function {function})" for what, function, _ in expressions)
    ((user,),) = query(connection, "SELECT session_user::text")
    function = expressions[0][1] if expressions else "…"
    grant = f"grant {quote(user)} what the function uses; or " if is_denied(error.sqlstate or "") else ""
    return Problem(
        str(table.name),
        f"the server cannot plan a SELECT of {leaf.sql}{f': {causes}' if causes else ''}: {_shortened(said(error))}",
        f"{grant}ALTER FUNCTION {function} SET search_path = …, or qualify the names in its body with their schemas "
        f"(CREATE OR REPLACE FUNCTION leaves the index as it is); or ALTER ROLE {quote(user)} SET search_path = … to "
        "where it finds them, in schemas that it may use",
        str(table.name),
    )
