"""Sessions: opened with every setting that could bend a read pinned down, and the drivers' errors as ours.

Two drivers speak to the server. psycopg is for control: it asks, records, and opens replication connections. ADBC reads
tables and the log, as Arrow. Both take the same parameters of libpq, from one place.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from urllib.parse import quote as percent
from urllib.parse import urlencode

import adbc_driver_manager
import psycopg
import pyarrow as pa
from adbc_driver_manager import _reader
from adbc_driver_postgresql import dbapi

from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LogGone,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog import types
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.connect_errors import NO_CLEARTEXT, connect_error
from airflow_provider_cdc.sources.session.trust import trust_in, without_frames

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
ReadingConnection: TypeAlias = "dbapi.Connection"

OLDEST_VERSION = 15
CONNECT_SECONDS = 15
APPLICATION = "airflow-provider-cdc"
BATCH_BYTES = 8 * 2**20

TLS_MODES: Mapping[str, str] = {
    "disabled": "disable",
    "preferred": "prefer",
    "required": "require",
    "verify_ca": "verify-ca",
    "verify_identity": "verify-full",
}
"""The modes of ``ConnectionSettings.tls``, and what libpq calls them."""

# States: https://www.postgresql.org/docs/current/errcodes-appendix.html
_DENIED = ("42501", "28")
_CHANGED = ("42P01", "42703", "42704", "3F000", "3D000", "42883")
_TRY_AGAIN = ("40", "55P03", "55006", "57014")
_BUSY = ("53",)
_TOO_LARGE = "54000"
_LIMITED = "53400"
_LOST = ("08", "57P", "25P03", "25P04", "XX000")
_VIEW_GONE = ("22023", "42704", "55000", "58P01")
_SLOT_GONE = ("42704", "55000", "58P01")
_REQUIRES_AUTH = 160_000
CHANNEL_BINDING = "channel_binding"
"""The field of ``ConnectionSettings.tls`` that is libpq's parameter of this name."""


def connect(settings: ConnectionSettings, *, replication: bool = False) -> Connection:
    """Open a control session in autocommit, with nothing inherited that could change or cut a result.

    :param replication: a connection that also takes the commands of the replication protocol.
    :raises SourceUnavailable: the server does not answer or has no session to spare.
    :raises ConfigurationError: the host is unknown, TLS or the credentials are refused, or the server is not
        PostgreSQL 15 or later.
    """
    more = {"replication": "database"} if replication else {}
    try:
        connection = psycopg.connect(
            autocommit=True,
            prepare_threshold=None,
            **(parameters(settings) | more),  # type: ignore[arg-type]
        )
    except psycopg.Error as error:
        raise connect_error(settings, parameters(settings) | more, str(error)) from without_frames(error)
    try:
        with mapped_errors(settings.address):
            if connection.info.server_version < OLDEST_VERSION * 10_000:
                raise ConfigurationError(
                    f"the server is version {connection.info.server_version // 10_000}; "
                    f"PostgreSQL {OLDEST_VERSION} or later is needed",
                    where=settings.address,
                    hint="upgrade the server",
                )
            (row,) = query(connection, session_setup.statement(settings))
            session_setup.check(settings, row)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def session(settings: ConnectionSettings, *, replication: bool = False) -> Iterator[Connection]:
    """A session as ``connect`` opens it, closed at the end, with errors mapped."""
    connection = connect(settings, replication=replication)
    try:
        with mapped_errors(settings.address):
            yield connection
    finally:
        connection.close()


@contextmanager
def reading_session(settings: ConnectionSettings) -> Iterator[ReadingConnection]:
    """An ADBC session in autocommit under the same settings, closed at the end, with errors mapped.

    What it reads comes as ``COPY … (FORMAT binary)``, so its statements must be ones that COPY takes, without
    parameters; others (BEGIN, SET) may be run as well, if they return nothing.
    """
    try:
        connection = dbapi.connect(_uri(parameters(settings)), autocommit=True)
    except adbc_driver_manager.Error as error:
        raise connect_error(settings, parameters(settings), str(error)) from without_frames(error)
    try:
        with mapped_errors(settings.address):
            (batch,) = read(connection, session_setup.statement(settings))
            session_setup.check(settings, [column[0].as_py() for column in batch.columns])
            yield connection
    finally:
        connection.close()


def _uri(arguments: dict[str, str]) -> str:
    """The parameters as ADBC takes them."""
    where = {name: arguments.pop(name) for name in ("user", "password", "host", "port", "dbname")}
    login = f"{percent(where['user'], '')}:{percent(where['password'], '')}"
    # An IPv6 address is written in brackets, and so is told from its port; a path of a socket is escaped.
    host = f"[{where['host']}]" if ":" in where["host"] else percent(where["host"], "")
    uri = f"postgresql://{login}@{host}:{where['port']}/{percent(where['dbname'], '')}"
    return f"{uri}?{urlencode(arguments, quote_via=percent)}"


# Servers before 17 do not know it, and would refuse a session that sets it; ADBC does not tell a server's version.
_LIFT_TRANSACTION_TIMEOUT = (
    "DO $$BEGIN PERFORM pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings "
    "WHERE name = 'transaction_timeout'; END$$"
)


def run(connection: ReadingConnection, sql: str) -> None:
    """Run one statement that returns nothing through ADBC."""
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_sql_query(sql)
        cursor.adbc_statement.execute_update()


def read(connection: ReadingConnection, sql: str, batch_bytes: int = BATCH_BYTES) -> Generator[pa.RecordBatch]:
    """Run one query through ADBC and return its rows, as they come, in batches of about ``batch_bytes``."""
    with connection.cursor() as cursor:
        statement = cursor.adbc_statement
        statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        # The cursor's own reader raises later errors as OSError, without their SQLSTATE.
        yield from _reader.AdbcRecordBatchReader._import_from_c(stream.address)


def query(connection: Connection, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
    """Run one statement and return its rows, if it has any. ``%s`` marks an argument if there are any."""
    cursor = connection.execute(sql, args)
    return cursor.fetchall() if cursor.description else []


def value(connection: Connection, expression: str, args: Sequence[Any] | None = None) -> Any:
    """The value of one SQL expression."""
    return query(connection, f"SELECT {expression}", args)[0][0]


def quote(*names: str) -> str:
    """An identifier, or several joined by dots, in double quotes."""
    return ".".join(map(types.quote, names))


def literal(text: str) -> str:
    """Text as a constant in SQL, for statements that take no parameters; ``standard_conforming_strings`` is on."""
    return "'" + text.replace("'", "''") + "'"


def parameters(settings: ConnectionSettings) -> dict[str, str]:
    """The parameters of libpq that every session has; the session's settings are in ``options``.

    :raises ConfigurationError: the settings cannot work.
    """
    if not settings.user:
        # libpq would use the name of the operating system's user.
        raise ConfigurationError("the connection names no user", where=settings.address, hint="set its login")
    if not settings.database:
        raise ConfigurationError(
            "the connection names no database",
            where=settings.address,
            hint="set its schema to the database that holds the tables",
        )
    options = " ".join(
        f"-c {name}={_escaped(setting)}"
        for name, setting in {**session_setup.SETTINGS, **session_setup.KEEPALIVE}.items()
    )
    return {
        "host": settings.host,
        "port": str(settings.port),
        "user": settings.user,
        "password": settings.password,
        "dbname": settings.database,
        # Unless these are given, libpq takes them from the environment of this process, or from a service file.
        "hostaddr": "",
        "client_encoding": session_setup.SETTINGS["client_encoding"],
        "target_session_attrs": "any",
        "application_name": APPLICATION,
        "connect_timeout": str(CONNECT_SECONDS),
        # Notice within minutes that the other machine is gone; the kernel's default is two hours.
        "keepalives_idle": "60",
        "keepalives_interval": "15",
        "keepalives_count": "4",
        "options": options,
        **_tls(settings),
    }


def parameters_of(connection: Connection) -> dict[str, str]:
    """The parameters of libpq that a session was opened with."""
    return {**connection.info.get_parameters(), "password": connection.info.password}


def _escaped(setting: str) -> str:
    return re.sub(r"([\\ ])", r"\\\1", setting)


def _tls(settings: ConnectionSettings) -> dict[str, str]:
    trust, tls = trust_in(settings, more=(CHANNEL_BINDING,)), settings.tls
    names = {"sslrootcert": "ca", "sslcert": "cert", "sslkey": "key", "channel_binding": CHANNEL_BINDING}
    tls_options = {name: tls[option_name] for name, option_name in names.items() if tls.get(option_name)}
    if tls.get("key"):
        # Without one, OpenSSL asks for it at the terminal, and waits, if the key has a passphrase.
        tls_options["sslpassword"] = "none"
    if not trust.may_reveal:
        if psycopg.pq.version() < _REQUIRES_AUTH:
            raise ConfigurationError(
                "this libpq would show the password to whoever asks for it",
                where=settings.address,
                hint="install psycopg[binary], or a libpq of version 16 or later; or verify the server (tls_ca)",
            )
        tls_options["require_auth"] = NO_CLEARTEXT
    return {"sslmode": TLS_MODES[trust.mode], **tls_options}


@contextmanager
def mapped_errors(where: str) -> Iterator[None]:
    """Raise the drivers' errors as errors of this package.

    :param where: the object at work, for the message.
    :raises SourceUnavailable: the session broke, or the server has no room.
    :raises ConfigurationError: a privilege is missing.
    :raises SchemaChanged: a table or column that was there is gone.
    """
    try:
        yield
    except CdcError:
        raise
    except psycopg.Error as error:
        raise _statement_error(where, error.sqlstate or "", said(error)) from error
    except adbc_driver_manager.Error as error:
        raise _statement_error(where, error.sqlstate or "", said(error)) from error


@contextmanager
def shared_view_errors(where: str) -> Iterator[None]:
    """Around the statement that takes over a shared snapshot, which may be gone.

    :raises SourceUnavailable: the session that shared it has ended.
    """
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        if error.sqlstate not in _VIEW_GONE:
            raise
        raise SourceUnavailable(
            said(error),
            where=where,
            hint="the session that shared its snapshot ended: the task can be retried as it is",
        ) from error


@contextmanager
def slot_errors(where: str) -> Iterator[None]:
    """Around statements that read from a slot, which may be gone.

    :raises LogGone: the slot, its log or its publication is.
    """
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        if error.sqlstate not in _SLOT_GONE:
            raise
        raise LogGone(
            said(error),
            where=where,
            hint="trigger a new run, or clear lock_and_record and the tasks after it; raise max_slot_wal_keep_size "
            "(and idle_replication_slot_timeout, if it is set)",
        ) from error


def said(error: psycopg.Error | adbc_driver_manager.Error) -> str:
    text = " ".join(str(error).split())
    return f"{text} (SQLSTATE {error.sqlstate})" if error.sqlstate else text


def is_denied(state: str) -> bool:
    """Whether a SQLSTATE says that a privilege is missing."""
    return state.startswith(_DENIED)


def may_pass(state: str) -> bool:
    """Whether a statement that failed with this SQLSTATE may work when it is run again."""
    return not state or state.startswith((*_TRY_AGAIN, *_BUSY, *_LOST))


def _statement_error(where: str, state: str, told: str) -> CdcError:
    if state.startswith(_DENIED):
        return ConfigurationError(
            told, where=where, hint="grant what is missing to the user of this connection; preflight names the GRANT"
        )
    if state in _CHANGED:
        return SchemaChanged(told, where=where, hint="the table changed since the run began: trigger a new run")
    if state.startswith(_TRY_AGAIN):
        return TransientError(told, where=where, hint="the task can be retried as it is")
    # Of the same state, but no other session's end makes room: what one statement returns counts by itself.
    if state == _LIMITED and "temp_file_limit" in told:
        return ConfigurationError(
            told,
            where=where,
            hint="the server keeps what it tells of the log in temporary files, of about 512 MB or of one large "
            "transaction: ALTER ROLE … SET temp_file_limit = -1, as a superuser, for the user of this connection",
        )
    if state.startswith(_BUSY):
        return SourceUnavailable(told, where=where, hint="let fewer Spark tasks run at once, or raise the limit")
    if state == _TOO_LARGE:
        return TerminalError(
            told,
            where=where,
            hint="a row, or in the log a changed row with what it was before, is more than the 1 GB that the server "
            "makes one text of: leave the table out; if it was a change, refresh=full begins behind it",
        )
    # A driver that lost its connection has no SQLSTATE.
    if not state or state.startswith(_LOST):
        return SourceUnavailable(told, where=where, hint="the task can be retried once the server answers again")
    return TerminalError(told, where=where, hint="look the error up in the server's manual and its error log")
