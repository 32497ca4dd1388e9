"""Why the log reader stops: its errors, each with the place and a hint."""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.errors import (
    CascadeNotLogged,
    CdcError,
    DecodeError,
    ImageNotWhole,
    SchemaChanged,
    UnknownEvent,
)
from airflow_provider_cdc.sources.mysql.log import codes, walk_state

_NEW_RUN = "trigger a new run"
_LEAVE_ALONE = f"leave the definitions of copied tables alone while a run lasts; {_NEW_RUN}"
REPORT = (
    "let mysqlbinlog --verify-binlog-checksum tell whether the file is damaged; if it is not, report this with the "
    "server's version"
)

DAMAGE = {
    walk_state.BAD_CHECKSUM: "an event does not match its checksum",
    walk_state.BAD_LENGTH: "an event has an impossible length",
    walk_state.BAD_POSITION: "an event says that it ends elsewhere in the file, or beyond where the segment does",
    walk_state.BAD_GTID: "a GTID event is malformed",
    walk_state.BAD_ROWS: "a row event is malformed",
}


def touched(statement: str, table: TableName | None, parent: bool, where: str) -> CdcError:
    """A statement changes the definition or the rows of a table.

    :param parent: whether foreign keys carry the table's changes on to a copied one (``cascades``).
    """
    whose = (
        "a table that is being copied, or whose foreign keys reach one" if parent else "a table that is being copied"
    )
    return SchemaChanged(f"{statement} on {whose}", where=f"{table} at {where}", hint=_LEAVE_ALONE)


def logged_as_statement(statement: str, where: str) -> CdcError:
    """Row changes without row images."""
    return ImageNotWhole(
        f"{statement} was logged as a statement, without row images",
        where=where,
        hint="let all sessions use binlog_format=ROW, and what cannot (pt-table-checksum) write to one table of "
        f"another schema, named with it, and call built-in functions only; then {_NEW_RUN}",
    )


def bad_rows(code: int, table: TableName, where: str) -> CdcError:
    """Rows that stop the run, as the code says that ``walk`` returned."""
    where = f"{table} at {where}"
    if code == walk_state.CASCADES:
        return CascadeNotLogged(
            "a row was deleted or got another key, and the server does not log what foreign keys then did to rows of "
            "tables that are being copied and had not been read yet",
            where=where,
            hint=f"{_NEW_RUN}, when rows of this table stay as they are for a minute; MySQL 9.6 and later log it with "
            "innodb_native_foreign_keys=OFF",
        )
    if code == walk_state.OTHERS_CASCADES:
        return CascadeNotLogged(
            "rows were changed as on a server that does not log what foreign keys then do, so these were replicated "
            "from one, or taken from its log; of tables that are being copied some have foreign keys that change rows",
            where=where,
            hint=f"apply nothing from such servers (before MySQL 9.6, or with innodb_native_foreign_keys=ON) while a "
            f"run lasts, then {_NEW_RUN}",
        )
    if code == walk_state.NOT_WHOLE:
        return ImageNotWhole(
            "the row images lack columns",
            where=where,
            hint=f"let all sessions use binlog_row_image=FULL, then {_NEW_RUN}",
        )
    if code == walk_state.DIFFERENCES:
        return ImageNotWhole(
            "a session with binlog_row_value_options=PARTIAL_JSON logged an update, with what changed in its JSON "
            "documents in place of the documents",
            where=where,
            hint="have all sessions that write to the table leave binlog_row_value_options empty (look at my.cnf, "
            f"init_connect and the application), then {_NEW_RUN}",
        )
    return SchemaChanged(
        "the rows have other columns than the table that is being copied", where=where, hint=_LEAVE_ALONE
    )


def unknown(kind: int, where: str) -> CdcError:
    """An event of a type that the reader does not know, or knows to mean trouble."""
    message, hint = {
        codes.ANONYMOUS_GTID: ("a transaction has no GTID", f"set gtid_mode=ON, then {_NEW_RUN}"),
        codes.INCIDENT: (
            "the server notes that events may be missing here",
            f"see the server's error log, then {_NEW_RUN}",
        ),
    }.get(kind, (f"this reader does not know events of type {kind}", REPORT))
    return UnknownEvent(message, where=where, hint=hint)


def out_of_place(kind: int, where: str) -> CdcError:
    """An event where none of its type can be."""
    return UnknownEvent(
        f"an event of type {kind} does not fit the transaction that it stands in", where=where, hint=REPORT
    )


def not_understood(statement: str, where: str) -> CdcError:
    """A statement of unknown effect."""
    return UnknownEvent(f"this reader does not know what the statement {statement!r} does", where=where, hint=REPORT)


def damaged(message: str, where: str) -> DecodeError:
    """Bytes that are not a log."""
    return DecodeError(message, where=where, hint=REPORT)
