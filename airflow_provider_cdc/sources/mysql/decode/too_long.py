"""Detects values that the server did not send because they are longer than its ``max_allowed_packet``.

The server sends NULL for the result of a function (of a VIRTUAL column, for example), and an empty text for a JSON
document. The statement does not fail; it only has a warning. The log has no such limit, so without this check a copy
would have the document in some rows and nothing in others.
"""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.mysql.decode.stream import MOST_WARNINGS
from airflow_provider_cdc.sources.mysql.server.driver_errors import RESULT_TOO_LONG
from airflow_provider_cdc.sources.mysql.server.session import Connection, query


def check_whole(connection: Connection, table: Table, warnings: int) -> None:
    """Check the warnings of the statement that has just ended: none may say that a value was left out.

    :param warnings: the number of warnings that the server counted.
    :raises ConfigurationError: a value was left out, or there were too many warnings to know.
    """
    listed = query(connection, "SHOW WARNINGS")
    if messages := [str(text) for _, code, text in listed if code == RESULT_TOO_LONG]:
        raise ConfigurationError(
            f"a value is too long for the server to send: {messages[0]} (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint="raise max_allowed_packet on the server, to at most 1G; if the value is longer, leave its column out",
        )
    if (len(listed) < warnings or warnings >= MOST_WARNINGS) and _may_be_left_out(table):
        raise ConfigurationError(
            f"the server warned {warnings:,} times or more about the rows of one chunk, and lists {len(listed):,} "
            f"of the warnings: another may say that a value was left out (MySQL warning {RESULT_TOO_LONG})",
            where=str(table.name),
            hint="copy with a smaller chunk_rows, or leave out the VIRTUAL column that is warned of: "
            + (str(listed[0][2]) if listed else "SHOW WARNINGS after a SELECT of the table names it"),
        )


def _may_be_left_out(table: Table) -> bool:
    return any(column.type == "json" or column.details.get("generated") == "virtual" for column in table.columns)
