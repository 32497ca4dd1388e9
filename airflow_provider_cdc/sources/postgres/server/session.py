"""Opens sessions with pinned settings, and maps the drivers' errors to errors of this package.

Every setting that could change the result of a read is pinned. Two drivers connect to the server. psycopg runs control
queries and opens replication connections. ADBC reads tables and the log into Arrow. Both drivers get the same libpq
parameters.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import re
import selectors
import time
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote as percent
from urllib.parse import urlencode
from weakref import WeakKeyDictionary

import adbc_driver_manager
import psycopg
import pyarrow as pa
from adbc_driver_manager import _reader
from adbc_driver_postgresql import dbapi
from psycopg import pq
from psycopg.conninfo import make_conninfo

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    LogGone,
    SchemaChanged,
    SourceUnavailable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session_variables import SESSION_SETTINGS
from airflow_provider_cdc.sources.session import trust_in, without_frames
from airflow_provider_cdc.sources.tokens import Opened, logging_in, password_of, refused_login

# Keeps libpq's environment variables from changing sessions.
#
# libpq takes each parameter that a program does not pass from an environment variable (PGSSLMINPROTOCOLVERSION, …).
# These variables may be set for other programs of the machine. So a session passes the default of each parameter whose
# variable is set. The parameter ``service`` has no value that stands for the default, so an error names its variable.


_DEFAULTS = {
    **dict.fromkeys(("require_auth", "requirepeer", "ssl_max_protocol_version"), ""),
    **dict.fromkeys(("sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir"), ""),
    "sslcertmode": "allow",
    "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
}
"""The defaults of parameters for which libpq itself reports none."""
_HARMLESS = frozenset({"passfile", "gsslib"})
"""Parameters that cannot make a connection fail: without a password of the connection, the password file applies."""


def defaults(given: Container[str]) -> dict[str, str]:
    """Return the defaults of parameters that libpq would take from the environment.

    :param given: the names of the parameters that the session passes.
    """
    return {name: default for name, (_, default) in _set(given).items() if default is not None}


def libpq_variables(given: Container[str]) -> list[str]:
    """Return the names of the variables that are set and apply to a session, although the session passes all
    `defaults`."""
    return sorted(variable for variable, default in _set(given).values() if default is None)


def _set(given: Container[str]) -> Mapping[str, tuple[str, str | None]]:
    """Return, for each parameter whose variable is set, the variable and the default. None: it cannot be passed."""
    found: dict[str, tuple[str, str | None]] = {}
    for option in pq.Conninfo.get_defaults():
        name, variable = option.keyword.decode(), (option.envvar or b"").decode()
        if not variable or variable not in os.environ or name in given or name in _HARMLESS:
            continue
        found[name] = (variable, option.compiled.decode() if option.compiled else _DEFAULTS.get(name))
    return found


# Maps failed connections to errors by SQLSTATE. The text of an error cannot be used, because servers may use another
# language.
#
# libpq reports a failed connection only as text. This text includes the SQLSTATE only in verbose mode, and no driver
# offers this mode. So this module repeats a failed connection attempt directly through libpq.


NO_CLEARTEXT = "!password"
"""The value of ``require_auth`` for a server that has not proved its identity."""

_RAISED = ("P0", "22", "23", "42", "2F", "38", "39")
"""SQLSTATE classes of errors that are raised by code that runs on the server when a session begins."""
_SECONDS = 15
# PQERRORS_VERBOSE in libpq-fe.h. In this mode, messages in every language include the SQLSTATE.
_VERBOSE = 2
# The SQLSTATE follows the severity. Every SQLSTATE of an error has a digit.
_STATE = re.compile(r":  (?=[A-Z]*[0-9])([0-9A-Z]{5}): ")


def connect_error(settings: ConnectionSettings, arguments: Mapping[str, str], text: str) -> CdcError:
    """Return the error for a connection that a driver could not open.

    :param arguments: the parameters of the connection, with libpq's names.
    :param text: the driver's error message.
    """
    where, message = settings.address, " ".join(text.split())
    # libpq's own messages are in English, because libpq translates them only at the request of the program.
    if re.search("could not translate host name|failed to resolve host", text) and "Temporary failure" not in text:
        return ConfigurationError(f"there is no host {settings.host!r}", where=where, hint="correct the host")
    if f'"{NO_CLEARTEXT}"' in text:
        return ConfigurationError(
            "the server requests the password in clear text, and its identity has not been verified",
            where=where,
            hint="enter the authority that signed the server's certificate in the field `tls_ca`; or configure "
            "scram-sha-256 in pg_hba.conf; or, if the network to the server is trusted, set the field "
            "`tls_trusted_network`",
        )
    if re.search("private key file", text):
        return ConfigurationError(
            f"the private key of the client certificate cannot be used: {message}",
            where=where,
            hint="correct the fields `tls_cert` and `tls_key`. The key must belong to the certificate, have no "
            "passphrase, and be in a file that only this user can read",
        )
    if re.search("certificate|SSL error|SSL response|sslmode|does not support SSL|root.crt", text):
        return _tls_refused(where, message)
    # After a timeout there is no SQLSTATE, and a second attempt would only wait again.
    match "" if "timeout expired" in text else state_of_refusal(arguments):
        case "28P01":
            return refused_login(
                settings, "the server refuses this user or password", "correct the connection's login and password"
            )
        case "28000":
            return refused_login(
                settings,
                f"the server refuses this user or password, this user's connections from this machine, or these TLS "
                f"settings: {message}",
                "correct the connection's login and its TLS mode, or make the server accept them (pg_hba.conf, "
                f"ALTER ROLE {quote(settings.user)} LOGIN)",
            )
        case "3D000":
            return ConfigurationError(
                f"there is no database {settings.database!r}", where=where, hint="correct the connection's schema"
            )
        case "42501":
            return ConfigurationError(
                message,
                where=where,
                hint=f"GRANT CONNECT ON DATABASE {quote(settings.database)} TO {quote(settings.user)}; to "
                f"read the log, also ALTER ROLE {quote(settings.user)} REPLICATION. If an event trigger ON "
                "login (PostgreSQL 17 and later) raises this error, grant the privileges that the trigger's "
                "function needs",
            )
        case "08P01" | "0A000" | "22023" | "42704":
            return ConfigurationError(
                f"the start-up options of the session are rejected: {message}",
                where=where,
                hint="this is typical of a connection pooler: connect to the server directly",
            )
        case state if state.startswith(_RAISED):
            return ConfigurationError(
                f"the server ends each session of this user as soon as the session starts: {message}",
                where=where,
                hint="an event trigger ON login (PostgreSQL 17 and later) raises this error. The session has "
                f"search_path = {SESSION_SETTINGS['search_path']}: qualify the names in the trigger's "
                "function with their schemas, or ALTER FUNCTION … SET search_path = …; or exclude this "
                "connection's user in the trigger",
            )
        case "53300" | "53000" | "53400":
            return SourceUnavailable(message, where=where, hint="run fewer Spark tasks at once, or raise the limit")
        case "57P03":
            error = SourceUnavailable(
                f"the server is not ready for connections yet: {message}",
                where=where,
                hint="the server is starting up, shutting down, or recovering from a crash; its log shows the "
                "progress. Retry the task when the server answers",
            )
            error.is_starting = True
            return error
        case _ if given := libpq_variables(arguments):
            names = ", ".join(given)
            return ConfigurationError(
                f"no connection could be opened with the environment variables {names} of this process: {message}",
                where=where,
                hint=f"unset {names}, which libpq reads; if this error remains, start the server, or correct host and "
                "port",
            )
        case _:
            return SourceUnavailable(
                f"the server does not answer: {message}", where=where, hint="start the server, or correct host and port"
            )


def _tls_refused(where: str, said: str) -> ConfigurationError:
    return ConfigurationError(
        f"no connection could be opened with these TLS settings: {said}",
        where=where,
        hint="correct the TLS mode, authority, certificate and key, or the server's requirements (pg_hba.conf)",
    )


def state_of_refusal(arguments: Mapping[str, str]) -> str:
    """Connect once more, and return the SQLSTATE of the server's error. Empty: there is no SQLSTATE.

    libpq may retry a failed TLS connection without TLS. If there are several SQLSTATEs, the last one is returned.
    """
    deadline = time.monotonic() + int(arguments.get("connect_timeout", _SECONDS))
    conninfo = make_conninfo("", **arguments)
    with contextlib.suppress(psycopg.Error, OSError):
        connection = pq.PGconn.connect_start(conninfo.encode())
        try:
            _set_verbose(connection)
            status = pq.PollingStatus.WRITING
            while status in (pq.PollingStatus.READING, pq.PollingStatus.WRITING) and time.monotonic() < deadline:
                with selectors.DefaultSelector() as selector:
                    reading = status == pq.PollingStatus.READING
                    selector.register(connection.socket, selectors.EVENT_READ if reading else selectors.EVENT_WRITE)
                    selector.select(max(0.0, deadline - time.monotonic()))
                status = pq.PollingStatus(connection.connect_poll())
            if status == pq.PollingStatus.FAILED:
                states = _STATE.findall(connection.error_message.decode("utf-8", "replace"))
                return states[-1] if states else ""
        finally:
            connection.finish()
    return ""


def _set_verbose(connection: Any) -> None:
    """Call the function `PQsetErrorVerbosity` in the libpq that psycopg has loaded."""
    module = importlib.import_module(type(connection).__module__)
    path = pq.misc.find_libpq_full_path() if pq.__impl__ == "python" else module.__file__
    # A symbol lookup in the driver's extension module also searches the libraries with which the module was linked.
    function = ctypes.CDLL(path).PQsetErrorVerbosity
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    function(connection.pgconn_ptr, _VERBOSE)


Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"
_settings: WeakKeyDictionary[Connection, ConnectionSettings] = WeakKeyDictionary()
"""The settings of the open control sessions."""
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
"""The modes of ``ConnectionSettings.tls``, each with libpq's name for the mode."""

# SQLSTATEs: https://www.postgresql.org/docs/current/errcodes-appendix.html
_DENIED = ("42501", "28")
_CHANGED = ("42P01", "42703", "42704", "3F000", "3D000", "42883")
_TRY_AGAIN = ("40", "55P03", "55006", "57014")
_BUSY = ("53",)
_TOO_LARGE = "54000"
_LIMITED = "53400"
_LOST = ("08", "57P", "25P03", "25P04", "XX000")
_VIEW_GONE = ("22023", "42704", "55000", "58P01")
_NO_SUCH_OBJECT = "42704"
_SLOT_GONE = (_NO_SUCH_OBJECT, "55000", "58P01")
_REQUIRES_AUTH = 160_000
CHANNEL_BINDING = "channel_binding"
"""The name of a field of ``ConnectionSettings.tls``, and of the libpq parameter that gets the field's value."""


def connect(settings: ConnectionSettings, *, replication: bool = False) -> Connection:
    """Open a control session in autocommit. No setting of the environment can change or truncate its results.

    :param replication: open a connection that also accepts the commands of the replication protocol.
    :raises SourceUnavailable: the server does not answer or has no free session.
    :raises ConfigurationError: the host is unknown, TLS or the credentials are rejected, or the server is not
        PostgreSQL 15 or later.
    """
    connection = _log_in(settings, _connect, {"replication": "database"} if replication else {})
    try:
        with mapped_errors(settings.address):
            if connection.info.server_version < OLDEST_VERSION * 10_000:
                raise ConfigurationError(
                    f"the server is version {connection.info.server_version // 10_000}; "
                    f"PostgreSQL {OLDEST_VERSION} or later is required",
                    where=settings.address,
                    hint="upgrade the server",
                )
            (row,) = query(connection, session_setup.statement(settings))
            session_setup.check(settings, row)
    except BaseException:
        connection.close()
        raise
    _settings[connection] = settings
    return connection


def connect_like(other: Connection, **changed: str) -> Connection:
    """Open a session as `connect` did for ``other``, with other libpq parameters and without its checks."""
    return _log_in(_settings[other], _connect, changed)


def _connect(arguments: Mapping[str, str]) -> Connection:
    opened: Connection = psycopg.connect(autocommit=True, prepare_threshold=None, **arguments)  # type: ignore[arg-type]
    return opened


def _log_in(
    settings: ConnectionSettings, connect: Callable[[dict[str, str]], Opened], changed: Mapping[str, str]
) -> Opened:
    """Open a session with the libpq parameters of the settings, and map the errors of the drivers."""

    def log_in() -> Opened:
        # No local variable has the password, because an error keeps the frames through which it went.
        try:
            return connect({**parameters(settings), **changed})
        except (psycopg.Error, adbc_driver_manager.Error) as error:
            raise connect_error(settings, {**parameters(settings), **changed}, str(error)) from without_frames(error)

    return logging_in(settings, log_in)


@contextmanager
def session(settings: ConnectionSettings, *, replication: bool = False) -> Iterator[Connection]:
    """Open a session with ``connect``, map its errors, and close the session at the end of the block."""
    connection = connect(settings, replication=replication)
    try:
        with mapped_errors(settings.address):
            yield connection
    finally:
        connection.close()


@contextmanager
def log_session(settings: ConnectionSettings, source: Connection) -> Iterator[Connection]:
    """Open a session on the server that has the run's slot. If this is the source, return ``source``."""
    if settings.log_server is None:
        yield source
        return
    with session(session_setup.of_log(settings)) as connection:
        yield connection


@contextmanager
def reading_session(settings: ConnectionSettings) -> Iterator[ReadingConnection]:
    """Open an ADBC session in autocommit with the settings of ``connect``, map its errors, and close the session at the
    end of the block.

    ADBC reads through ``COPY … (FORMAT binary)``. So a query must have a form that COPY accepts, and must have no
    parameters. Other statements (BEGIN, SET) can be run if they return no rows.
    """
    connection = _log_in(settings, lambda arguments: dbapi.connect(_uri(arguments), autocommit=True), {})
    try:
        with mapped_errors(settings.address):
            (batch,) = read(connection, session_setup.statement(settings))
            session_setup.check(settings, [column[0].as_py() for column in batch.columns])
            yield connection
    finally:
        connection.close()


def _uri(arguments: dict[str, str]) -> str:
    """Return the parameters as a URI for ADBC."""
    where = {name: arguments[name] for name in ("user", "password", "host", "port", "dbname")}
    others = {name: value for name, value in arguments.items() if name not in where}
    login = f"{percent(where['user'], '')}:{percent(where['password'], '')}"
    # Brackets separate an IPv6 address from the port. The path of a socket is escaped.
    host = f"[{where['host']}]" if ":" in where["host"] else percent(where["host"], "")
    uri = f"postgresql://{login}@{host}:{where['port']}/{percent(where['dbname'], '')}"
    return f"{uri}?{urlencode(others, quote_via=percent)}"


def run(connection: ReadingConnection, sql: str) -> None:
    """Run, through ADBC, one statement that returns no rows."""
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_sql_query(sql)
        cursor.adbc_statement.execute_update()


def read(connection: ReadingConnection, sql: str, batch_bytes: int = BATCH_BYTES) -> Generator[pa.RecordBatch]:
    """Run one query through ADBC, and yield its rows as they arrive, in batches of about ``batch_bytes``."""
    with connection.cursor() as cursor:
        statement = cursor.adbc_statement
        statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)})
        statement.set_sql_query(sql)
        stream, _ = statement.execute_query()
        # The reader of ADBC's cursor raises later errors as OSError, without the SQLSTATE.
        yield from _reader.AdbcRecordBatchReader._import_from_c(stream.address)


def query(connection: Connection, sql: str, args: Sequence[Any] | Mapping[str, Any] | None = None) -> list[Any]:
    """Run one statement and return its rows, if any. If ``args`` is given, each ``%s`` stands for an argument."""
    cursor = connection.execute(sql, args)
    return cursor.fetchall() if cursor.description else []


def value(connection: Connection, expression: str, args: Sequence[Any] | None = None) -> Any:
    """Return the value of one SQL expression."""
    return query(connection, f"SELECT {expression}", args)[0][0]


def quote(*names: str) -> str:
    """Return names as quoted identifiers, joined by dots."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Return text as a SQL constant, for statements without parameters. ``standard_conforming_strings`` must be on."""
    return "'" + text.replace("'", "''") + "'"


def parameters(settings: ConnectionSettings) -> dict[str, str]:
    """Return the libpq parameters of every session. The parameter ``options`` has the settings of the session.

    :raises ConfigurationError: the connection lacks a user or a database, or its TLS settings cannot be used.
    """
    if not settings.user:
        # libpq would use the name of the operating system's user.
        raise ConfigurationError("the connection names no user", where=settings.address, hint="set its login")
    if not settings.database:
        raise ConfigurationError(
            "the connection names no database",
            where=settings.address,
            hint="set the schema of the connection to the database that holds the tables",
        )
    tls = _tls(settings)
    options = " ".join(
        f"-c {name}={_escaped(setting)}"
        for name, setting in {**session_setup.SETTINGS, **session_setup.KEEPALIVE}.items()
    )
    given = {
        "host": settings.host,
        "port": str(settings.port),
        "user": settings.user,
        "password": password_of(settings),
        "dbname": settings.database,
        # If these parameters are missing, libpq uses the environment of this process or a service file.
        "hostaddr": "",
        "client_encoding": session_setup.SETTINGS["client_encoding"],
        "target_session_attrs": "any",
        "application_name": APPLICATION,
        "connect_timeout": str(CONNECT_SECONDS),
        # Detect within minutes that the server's machine is unreachable. The kernel's default is two hours.
        "keepalives_idle": "60",
        "keepalives_interval": "15",
        "keepalives_count": "4",
        "options": options,
        **tls,
    }
    return {**defaults(given), **given}


def _escaped(setting: str) -> str:
    return re.sub(r"([\\ ])", r"\\\1", setting)


def _tls(settings: ConnectionSettings) -> dict[str, str]:
    trust, tls = trust_in(settings, more=(CHANNEL_BINDING,)), settings.tls
    names = {"sslrootcert": "ca", "sslcert": "cert", "sslkey": "key", "channel_binding": CHANNEL_BINDING}
    tls_options = {name: tls[option_name] for name, option_name in names.items() if tls.get(option_name)}
    if tls.get("key"):
        # If the key has a passphrase and the parameter is missing, OpenSSL prompts for the passphrase at the terminal,
        # and waits.
        tls_options["sslpassword"] = "none"
    if not trust.may_reveal:
        if psycopg.pq.version() < _REQUIRES_AUTH:
            raise ConfigurationError(
                "the installed libpq would send the password in clear text to any server that requests it in clear "
                "text",
                where=settings.address,
                hint="install psycopg[binary], or libpq 16 or later; or name the server's certificate authority in "
                "the field `tls_ca` of the connection",
            )
        tls_options["require_auth"] = NO_CLEARTEXT
    return {"sslmode": TLS_MODES[trust.mode], **tls_options}


@contextmanager
def mapped_errors(where: str) -> Iterator[None]:
    """Raise the drivers' errors as errors of this package.

    :param where: the object that is being processed. The error message names it.
    :raises SourceUnavailable: the session broke, or the server lacks resources.
    :raises ConfigurationError: a privilege is missing.
    :raises SchemaChanged: a table or a column no longer exists.
    """
    try:
        yield
    except CdcError:
        raise
    except psycopg.Error as error:
        raise _statement_error(where, error.sqlstate or "", error_text(error)) from error
    except adbc_driver_manager.Error as error:
        raise _statement_error(where, error.sqlstate or "", error_text(error)) from error


@dataclass(frozen=True)
class SharedView:
    """The snapshot that all reads of a step share, and its position."""

    snapshot: str
    upper: Lsn


@contextmanager
def shared_view_errors(where: str) -> Iterator[None]:
    """Map the errors of the statement that imports an exported snapshot.

    :raises SourceUnavailable: the session that exported the snapshot has ended.
    """
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        if error.sqlstate not in _VIEW_GONE:
            raise
        raise SourceUnavailable(
            error_text(error),
            where=where,
            hint="the session that exported the snapshot has ended: retry the task",
        ) from error


@contextmanager
def slot_errors(where: str) -> Iterator[None]:
    """Map the errors of statements that read from a slot.

    :raises LogGone: the slot, its log or its publication no longer exists.
    """
    try:
        yield
    except (psycopg.Error, adbc_driver_manager.Error) as error:
        if error.sqlstate not in _SLOT_GONE:
            raise
        cause = (
            "do not drop or rename the slots and publications of this package"
            if error.sqlstate == _NO_SUCH_OBJECT
            else "raise max_slot_wal_keep_size, and idle_replication_slot_timeout if this setting is not 0"
        )
        raise LogGone(
            error_text(error),
            where=where,
            hint=f"{cause}. Then trigger a new run, or clear the task `lock_and_record` and all tasks after it",
        ) from error


def error_text(error: psycopg.Error | adbc_driver_manager.Error) -> str:
    """Return a driver's error message on one line, with its SQLSTATE."""
    text = " ".join(str(error).split())
    return f"{text} (SQLSTATE {error.sqlstate})" if error.sqlstate else text


def is_denied(state: str) -> bool:
    """Return whether a SQLSTATE means that a privilege is missing."""
    return state.startswith(_DENIED)


def is_transient(state: str) -> bool:
    """Return whether a statement that failed with this SQLSTATE may succeed if it is run again."""
    return not state or state.startswith((*_TRY_AGAIN, *_BUSY, *_LOST))


def _statement_error(where: str, state: str, told: str) -> CdcError:
    if state.startswith(_DENIED):
        return ConfigurationError(
            told,
            where=where,
            hint="grant the missing privilege to the user of this connection; the log of the task `preflight` shows "
            "the GRANT statement",
        )
    if state in _CHANGED:
        return SchemaChanged(told, where=where, hint="the table changed since the run began: trigger a new run")
    if state.startswith(_TRY_AGAIN):
        return TransientError(told, where=where, hint="retry the task")
    # This error has one of the SQLSTATEs in _BUSY. But the limit applies to each session separately, so waiting does
    # not help.
    if state == _LIMITED and "temp_file_limit" in told:
        return ConfigurationError(
            told,
            where=where,
            hint="each read of the log writes temporary files on the server: about 512 MB, or the size of one large "
            "transaction. As a superuser, run ALTER ROLE … SET temp_file_limit = -1 for this connection's user",
        )
    if state.startswith(_BUSY):
        return SourceUnavailable(told, where=where, hint="run fewer Spark tasks at once, or raise the limit")
    if state == _TOO_LARGE:
        return TerminalError(
            told,
            where=where,
            hint="a row is larger than the server's limit of 1 GB for one text. (In the log, the limit applies to "
            "the old and the new row of a change together.) Leave the table out. If a change in the log is too "
            "large, set `refresh` to `full`: the new run then begins after this change",
        )
    # If the connection was lost, the driver's error has no SQLSTATE.
    if not state or state.startswith(_LOST):
        return SourceUnavailable(told, where=where, hint="retry the task when the server answers again")
    return TerminalError(told, where=where, hint="look up the error in the server's manual and in its error log")
