"""The privileges of a session's user, and the GRANT statements for missing privileges.

If a harmless statement can test a privilege, the privilege is tested with this statement. In this way, roles, partial
revokes and all other rules of the server apply. The other privileges are read from SHOW GRANTS, which includes the
privileges of active roles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pymysql

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.driver import (
    INTERRUPTED,
    UNOPENABLE_HINT,
    UNOPENABLE_PARTITIONS,
    is_of_table,
    table_error,
)
from airflow_provider_cdc.sources.mysql.server.log_history import log_status_statement
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, quote, table_sql, value

_DENIED = {1044, 1142, 1143, 1227}
_NO_GRANT_TABLES = 1290

_BRIEFLY = "/*+ MAX_EXECUTION_TIME(2000) */"
"""The server may have to pass many deleted rows before the first row. If that takes long, the table can be read."""

_NAME = r"(?:\*|`(?:[^`]|``)*`)"
_GRANT = re.compile(rf"(GRANT|REVOKE) (.+) ON ({_NAME})\.({_NAME}) (?:TO|FROM) .*", re.DOTALL)
_COLUMNS = re.compile(r" \([^)]*\)")


@dataclass(frozen=True)
class _Grant:
    """One line of SHOW GRANTS, without the privileges on single columns. The names in the line are quoted."""

    revoked: bool
    privileges: frozenset[str]
    schema: str
    table: str


class Privileges:
    """The privileges of the session's user, including the privileges of active roles."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._account = account(connection)
        self._literal = bool(value(connection, "@@global.partial_revokes"))
        try:
            lines = [str(line) for (line,) in query(connection, "SHOW GRANTS")]
        except pymysql.OperationalError as error:
            if error.args[0] != _NO_GRANT_TABLES:
                raise
            lines = ["GRANT ALL PRIVILEGES ON *.* TO everybody"]
        self._grants = [grant for line in lines if (grant := _parse(line))]

    def server_problems(self) -> list[Problem]:
        """Return a problem for each missing privilege that a run needs to query the end of the log and to read the
        log."""
        return [
            Problem(
                privilege,
                f"this user lacks the privilege, and {reason}",
                f"GRANT {privilege} ON *.* TO {self._account}",
            )
            for privilege, statement, reason in (
                ("REPLICATION CLIENT", log_status_statement(self._connection), "cannot query the end of the log"),
                ("REPLICATION SLAVE", "SHOW REPLICAS", "cannot read the log"),
            )
            if not self._may(statement)
        ]

    def select_problem(self, name: TableName) -> Problem | None:
        """Return a problem if a privilege for reading the whole table is missing, or if the server cannot open the
        table.

        From the list of a table's columns, the server silently omits columns for which the user lacks the privilege.
        """
        try:
            may = self._may(f"SELECT * FROM {table_sql(name)} LIMIT 0")
        except pymysql.MySQLError as error:
            return self._problem_of_table(name, error)
        if may and self._granted("SELECT", name):
            return None
        return Problem(
            str(name),
            "this user lacks SELECT on the table or on some of its columns",
            f"GRANT SELECT ON {table_sql(name)} TO {self._account}",
        )

    def read_problem(self, name: TableName) -> Problem | None:
        """Return a problem as `select_problem` does, or if the server cannot read the table.

        The server opens a table with a discarded tablespace, and only the read of a row fails.
        """
        if (problem := self.select_problem(name)) is not None:
            return problem
        try:
            query(self._connection, f"SELECT {_BRIEFLY} 1 FROM {table_sql(name)} LIMIT 1")
        except pymysql.MySQLError as error:
            return None if error.args[0] in INTERRUPTED else self._problem_of_table(name, error)
        return None

    def _problem_of_table(self, name: TableName, error: pymysql.MySQLError) -> Problem:
        """Return the problem if ``error`` belongs to the table. Otherwise, raise it again."""
        if error.args[0] == UNOPENABLE_PARTITIONS:
            return self._unopenable(name)
        if not is_of_table(error):
            raise error
        found = table_error(str(name), error)
        return Problem(found.where, found.message, found.hint, found.where)

    def sees_triggers(self, name: TableName) -> bool:
        """Return whether the server shows the table's triggers to the user.

        A query for triggers cannot answer this question. If the result of the query is empty, either the table has no
        triggers, or the triggers are hidden.
        """
        # If several schema-level grants match, the server applies only the most specific grant.
        on_schema = [
            grant
            for grant in self._grants
            if not grant.revoked and grant.table == "*" != grant.schema and self._covers(grant.schema, name.schema)
        ]
        unsure = any(not grant.privileges & {"TRIGGER", "ALL PRIVILEGES"} for grant in on_schema)
        return self._granted("TRIGGER", name, but=on_schema if unsure else ())

    def lock_problems(self, names: Sequence[TableName]) -> list[Problem]:
        """Return a problem for each missing privilege that a run needs to lock these tables."""
        lacking = [name for name in names if not self._granted("LOCK TABLES", name)]
        return [
            Problem(
                ", ".join(str(name) for name in lacking if name.schema == schema),
                "the consistency `lock` needs the privilege LOCK TABLES, which this user lacks",
                f"GRANT LOCK TABLES ON {quote(schema)}.* TO {self._account}",
            )
            for schema in dict.fromkeys(name.schema for name in lacking)
        ]

    def _unopenable(self, name: TableName) -> Problem:
        # If a session with another sql_mode has opened such a table, the server may keep the table open for all
        # sessions. As long as the table is open, this session gets no error for the table.
        expressions = query(
            self._connection,
            "SELECT DISTINCT PARTITION_EXPRESSION FROM information_schema.PARTITIONS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (name.schema, name.name),
        )
        return Problem(
            str(name),
            "partitions of the table have bounds below zero, and "
            f"{', '.join(str(expression) for (expression,) in expressions)} is unsigned. The server opens such a "
            "table only for sessions with the sql_mode NO_UNSIGNED_SUBTRACTION, and the sessions of a run do not have "
            "this mode",
            UNOPENABLE_HINT,
            str(name),
        )

    def _may(self, statement: str) -> bool:
        try:
            query(self._connection, statement)
        except pymysql.MySQLError as error:
            if error.args[0] in _DENIED:
                return False
            raise
        return True

    def _granted(self, privilege: str, name: TableName, but: Sequence[_Grant] = ()) -> bool:
        """Return whether the privilege is granted globally, on the schema or on the whole table. The grants in ``but``
        are ignored."""
        matching = [
            grant
            for grant in self._grants
            if grant.privileges & {privilege, "ALL PRIVILEGES"}
            and grant not in but
            and grant.table in ("*", quote(name.name))
            and (grant.schema == "*" or self._covers(grant.schema, name.schema))
        ]
        # A partial revoke excludes a schema from the global grants. A grant on that schema would have removed the
        # partial revoke.
        if any(grant.revoked for grant in matching):
            matching = [grant for grant in matching if grant.schema != "*"]
        return any(not grant.revoked for grant in matching)

    def _covers(self, quoted: str, schema: str) -> bool:
        pattern = quoted[1:-1].replace("``", "`")
        if self._literal:
            return pattern == schema
        parts = re.findall(r"\\.|.", pattern, re.DOTALL)
        expression = "".join(".*" if part == "%" else "." if part == "_" else re.escape(part[-1:]) for part in parts)
        return re.fullmatch(expression, schema, re.DOTALL) is not None


def _parse(line: str) -> _Grant | None:
    match = _GRANT.fullmatch(line)
    if match is None:
        # The line grants a role or a privilege on a routine. The server lists the privileges of a role in other lines,
        # and this package needs no privileges on routines.
        return None
    verb, privileges, schema, table = match.groups()
    whole = frozenset(item.strip() for item in _split(privileges) if not _COLUMNS.search(item))
    return _Grant(verb == "REVOKE", whole, schema, table)


def _split(privileges: str) -> list[str]:
    """Split the text at the commas between privileges, but not at the commas between the columns of one privilege."""
    return re.findall(r"(?:[^,(]|\([^)]*\))+", privileges)
