"""Detects values that the server left out because they are longer than its ``max_allowed_packet``.

Instead of such a value, the server returns NULL for the result of a function (for example, in a VIRTUAL column), and
the empty text for a JSON document. The statement does not fail; the server only adds a warning. The log has no such
limit. So a copy would contain the value in rows from the log, but not in rows from a SELECT.
"""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.mysql.decode.stream import MOST_WARNINGS
from airflow_provider_cdc.sources.mysql.server.driver_errors import RESULT_TOO_LONG
from airflow_provider_cdc.sources.mysql.server.session import Connection, query
from airflow_provider_cdc.sources.mysql.tables.generated import has_bounded_results


def check_whole(connection: Connection, table: Table, warnings: int) -> None:
    """Check the warnings of the last statement, to make sure that the server left out no value in the result.

    :param warnings: the number of warnings.
    :raises ConfigurationError: a value was left out, or the statement had too many warnings to exclude this.
    """
    listed = query(connection, "SHOW WARNINGS")
    if messages := [str(text) for _, code, text in listed if code == RESULT_TOO_LONG]:
        raise ConfigurationError(
            f"a value is too long for the server to send: {messages[0]} (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint="raise max_allowed_packet on the server, to at most 1G; if the value is longer than that, leave its "
            "column out",
        )
    listed_all = len(listed) == warnings < MOST_WARNINGS
    if not listed_all and _may_be_left_out(connection, table):
        raise ConfigurationError(
            f"a SELECT had {warnings:,} warnings, of which the server lists {len(listed):,}: another may say that a "
            f"value was left out because it is longer than max_allowed_packet (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint=f"raise max_error_count on the server (to at most {MOST_WARNINGS - 1}), decrease the option "
            "`chunk_rows`, or leave out the VIRTUAL column that causes the warnings"
            + (f": {listed[0][2]}" if listed else ""),
        )


def _may_be_left_out(connection: Connection, table: Table) -> bool:
    virtual = {column.name for column in table.columns if column.details.get("generated") == "virtual"}
    expressions = query(
        connection,
        "SELECT COLUMN_NAME, GENERATION_EXPRESSION FROM information_schema.COLUMNS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (table.name.schema, table.name.name),
    )
    return any(column.type == "json" for column in table.columns) or not all(
        has_bounded_results(str(expression)) for name, expression in expressions if name in virtual
    )
