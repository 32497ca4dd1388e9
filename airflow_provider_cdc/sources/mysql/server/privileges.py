"""What the user of a session may do, and the GRANT that is missing for what it may not.

What can be tried without harm is tried, so roles, partial revokes and whatever else counts for the server count here.
The rest is read from SHOW GRANTS, which includes the privileges of active roles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pymysql

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import Problem
from airflow_provider_cdc.sources.mysql.server.log_history import log_status_statement
from airflow_provider_cdc.sources.mysql.server.session import Connection, account, query, quote, value
from airflow_provider_cdc.sources.mysql.tables.schema import table_sql

_DENIED = {1044, 1142, 1143, 1227}
_NO_GRANT_TABLES = 1290

_NAME = r"(?:\*|`(?:[^`]|``)*`)"
_GRANT = re.compile(rf"(GRANT|REVOKE) (.+) ON ({_NAME})\.({_NAME}) (?:TO|FROM) .*", re.DOTALL)
_COLUMNS = re.compile(r" \([^)]*\)")


@dataclass(frozen=True)
class _Grant:
    """One line of SHOW GRANTS: privileges on whole objects, those on single columns left out. Names are as quoted."""

    revoked: bool
    privileges: frozenset[str]
    schema: str
    table: str


class Privileges:
    """The privileges of the session's user, active roles included."""

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
        """What is missing to see where the log ends and to read it."""
        return [
            Problem(privilege, f"this user lacks it, and {reason}", f"GRANT {privilege} ON *.* TO {self._account}")
            for privilege, statement, reason in (
                ("REPLICATION CLIENT", log_status_statement(self._connection), "cannot ask where the log ends"),
                ("REPLICATION SLAVE", "SHOW REPLICAS", "cannot read the log"),
            )
            if not self._may(statement)
        ]

    def select_problem(self, name: TableName) -> Problem | None:
        """What is missing to read the whole table: columns that the user may not see would be missed without a word."""
        if self._may(f"SELECT * FROM {table_sql(name)} LIMIT 0") and self._granted("SELECT", name):
            return None
        return Problem(
            str(name),
            "this user lacks SELECT on the table or on some of its columns",
            f"GRANT SELECT ON {table_sql(name)} TO {self._account}",
        )

    def sees_triggers(self, name: TableName) -> bool:
        """Whether the server tells this user of the table's triggers. It cannot be tried: to see none is no answer."""
        # Of several grants on schemas that match, the server goes by the most exact one alone.
        on_schema = [
            grant
            for grant in self._grants
            if not grant.revoked and grant.table == "*" != grant.schema and self._covers(grant.schema, name.schema)
        ]
        unsure = any(not grant.privileges & {"TRIGGER", "ALL PRIVILEGES"} for grant in on_schema)
        return self._granted("TRIGGER", name, but=on_schema if unsure else ())

    def lock_problems(self, names: Sequence[TableName]) -> list[Problem]:
        """What is missing to lock these tables."""
        lacking = [name for name in names if not self._granted("LOCK TABLES", name)]
        return [
            Problem(
                ", ".join(str(name) for name in lacking if name.schema == schema),
                "to be read with lock, for which this user lacks LOCK TABLES",
                f"GRANT LOCK TABLES ON {quote(schema)}.* TO {self._account}",
            )
            for schema in dict.fromkeys(name.schema for name in lacking)
        ]

    def _may(self, statement: str) -> bool:
        try:
            query(self._connection, statement)
        except pymysql.MySQLError as error:
            if error.args[0] in _DENIED:
                return False
            raise
        return True

    def _granted(self, privilege: str, name: TableName, but: Sequence[_Grant] = ()) -> bool:
        """Whether it is granted on everything, the schema or the whole table, ``but`` for these grants."""
        matching = [
            grant
            for grant in self._grants
            if grant.privileges & {privilege, "ALL PRIVILEGES"}
            and grant not in but
            and grant.table in ("*", quote(name.name))
            and (grant.schema == "*" or self._covers(grant.schema, name.schema))
        ]
        # A partial revoke takes a schema out of what is granted on everything; a grant on it would have undone that.
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
        # A granted role: what it brings stands in lines of its own. Or a routine, which is not read.
        return None
    verb, privileges, schema, table = match.groups()
    whole = frozenset(item.strip() for item in _split(privileges) if not _COLUMNS.search(item))
    return _Grant(verb == "REVOKE", whole, schema, table)


def _split(privileges: str) -> list[str]:
    """At the commas between privileges, not at those between the columns of one."""
    return re.findall(r"(?:[^,(]|\([^)]*\))+", privileges)
