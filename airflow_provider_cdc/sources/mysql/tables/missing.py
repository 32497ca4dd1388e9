"""Names the table that is missing, if a statement about several tables fails because one of them does not exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pymysql

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import TransientError
from airflow_provider_cdc.sources.mysql.server.session import Connection
from airflow_provider_cdc.sources.mysql.tables.schema import missing, select_of_tables

_NO_TABLE = (1049, 1146)
"""The error numbers for a database and for a table that does not exist."""


@contextmanager
def naming_missing_tables(connection: Connection, names: Sequence[TableName]) -> Iterator[None]:
    """Replace the error for a table that does not exist. The run may leave this table out if the error names it.

    :param names: the tables that the statements in the block name.
    :raises SchemaChanged: a table does not exist.
    :raises TransientError: a table did not exist for a moment, as when another table takes its name.
    """
    try:
        yield
    except pymysql.MySQLError as error:
        if error.args[0] not in _NO_TABLE:
            raise
        there = {TableName(schema, name) for schema, name, _ in select_of_tables(connection, names, "1", "TABLES")}
        for name in names:
            if name not in there:
                raise missing(name) from error
        what, where = "a table was missing for a moment", ", ".join(map(str, names))
        raise TransientError(what, where=where, hint="the task can be retried as it is") from error
