"""Maps the driver's errors to errors of this package. Only the error numbers are used, not the texts of the errors,
except for the name and the value of a resource limit.

An error of a statement that reads a single table belongs either to the session, to the server, to the user's
privileges, or to the table (`is_of_table`). A run may leave out a table because of its own errors. All other errors
concern the other tables, too.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pymysql

from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    SchemaChanged,
    SourceUnavailable,
    TableUnreadable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.connection import ConnectionSettings

# Codes: https://dev.mysql.com/doc/mysql-errors/9.7/en/server-error-reference.html
_DENIED = {1044, 1045, 1142, 1143, 1227, 1370, 1410, 1524, 1698, 1820, 1862, 3118, 3159, 3955}
_LOST = {
    0,
    1053,
    1077,
    1152,
    1158,
    1159,
    1160,
    1161,
    1184,
    2002,
    2003,
    2006,
    2013,
    2014,
    2027,
    2055,
    3032,
    3169,
    4031,
}
_INIT_CONNECT_FAILED = 1184
_PASSWORD_EXPIRED = {1820, 1862}
_ACCOUNT_LOCKED = 3118
_BUSY = {1040, 1041, 1203, 1226}
_LIMIT_REACHED = 1226
_LIMIT = re.compile(r"'(max_user_connections|max_questions|max_updates|max_connections_per_hour)'\D*(\d*)")
"""The resource limit that error 1226 names, and its value. The name is the same in all languages of the server."""
_CLAUSES = {
    "max_user_connections": "MAX_USER_CONNECTIONS",
    "max_questions": "MAX_QUERIES_PER_HOUR",
    "max_updates": "MAX_UPDATES_PER_HOUR",
    "max_connections_per_hour": "MAX_CONNECTIONS_PER_HOUR",
}
"""For each resource limit, its name in ALTER USER."""
_FEWEST_SESSIONS = 2
"""The number of sessions that a run needs at the same time: one that asks, and one that reads the log."""
LOCK_WAIT_TIMEOUT = 1205
INTERRUPTED = (1317, 3024)
"""The error numbers for a statement that was ended, or that exceeded its time limit."""
_TRY_AGAIN = {LOCK_WAIT_TIMEOUT, 1213, 1317, 1412, 3024, 3058}
RESULT_TOO_LONG = 1301
_TOO_LARGE = {1153, 1162, RESULT_TOO_LONG, 2020}
"""The error numbers for a statement, or a result of a function, that is larger than the server's max_allowed_packet."""
UNOPENABLE_PARTITIONS = 1563
"""The error number for a table whose partitions have bounds below zero, although the partition expression is unsigned
in the session's ``sql_mode``."""
UNOPENABLE_HINT = (
    "partition the table by an expression that is never negative, or make its columns signed, or leave the table out"
)
_CHANGED = {1049, 1051, 1054, 1146, 1176}
_FIRST_OF_SERVER, _OF_CLIENT = 1000, range(2000, 3000)
"""Error numbers below the first one are errors of the server's files. Those in the range are errors of the driver."""
_OF_SERVER = {1015, 1016, 1021, 1023, 1024, 1030, 1037, 1038, 1105, 1114, 1135, 1206, 3170}
"""Errors that a server may report for any table: its disk is full, it has no memory or too few file descriptors, or its
storage engine failed. 1030 has the storage engine's own number, which may stand for both."""
_OF_STATEMENT = {1064, 1149, 1235}
"""Errors in the text of a statement."""
_TABLE_HINT = "repair or restore the table (see the server's error log), or leave the table out"


def is_of_table(error: pymysql.MySQLError) -> bool:
    """Return whether an error of a statement that reads a single table belongs to this table: for example, its
    tablespace is discarded or missing, its encryption key is not in the keyring, or its partitions cannot be opened.

    All errors that are not known to belong to something else belong to the table.
    """
    code, _ = _code_and_text(error)
    elsewhere = _DENIED | _LOST | _BUSY | _TRY_AGAIN | _TOO_LARGE | _CHANGED | _OF_SERVER | _OF_STATEMENT
    return code >= _FIRST_OF_SERVER and code not in _OF_CLIENT and code not in elsewhere


def table_error(name: str, error: pymysql.MySQLError) -> TableUnreadable:
    """Convert an error that belongs to the table ``name`` (`is_of_table`) to an error of this package."""
    code, text = _code_and_text(error)
    return TableUnreadable(
        f"the server cannot read the table: {text} (MySQL error {code})",
        where=name,
        hint=UNOPENABLE_HINT if code == UNOPENABLE_PARTITIONS else _TABLE_HINT,
    )


@contextmanager
def mapped_errors(where: str, *, table: str = "") -> Iterator[None]:
    """Replace errors of the driver in the block by errors of this package.

    :param where: the object that the block works on, for the message.
    :param table: the table, if the statements in the block read a single table.
    :raises TableUnreadable: the server cannot read ``table``.
    :raises SourceUnavailable: the session broke, or the server or the user has too many sessions.
    :raises ConfigurationError: a privilege is missing, or max_allowed_packet is too small.
    :raises SchemaChanged: a table, column or index no longer exists.
    """
    try:
        yield
    except CdcError:
        raise
    except pymysql.MySQLError as error:
        raise (table_error(table, error) if table and is_of_table(error) else statement_error(where, error)) from error
    except OSError as error:
        # These errors come from code that reads the socket directly.
        raise SourceUnavailable(
            f"the connection broke: {error}", where=where, hint="the task can be retried as it is"
        ) from error


def statement_error(where: str, error: pymysql.MySQLError) -> CdcError:
    """Convert the driver's error to an error of this package. ``where`` is the object that the statement was about."""
    code, text = _code_and_text(error)
    message = f"{text} (MySQL error {code})"
    if code in _PASSWORD_EXPIRED:
        return ConfigurationError(message, where=where, hint="give the connection's user a new password (ALTER USER)")
    if code == _ACCOUNT_LOCKED:
        return ConfigurationError(message, where=where, hint="ALTER USER … ACCOUNT UNLOCK, for the connection's user")
    if code in _DENIED:
        return ConfigurationError(
            message,
            where=where,
            hint="grant the missing privilege to the user of this connection; the log of the task `preflight` shows "
            "the GRANT statement",
        )
    if code in _TOO_LARGE:
        return ConfigurationError(
            message,
            where=where,
            hint="raise max_allowed_packet on the server",
        )
    if code in _CHANGED:
        return SchemaChanged(message, where=where, hint="the table changed since the run began: trigger a new run")
    if code == UNOPENABLE_PARTITIONS:
        return ConfigurationError(message, where=where, hint=UNOPENABLE_HINT)
    if 0 < code < _FIRST_OF_SERVER or code in _OF_SERVER:
        return TransientError(
            message, where=where, hint="see the server's error log; the task can be retried once this is corrected"
        )
    if code in _TRY_AGAIN:
        return TransientError(message, where=where, hint="the task can be retried as it is")
    if code == _LIMIT_REACHED and (limit := _LIMIT.search(text)) is not None:
        name, most = limit[1], int(limit[2] or 0)
        if name != "max_user_connections" or 0 < most < _FEWEST_SESSIONS:
            return ConfigurationError(
                message,
                where=where,
                hint=f"raise or remove the limit of the connection's user (ALTER USER … WITH {_CLAUSES[name]} 0). A "
                f"run needs at least {_FEWEST_SESSIONS} sessions at once, and a session for each task that reads",
            )
    if code in _BUSY:
        return SourceUnavailable(message, where=where, hint="let fewer Spark tasks run at once, or raise the limit")
    if code in _LOST:
        message = message if text else "the session is closed"
        return SourceUnavailable(message, where=where, hint="the task can be retried once the server answers again")
    return TerminalError(message, where=where, hint="look up the error in the server's manual and in its error log")


def has_no_room(error: BaseException | None) -> bool:
    """Return whether the only reason why the server rejected a session is a limit on the number of sessions, for the
    server or for the user."""
    cause = error.__cause__ if error is not None else None
    return isinstance(cause, pymysql.MySQLError) and _code_and_text(cause)[0] in _BUSY


def connect_error(settings: ConnectionSettings, error: pymysql.MySQLError) -> CdcError:
    """Convert an error of the driver during the login to an error of this package."""
    code, text = _code_and_text(error)
    where = settings.address
    cause = getattr(error, "original_exception", None)
    if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
        return ConfigurationError(f"unknown host {settings.host!r}", where=where, hint="correct the host")
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ConfigurationError(
            f"the server's certificate cannot be trusted: {cause.verify_message}",
            where=where,
            hint="in the field `tls_ca`, enter the authority that signed the certificate; or connect with the host "
            "name that is in the certificate",
        )
    if isinstance(cause, ssl.SSLError) or code == 2026:
        return ConfigurationError(
            f"no encrypted connection could be made: {cause or text}",
            where=where,
            hint="enable TLS on the server, or choose another mode in the field `tls_mode`",
        )
    if code == 1045:
        message, hint = "the server refuses this user or password", "correct the connection's login and password"
        if not settings.tls.get("cert"):
            # The server reports the same error for both.
            message += ", or the account requires a client certificate (REQUIRE X509)"
            hint += ", or enter a client certificate in the fields `tls_cert` and `tls_key`"
        return ConfigurationError(message, where=where, hint=hint)
    if code == 3159:
        return ConfigurationError(
            "the server accepts only encrypted connections", where=where, hint="set the field `tls_mode` to required"
        )
    if code == 1049:
        return ConfigurationError(
            f"there is no database {settings.database!r}",
            where=where,
            hint="correct the connection's schema, or clear it",
        )
    if code in (1129, 1130):
        return ConfigurationError(
            f"{text} (MySQL error {code})",
            where=where,
            hint="allow connections from this machine in the host part of the user's account",
        )
    if code == _INIT_CONNECT_FAILED and "init_connect" in text:
        return SourceUnavailable(
            text,
            where=where,
            hint="see the server's error log for the reason. Then correct init_connect on the server, grant or create "
            "what init_connect needs, or exempt this user from init_connect (GRANT CONNECTION_ADMIN ON *.*)",
        )
    if code in _LOST and code != 0:
        return SourceUnavailable(
            f"the server does not answer: {cause or text}",
            where=where,
            hint="start the server, or correct host and port",
        )
    return statement_error(where, error)


def _code_and_text(error: pymysql.MySQLError) -> tuple[int, str]:
    code, text = (*error.args, 0, "")[:2] if len(error.args) != 1 else (0, error.args[0])
    return (code, str(text)) if isinstance(code, int) else (0, str(code))
