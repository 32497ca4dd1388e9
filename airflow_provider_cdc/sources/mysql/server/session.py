"""Sessions. Each session pins every variable that could change the result of a read, and maps the driver's errors."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeAlias

import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    SourceReplaced,
)
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server.driver import SERVER_KEY, GuardedConnection
from airflow_provider_cdc.sources.mysql.server.driver_errors import connect_error, mapped_errors, statement_error
from airflow_provider_cdc.sources.mysql.server.session_variables import pinned
from airflow_provider_cdc.sources.session.trust import (
    DISABLED,
    VERIFY_CA,
    VERIFY_IDENTITY,
    Trust,
    trust_in,
    without_frames,
)

Connection: TypeAlias = GuardedConnection

SERVER_UUID, HOSTNAME = "server_uuid", "hostname"
"""The keys of a run's identity that `RunSettings` uses."""

_NOTHING = GtidSet()

OLDEST_VERSION = (8, 0, 26)
CONNECT_SECONDS = 15
READ_SECONDS = 900
"""The read timeout in seconds. If the server sends no data for this time, the session counts as lost. No statement of
this package needs more time before the server sends data."""


@dataclass(frozen=True)
class RunSettings(ConnectionSettings):
    """Connection settings with which a session accepts only the server on which a run began. This is needed because
    several servers may share an address.

    ``position`` is the position that the server must have executed.
    """

    server_uuid: str = ""
    hostname: str = ""
    position: GtidSet = field(default=_NOTHING, repr=False)

    @classmethod
    def of(cls, settings: ConnectionSettings, identity: Mapping[str, str], position: GtidSet = _NOTHING) -> RunSettings:
        """Return ``settings`` together with the server identity of a run.

        :param identity: the result of ``server.identity``.
        """
        plain = {each.name: getattr(settings, each.name) for each in fields(ConnectionSettings)}
        return cls(**plain, server_uuid=identity[SERVER_UUID], hostname=identity.get(HOSTNAME, ""), position=position)


def connect(settings: ConnectionSettings, *, reading: bool = False, **overrides: Any) -> Connection:
    """Open a session with autocommit and the time zone UTC. The session does not inherit any setting that could change
    or truncate a result.

    The session is reset first. Then the values of `session_variables.PINNED` are set and read back.

    :param reading: whether the server sends text in the character set of the column. These are the same bytes as in the
        log.
    :param overrides: arguments of ``pymysql.connect`` that replace the default ones.
    :raises SourceUnavailable: the server does not answer, or does not allow a further session.
    :raises ConfigurationError: the host is unknown, the server rejects TLS or the credentials, the server is too old,
        or a variable does not keep the value that the session set.
    :raises SourceReplaced: with `RunSettings`, another server answers, or the server has not executed ``position``.
    """
    if not settings.user:
        # Without a user, PyMySQL would use the name of the operating system user.
        raise ConfigurationError("the connection names no user", where=settings.address, hint="set its login")
    connection = _log_in(settings, overrides)
    try:
        with mapped_errors(settings.address):
            _check_version(settings, connection)
            connection.keep_alive()
            _pin(settings, connection, reading=reading)
            if isinstance(settings, RunSettings):
                _check_server(settings, connection)
        connection.logged_in(overrides.get("read_timeout", READ_SECONDS), READ_SECONDS)
    except BaseException:
        end(connection)
        raise
    return connection


def _pin(settings: ConnectionSettings, connection: Connection, *, reading: bool) -> None:
    """Set the pinned variables in one statement, and read them back in another statement."""
    pins = pinned(server_version(connection))
    if reading:
        pins["character_set_results"] = replace(pins["character_set_results"], value="NULL")
    set_session(connection, {name: pin.value for name, pin in pins.items()})
    rows = query(connection, f"SELECT {', '.join(pin.read or f'@@SESSION.{name}' for name, pin in pins.items())}")
    values = dict(zip(pins, map(_text, rows[0]), strict=False)) if rows else {}
    wrong = [
        f"{name} is {values.get(name, 'unknown')}, not {pin.expected}"
        for name, pin in pins.items()
        if values.get(name, "unknown") != pin.expected
    ]
    if wrong:
        raise ConfigurationError(
            f"session variables do not keep the values that were set: {', '.join(wrong)}",
            where=settings.address,
            hint="connect to the server directly: a proxy or connection pooler answers or changes SET statements",
        )


def _text(shown: Any) -> str | None:
    if isinstance(shown, bytes):
        return shown.decode()
    return None if shown is None else str(shown)


def _log_in(settings: ConnectionSettings, overrides: Mapping[str, Any]) -> GuardedConnection:
    trust = trust_in(settings, more=(SERVER_KEY,))
    connection = GuardedConnection(
        settings,
        trust,
        overrides.get("read_timeout", CONNECT_SECONDS),
        **{
            "host": settings.host,
            "port": settings.port,
            "user": settings.user,
            "database": settings.database or None,
            "charset": "utf8mb4",
            "autocommit": None,
            "connect_timeout": CONNECT_SECONDS,
            "program_name": "airflow-provider-cdc",
            **_tls_arguments(settings, trust),
            **overrides,
        },
    )
    try:
        connection.connect()
    except CdcError as error:
        raise without_frames(error) from error.__cause__
    except pymysql.MySQLError as error:
        raise connect_error(settings, error) from without_frames(error)
    return connection


@contextmanager
def session(settings: ConnectionSettings, *, reading: bool = False, **overrides: Any) -> Iterator[Connection]:
    """Open a session as ``connect`` does, map the driver's errors, and close the session at the end."""
    connection = connect(settings, reading=reading, **overrides)
    try:
        yield connection
    except pymysql.MySQLError as error:
        # Do not map OSError, because it may come from other code in the block.
        raise statement_error(settings.address, error) from error
    finally:
        end(connection)


def end(connection: Connection) -> None:
    """Close a session, regardless of its state. A second call does nothing. The server releases the session's locks and
    ends its transaction."""
    if connection.open:
        connection.close()


def set_session(connection: Connection, variables: Mapping[str, str]) -> None:
    """Set session variables. The values are SQL expressions."""
    query(connection, "SET " + ", ".join(f"SESSION {name} = {value}" for name, value in variables.items()))


def query(connection: pymysql.Connection[Any], sql: str, args: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows. In the statement, ``%s`` marks the place of each argument."""
    with connection.cursor() as cursor:
        cursor.execute(sql, args or None)
        return list(cursor.fetchall())


def value(connection: Connection, expression: str, args: Sequence[Any] = ()) -> Any:
    """Return the value of one SQL expression."""
    return query(connection, f"SELECT {expression}", args)[0][0]


def variables(connection: Connection, names: Sequence[str]) -> dict[str, str]:
    """Return global variables as text (for example ``ON``, ``OFF``). Variables that the server does not have are
    omitted."""
    marks = ", ".join(["%s"] * len(names))
    rows = query(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({marks})", names)
    return {name: str(setting) for name, setting in rows}


def account(connection: Connection) -> str:
    """Return the account for which the server checks privileges, in the syntax of GRANT."""
    user, _, host = str(value(connection, "CURRENT_USER()")).rpartition("@")
    return f"{quote(user)}@{quote(host)}"


def quote(*names: str) -> str:
    """Return an identifier in backticks, or several quoted identifiers that are joined by dots."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


def is_server_itself(connection: Connection) -> bool:
    """Return whether the session is connected to the server itself, and not to a proxy. A proxy might use several
    servers.

    The greeting of a proxy has the proxy's own connection ID, which differs from the server's connection ID.
    """
    # Add "+ 0", because proxies recognize the plain form of this query and answer it themselves.
    return _is_own_number(connection, int(value(connection, "CONNECTION_ID() + 0")))


def _is_own_number(connection: Connection, number: int) -> bool:
    return (number - connection.number) % (1 << 32) == 0


def _check_server(settings: RunSettings, connection: Connection) -> None:
    uuid, host, has_all, number = query(
        connection,
        "SELECT @@global.server_uuid, @@global.hostname, GTID_SUBSET(%s, @@global.gtid_executed), CONNECTION_ID() + 0",
        (str(settings.position),),
    )[0]
    hint = "let the connection name one server, not a load balancer, or trigger a new run"
    if not _is_own_number(connection, int(number)):
        raise SourceReplaced(
            "a proxy answers instead of the server, and may forward statements to another server",
            where=settings.address,
            hint="connect to the server directly, or configure the proxy to forward connections unchanged",
        )
    if uuid != settings.server_uuid or settings.hostname not in ("", host):
        raise SourceReplaced(
            f"the run began on server {settings.server_uuid} ({settings.hostname}), but another server answers: "
            f"{uuid} ({host})",
            where=settings.address,
            hint=hint,
        )
    if not has_all:
        raise SourceReplaced(
            f"server {uuid} ({host}) lacks transactions of the run's initial position",
            where=settings.address,
            hint=f"{hint}; if the server lost these transactions in a crash, clear the task `lock_and_record` and all "
            "tasks after it",
        )


def server_version(connection: Connection) -> tuple[int, int, int]:
    """Return the server's version from its greeting."""
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", connection.greeted_version)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)


def _check_version(settings: ConnectionSettings, connection: Connection) -> None:
    version = connection.greeted_version
    if "mariadb" in version.lower():
        # MariaDB puts a version of MySQL before its own.
        raise ConfigurationError(
            f"the server is MariaDB ({version.removeprefix('5.5.5-')}), which is not supported: its GTIDs and its log "
            "differ from those of MySQL",
            where=settings.address,
            hint="name a MySQL server in the connection, or copy this server with another tool",
        )
    if server_version(connection) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        raise ConfigurationError(
            f"the server's version is {version}; MySQL {oldest} or later is required",
            where=settings.address,
            hint="upgrade the server, or copy from a replica of a supported version",
        )


def _tls_arguments(settings: ConnectionSettings, trust: Trust) -> dict[str, Any]:
    mode, tls = trust.mode, settings.tls
    if mode == DISABLED:
        return {"ssl_disabled": True}
    try:
        if mode not in (VERIFY_CA, VERIFY_IDENTITY):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context = ssl.create_default_context(cafile=tls.get("ca") or None)
            # Public certificate authorities sign certificates for any host. So check the host name, unless the settings
            # give another certificate authority (``ca``).
            context.check_hostname = mode == VERIFY_IDENTITY or not tls.get("ca")
            # Switch off the strict check of Python 3.13, because it rejects the certificates that MySQL generates.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if tls.get("cert"):
            # Without a password argument, OpenSSL would prompt on the terminal.
            context.load_cert_chain(tls["cert"], tls.get("key") or None, password="")
    except OSError as error:
        raise ConfigurationError(
            f"the TLS files cannot be read: {error}",
            where=settings.address,
            hint="correct the fields `tls_ca`, `tls_cert` and `tls_key`. The key must have no passphrase",
        ) from error
    return {"ssl": context}
