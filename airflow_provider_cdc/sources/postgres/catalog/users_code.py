"""Handles user code that the server runs in the sessions of a run, and the search_path that this code needs.

The sessions of a run look up names only in ``pg_catalog``, so no user object can take the place of a system object. But
the server also runs user code in these sessions, and this code may depend on the user's default search_path. It runs:

- event triggers, when a publication is created, altered, commented on or dropped;
- SQL functions, when a SELECT is planned. The planner inlines calls of these functions in the expressions of indexes
  and extended statistics, and looks up the names in the functions' bodies.

Two kinds of statements run under the user's default search_path. These are commands on publications, if there is an
event trigger, and reads that cannot be planned under the pinned path. Each name in these statements is either qualified
or the name of a type in ``pg_catalog``, and ``pg_catalog`` comes first in the path for reads. So no name can refer to a
user object.
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
    connect_like,
    error_text,
    is_denied,
    is_transient,
    literal,
    query,
    quote,
)

PINNED = f"SELECT pg_catalog.set_config('search_path', {literal(session_setup.SETTINGS['search_path'])}, true)"
"""A query that restores the session's pinned path after `own_path` was set in a transaction."""

NO_INDEX = """
SELECT pg_catalog.set_config('enable_indexscan', 'off', true), pg_catalog.set_config('enable_bitmapscan', 'off', true),
    pg_catalog.set_config('enable_indexonlyscan', 'off', true)
"""
"""A query that disables indexes. It is used with a search_path under which a function's name may refer to another
function than when an index was built. With such a path, the planner may wrongly assume that a partial index has all
requested rows, or that an expression equals the column."""

# Built-in functions and operators have no entries in pg_depend.
INDEXES_BY_USERS = """
SELECT count(*)::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_depend d
    ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid
    AND d.refclassid IN ('pg_catalog.pg_proc'::pg_catalog.regclass, 'pg_catalog.pg_operator'::pg_catalog.regclass)
WHERE i.indrelid = {0} AND (i.indpred IS NOT NULL OR EXISTS (
    SELECT FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = i.indexrelid AND i.indkey[a.attnum - 1] = 0 AND t.typcategory IN ('N', 'D')))
"""
"""A query that counts the dependencies of a relation's indexes on user-defined functions and operators, given the OID
of the relation. The query considers only partial indexes, and indexes with an expression whose type allows conditions
to be pushed down (`pushed_conditions`)."""

_PLANNED_AT_ONCE = 50
"""The number of relations that one statement plans. Planning locks a relation and all of its indexes."""
_DRY_RUN = "SET LOCAL lock_timeout = '1s'; SET LOCAL statement_timeout = '30s'"
_TRIED_AT_ONCE = 200
_PUBLICATION_TAKEN = (psycopg.errors.UndefinedObject, psycopg.errors.InsufficientPrivilege)
_LONGEST = 1000
"""The maximum length, in characters, of a server message that an error message quotes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EventTrigger:
    """An enabled event trigger. ``tags``: the commands for which the trigger fires. Empty: all commands."""

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
    """Return the event triggers that may fire for commands on publications."""
    return [
        EventTrigger(name, event, tuple(tags), function, function_name)
        for name, event, tags, function, function_name in query(connection, _EVENT_TRIGGERS)
    ]


def own_path(connection: Connection) -> str:
    """Return the default search_path of this user's sessions (ALTER ROLE, ALTER DATABASE, postgresql.conf)."""
    options = re.sub(r"-c search_path=(\\.|[^ ])* ?", "", connection.info.get_parameters().get("options", ""))
    with connect_like(connection, options=options) as other:
        # Use SHOW, because a query would look up names in the path.
        row = other.execute("SHOW search_path").fetchone()
    assert row is not None
    return str(row[0])


def execute(connection: Connection, sql: str) -> None:
    """Run a command on a publication. If an event trigger may fire, use the user's default search_path. Restore the
    session's settings afterwards.

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
    """Return the settings that sessions depend on. The query contains no operators, because the user's search_path
    could redefine an operator."""
    names = [*session_setup.SETTINGS, *session_setup.SET_AT_ONCE, "role"]
    expressions = ", ".join(f"pg_catalog.current_setting({literal(name)}, true)" for name in names)
    (row,) = query(connection, f"SELECT {expressions}")
    return {name: setting for name, setting in zip(names, row, strict=True) if setting is not None}


def set_path(connection: Connection, path: str) -> None:
    """Set the search_path until the transaction ends."""
    query(connection, "SELECT pg_catalog.set_config('search_path', %s, true)", (path,))


def _refused(
    connection: Connection, error: psycopg.Error, triggers: Sequence[EventTrigger], sql: str
) -> Problem | None:
    """Return the problem if an event trigger raised a permanent error. Such an error has a context, because it was
    raised in a function."""
    if not error.diag.context or is_transient(error.sqlstate or ""):
        return None
    return _problem(connection, error, triggers, sql)


def _problem(connection: Connection, error: psycopg.Error, triggers: Sequence[EventTrigger], sql: str) -> Problem:
    context = error.diag.context or ""
    tags = re.findall("(?:^|; )((?:CREATE|ALTER|DROP) PUBLICATION|COMMENT)", sql)
    # An error without a context may come from a trigger that fired for an earlier command.
    concerned = [entry for entry in triggers if not context or not entry.tags or {*entry.tags} & {*tags}]
    raising = [entry for entry in concerned if f"{entry.function_name}(" in context] or concerned or list(triggers)
    entry = raising[0]
    ((user,),) = query(connection, "SELECT session_user::text")
    command = f"{' or '.join(tags)}, which runs need"
    return Problem(
        f"event trigger {' or '.join(map(str, raising))}",
        f"it raises an error at {command}: {_shortened(error_text(error))}"
        if context
        else f"{command}, fails; it may have dropped the publication, or changed its owner or the session's role: "
        f"{error_text(error)}",
        "correct the function of the event trigger: qualify the names in it with their schemas (or ALTER FUNCTION "
        f"{entry.function} SET search_path = …), grant {quote(user)} the privileges that it needs (or make it "
        "SECURITY DEFINER), or let it RETURN for this user. Or let the owner of the tables create a publication, and "
        "enter its name in the field `publication` of the connection: runs then do not need this command",
    )


def _shortened(text: str) -> str:
    """Limit the length of a message. If a recursive function fails, the context may have thousands of lines."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"


def publication_refused(connection: Connection, tables: Sequence[Table]) -> list[Problem]:
    """Return the problems of event triggers that would reject a run's commands on its publication.

    If there are event triggers, this function executes the commands and rolls them back. A wait for a lock takes 1 s at
    most, and a command takes 30 s at most.
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
        # This user has just created the publication, so an event trigger caused these errors. Other checks report
        # tables that the server itself refuses to publish, such as unlogged tables.
        by_trigger = isinstance(error, _PUBLICATION_TAKEN) or not sql.startswith("ALTER")
        if by_trigger and not is_transient(error.sqlstate or ""):
            return [_problem(connection, error, triggers, sql)]
        _log.info("Could not test whether event triggers reject a publication: %s", error_text(error))
    return []


def planned_under(connection: Connection) -> str:
    """Return the search_path for reads that cannot be planned under the pinned path."""
    return ", ".join(part for part in ("pg_catalog", own_path(connection), "pg_temp") if part)


def is_unplannable(error: psycopg.Error | adbc_driver_manager.Error) -> bool:
    """Return whether an error may come from user code that the planner ran or inlined."""
    return not is_transient(error.sqlstate or "") and not is_denied(error.sqlstate or "")


def _is_of_users(error: psycopg.Error) -> bool:
    """Return whether user code, and not the table itself, caused an error.

    Other checks report the errors of the table itself: the table no longer exists, or this user lacks the right to read
    the table or some of its rows. An error with one of these SQLSTATEs comes from user code only if it has a context,
    because only errors in functions have a context.
    """
    of_table = is_denied(error.sqlstate or "") or isinstance(error, _GONE)
    return bool(error.diag.context) if of_table else is_unplannable(error)


_GONE = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName, psycopg.errors.UndefinedColumn)
_FOREIGN = "SELECT oid FROM pg_class WHERE oid = ANY(%s::oid[]) AND relkind = 'f'"


def may_be_read_under_own_path(table: Table) -> bool:
    """Return whether each name in the statements that read a table is qualified.

    Names in the expression of a virtual column are not qualified. The statements contain such an expression if a
    partition may have another expression for the column than its root.
    """
    return not (table.details["kind"] == "p" and any("expression" in column.details for column in table.columns))


def unplannable(connection: Connection, tables: Sequence[Table]) -> list[Problem]:
    """Return a problem for each table on which the server cannot plan a SELECT. The server tries to plan it under the
    pinned search_path and under the user's default search_path.

    :raises psycopg.errors.LockNotAvailable: a lock on a table blocks readers.
    """
    every = [(table, leaf) for table in tables for leaf in leaves(table)]
    # Planning a foreign table may contact the other server. Another check rejects foreign tables.
    foreign = query(connection, _FOREIGN, ([leaf.oid for _, leaf in every],))
    # `safe_views` plans views, after it has checked that they call no user-defined code.
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
                    _log.info(
                        "The run plans %s with search_path = %s, because planning fails with the search_path of the "
                        "run's sessions: %s",
                        leaf.sql,
                        path,
                        error_text(error),
                    )
                    continue
                error = again
            problems[str(table.name)] = _unplannable(connection, table, leaf, error)
    return list(problems.values())


def _planning_error(
    connection: Connection, listed: Sequence[tuple[Table, Leaf]], path: str = ""
) -> psycopg.Error | None:
    selects = [f"(SELECT count(*) FROM ({_select(table, leaf)}) AS r)" for table, leaf in listed]
    try:
        # The rollback releases the locks that planning takes.
        with connection.transaction(force_rollback=True):
            if path:
                set_path(connection, path)
            query(connection, f"EXPLAIN SELECT {', '.join(selects)}")
    except psycopg.Error as error:
        if is_transient(error.sqlstate or ""):
            raise
        return error
    return None


def _select(table: Table, leaf: Leaf) -> str:
    read = table.as_read
    columns = "1" if any(map(unmapped, read.columns)) else select_list(read) or "1"
    return f"SELECT {columns} FROM ONLY {leaf.sql} WHERE ctid OPERATOR(pg_catalog.>=) '(0,0)'::pg_catalog.tid"


# Each row names an index or an extended statistics object of a relation, and a user-defined function that this object
# calls. The call is in an expression or in the condition of the object, and it is direct or through an operator.
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
    grant = (
        f"grant {quote(user)} the privileges that the function needs; or " if is_denied(error.sqlstate or "") else ""
    )
    return Problem(
        str(table.name),
        f"the server cannot plan a SELECT of {leaf.sql}{f': {causes}' if causes else ''}: "
        f"{_shortened(error_text(error))}",
        f"{grant}ALTER FUNCTION {function} SET search_path = …, or qualify the names in its body with their schemas "
        f"(CREATE OR REPLACE FUNCTION does not change the index); or ALTER ROLE {quote(user)} SET search_path = …, "
        "with schemas that contain these names. The role needs USAGE on these schemas",
        str(table.name),
    )
