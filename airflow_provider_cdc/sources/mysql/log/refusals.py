"""The errors that stop the log reader. Each error has a position and a hint."""

from __future__ import annotations

from collections.abc import Collection

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import (
    CascadeNotLogged,
    CdcError,
    DecodeError,
    ExactnessError,
    ImageNotWhole,
    SchemaChanged,
    UnknownEvent,
)
from airflow_provider_cdc.sources.mysql.log import walk_state
from airflow_provider_cdc.sources.mysql.log.statements.meaning import Effect, Meaning
from airflow_provider_cdc.sources.mysql.server import log_protocol

_NEW_RUN = "trigger a new run"
_LEAVE_ALONE = f"do not change the definitions of copied tables during a run; {_NEW_RUN}"
REPORT = (
    "check with mysqlbinlog --verify-binlog-checksum whether the file is damaged; if it is not, report this with the "
    "server's version"
)

DAMAGE = {
    walk_state.BAD_CHECKSUM: "an event does not match its checksum",
    walk_state.BAD_LENGTH: "an event has an impossible length",
    walk_state.BAD_POSITION: "an event's end position does not match its place in the file, or is outside the segment",
    walk_state.BAD_GTID: "a GTID event is malformed",
    walk_state.BAD_ROWS: "a row event is malformed",
}


def of_statement(found: Meaning, parents: Collection[TableName], where: str) -> CdcError | None:
    """Return the error for a logged statement. None: the statement does not stop the run.

    :param parents: tables whose changes foreign keys propagate to copied tables (``cascades``).
    """
    if found.effect is Effect.TOUCHES:
        return touched(found.described, found.table, found.table in parents, where)
    if found.effect is Effect.ROW_CHANGE:
        return logged_as_statement(found.statement, where)
    if found.effect is Effect.NOT_UNDERSTOOD:
        return not_understood(found.statement, where, found.detail)
    return None


def touched(statement: str, table: TableName | None, parent: bool, where: str) -> CdcError:
    """Return the error for a logged statement that changes the definition or the rows of a table.

    :param parent: whether foreign keys propagate the table's changes to a copied table (``cascades``).
    """
    whose = (
        "a table that is being copied, or whose foreign keys reach one" if parent else "a table that is being copied"
    )
    return SchemaChanged(f"{statement} on {whose}", where=f"{table} at {where}", hint=_LEAVE_ALONE)


def logged_as_statement(statement: str, where: str) -> CdcError:
    """Return the error for row changes that were logged without row images."""
    return ImageNotWhole(
        f"{statement} was logged as a statement, without row images",
        where=where,
        hint="use binlog_format=ROW in every session. A tool that needs another format (such as pt-table-checksum) "
        "may write to one table in another schema, if its statements give the name of this table with the "
        f"schema and call only built-in functions. Then {_NEW_RUN}",
    )


def bad_rows(code: int, table: TableName, where: str) -> CdcError:
    """Return the error for rows that stop the run. ``code`` is the value that ``walk`` returned."""
    where = f"{table} at {where}"
    if code == walk_state.CASCADES:
        return CascadeNotLogged(
            "a row was deleted or its key was changed. Through foreign keys, this may change rows of copied tables "
            "that had not been read yet, and the server does not log such changes",
            where=where,
            hint=f"{_NEW_RUN} at a time when the rows of this table do not change for a minute. MySQL 9.6 and later "
            "log the effects of foreign keys with innodb_native_foreign_keys=OFF",
        )
    if code == walk_state.OTHERS_CASCADES:
        return CascadeNotLogged(
            "this server logs the row changes of foreign key actions, but for some changes, the log lacks them. "
            "These changes come from a server that does not log foreign key actions: they were replicated, or "
            "applied from its log. Some copied tables have foreign keys that change rows",
            where=where,
            hint="during a run, do not apply changes from a server that is older than MySQL 9.6 or has "
            f"innodb_native_foreign_keys=ON; then {_NEW_RUN}",
        )
    if code == walk_state.NOT_WHOLE:
        return ImageNotWhole(
            "the row images lack columns",
            where=where,
            hint=f"use binlog_row_image=FULL in every session, then {_NEW_RUN}",
        )
    if code == walk_state.DIFFERENCES:
        return ImageNotWhole(
            "a session with binlog_row_value_options=PARTIAL_JSON logged an update with differences instead of whole "
            "JSON documents",
            where=where,
            hint="leave binlog_row_value_options empty in every session that writes to the table (check my.cnf, "
            f"init_connect and the application), then {_NEW_RUN}",
        )
    return SchemaChanged(
        "the rows do not have the columns of the table that is being copied", where=where, hint=_LEAVE_ALONE
    )


def unknown(kind: int, where: str) -> CdcError:
    """Return the error for an event of an unknown type, or of a type that reports a problem."""
    message, hint = {
        log_protocol.ANONYMOUS_GTID: ("a transaction has no GTID", f"set gtid_mode=ON, then {_NEW_RUN}"),
        log_protocol.INCIDENT: (
            "the server recorded that events may be missing here",
            f"check the server's error log, then {_NEW_RUN}",
        ),
    }.get(kind, (f"events of type {kind} are not supported", REPORT))
    return UnknownEvent(message, where=where, hint=hint)


def out_of_place(kind: int, where: str) -> CdcError:
    """Return the error for an event at a place where its type is not allowed."""
    return UnknownEvent(
        f"an event of type {kind} is not allowed at this point of the transaction", where=where, hint=REPORT
    )


def not_understood(statement: str, where: str, why: str = "") -> CdcError:
    """Return the error for a statement whose effect is unknown.

    :param why: why the text of the statement cannot be read.
    """
    message = f"the effect of the statement {statement!r} is not known"
    if not why:
        return UnknownEvent(message, where=where, hint=REPORT)
    return UnknownEvent(
        f"{message}, because {why}, and it may concern a copied table",
        where=where,
        hint=f"{_NEW_RUN}, which begins after the statement; run such statements with SET NAMES utf8mb4",
    )


def written_on_replica(where: str) -> ExactnessError:
    """Return the error for a transaction that a session of the replica committed whose log is read."""
    return ExactnessError(
        "a session on the replica (`Read.log_conn_id`) committed this transaction, so the log of the replica is not "
        "that of the source",
        where=where,
        hint=f"build the replica anew from the source, or leave `Read.log_conn_id` empty; then {_NEW_RUN}",
    )


def damaged(message: str, where: str) -> DecodeError:
    """Return the error for damaged log data."""
    return DecodeError(message, where=where, hint=REPORT)
