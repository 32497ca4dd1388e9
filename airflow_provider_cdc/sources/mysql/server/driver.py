"""PyMySQL, hardened against a malicious server that answers instead of the intended server.

PyMySQL answers every authentication method that a server requests. For some methods, it sends the password itself. For
other methods, it sends the password encrypted with a key that the server has just sent. So this module does not pass
the password to PyMySQL. The module's first answer to the server is empty. Every server then names the account's
authentication method, and this module follows the rules of ``sources.session`` in its answer. PyMySQL also does
not limit the amount of data that it receives. This module sets a deadline for each login and a maximum size for each
answer.

Only this module uses private members of PyMySQL. Other modules use `GuardedConnection` to read the socket directly, or
to send commands for which PyMySQL has no method.

Source: MySQL's "Client/Server Protocol", pages "Connection Phase" and "Caching_sha2_password information".
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql import _auth, err
from pymysql.constants import CLIENT, CR, ER

from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    DecodeError,
    SchemaChanged,
    SourceUnavailable,
    TableUnreadable,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.session import PREFERRED, Trust
from airflow_provider_cdc.sources.tokens import password_of, refused_login

if TYPE_CHECKING:
    _Driver = pymysql.Connection[Any]
else:
    _Driver = pymysql.Connection

SERVER_KEY = "server_key"
"""The key in ``ConnectionSettings.tls`` for the path of the server's public RSA key."""

ANSWER_BYTES = 1 << 29
"""The maximum size of a statement's result that PyMySQL reads, in bytes. Tables and logs are not read through
PyMySQL."""
_PER_READ = 100
"""The number of bytes that each read adds to the counted size, because even a short row becomes several Python
objects."""

_SMALL_BYTES = 1 << 14
"""The statement size in bytes that the server accepts with any value of max_allowed_packet (net_buffer_length)."""

_PROTOCOL = 10
_RESET_CONNECTION = 0x1F
_NATIVE, _CACHING, _SHA256, _CLEAR = (
    b"mysql_native_password",
    b"caching_sha2_password",
    b"sha256_password",
    b"mysql_clear_password",
)
_NONCE_BYTES = 20
_REQUEST_KEY = {_CACHING: b"\x02", _SHA256: b"\x01"}
_FAST_DONE, _FULL_WANTED = b"\x01\x03", b"\x01\x04"
_TRUST_HINT = (
    "enter the authority of the server's certificate in the field `tls_ca` (MySQL stores its own authority in the "
    "file ca.pem of its data directory); or, if `tls_mode` is disabled, enter the server's public RSA key in the "
    "field `tls_server_key` (the file public_key.pem of the same directory); or, if the network to the server is "
    "trusted, set the field `tls_trusted_network`"
)


class GuardedConnection(_Driver):
    """A PyMySQL session. The constructor does not connect.

    :param login_seconds: the maximum time from ``connect`` until ``logged_in`` is called.
    """

    def __init__(self, settings: ConnectionSettings, trust: Trust, login_seconds: float, **arguments: Any) -> None:
        # Store the password as bytes, because PyMySQL would encode text as Latin-1.
        self._secret = password_of(settings).encode()
        # PyMySQL applies these timeouts to the TLS handshake, too.
        timeouts = {"read_timeout": login_seconds, "write_timeout": login_seconds}
        super().__init__(**{**arguments, **timeouts}, defer_connect=True)
        self._where = settings.address
        self._trust = trust
        self._server_key_path = settings.tls.get(SERVER_KEY, "")
        self._login_seconds = login_seconds
        self._deadline: float | None = None
        self._bytes_left = ANSWER_BYTES
        self._max_packet = 0

    def connect(self, sock: Any = None) -> None:
        """Log in, and reset the session.

        :raises pymysql.MySQLError: the server rejects the login, or the session broke.
        :raises ConfigurationError: the server requests data that it must not receive, or is not a MySQL server.
        """
        self._deadline = time.monotonic() + self._login_seconds
        try:
            super().connect(sock)
        except (CdcError, pymysql.MySQLError):
            raise
        except Exception as error:
            raise _no_protocol(self._where, error) from error

    def logged_in(self, read_timeout: float, write_timeout: float) -> None:
        """End the login deadline, and set the timeouts of later reads and writes, in seconds."""
        driver: Any = self
        self._deadline = None
        driver._write_timeout = write_timeout
        driver._read_timeout = driver._current_timeout = read_timeout
        driver._sock.settimeout(read_timeout)

    @property
    def number(self) -> int:
        """The low 32 bits of the connection ID in the server's greeting."""
        driver: Any = self
        return int(driver.thread_id())

    @property
    def greeted_version(self) -> str:
        """The server's version in its greeting."""
        driver: Any = self
        return str(driver.server_version)

    @property
    def max_packet(self) -> int:
        """The maximum size of a command in bytes. This is the server's ``max_allowed_packet``, which is queried only
        once."""
        if not self._max_packet:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@session.max_allowed_packet")
                self._max_packet = int(cursor.fetchall()[0][0])
        return self._max_packet

    def send(self, command: int, data: str | bytes) -> None:
        """Send a command. The caller must read the answer."""
        self._execute_command(command, data)

    def packet(self) -> Any:
        """Return the next packet of an answer, as a ``pymysql.protocol.MysqlPacket``.

        :raises pymysql.MySQLError: the packet reports that the command failed, or the session broke.
        """
        return self._read_packet()

    def bare_socket(self, timeout: float | None = None) -> socket.socket:
        """Return the socket, for callers that read the answer to a command directly.

        The caller must read the answer up to its last packet. PyMySQL reads the socket through a buffered file. The
        buffer is empty when a command is sent, because the server sends data only in answer to a command.

        :param timeout: a read fails if the server sends no data for this number of seconds. None: the timeout of the
            driver's own reads applies.
        """
        driver: Any = self
        sock: socket.socket = driver._sock
        sock.settimeout(driver._read_timeout if timeout is None else timeout)
        driver._current_timeout = driver._read_timeout if timeout is None else timeout
        return sock

    def drop(self) -> None:
        """Close the socket without sending COM_QUIT, because the server may be in the middle of an answer."""
        driver: Any = self
        driver._force_close()

    def keep_alive(self) -> None:
        """Set TCP keepalive, so that a lost peer is detected within minutes. With the kernel's default, the detection
        takes two hours."""
        driver: Any = self
        sock = driver._sock
        for option, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if sock is not None and sock.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)

    def _get_server_information(self) -> None:
        driver: Any = self
        super()._get_server_information()  # type: ignore[misc]
        if driver.protocol_version != _PROTOCOL:
            raise _no_protocol(self._where, f"its protocol version is {driver.protocol_version}")
        offers_tls = driver.server_capabilities & CLIENT.SSL
        if self._trust.mode == PREFERRED and not offers_tls:
            # PyMySQL also supports this mode, but it would load all system certificate authorities for each connection.
            driver.ssl = False
            driver.client_flag &= ~CLIENT.SSL
        if self._trust.encrypted and not offers_tls:
            raise ConfigurationError(
                "no encrypted connection could be made: the server does not offer TLS",
                where=self._where,
                hint="enable TLS on the server; or, if its network is trusted, choose another `tls_mode`",
            )
        driver._auth_plugin_name = ""

    def _request_authentication(self) -> None:
        super()._request_authentication()  # type: ignore[misc]
        # Reset the session before PyMySQL sends SET NAMES. A later reset would undo SET NAMES, and the server parses
        # SQL in the session's character set.
        self._reset()

    def _reset(self) -> None:
        """Remove everything that the server's setting ``init_connect`` has created or changed in the session.

        ``init_connect`` can contain any SQL. This SQL may leave an open transaction, locks, changed variables, or a
        temporary table that hides a copied table. The reset removes all of these, and keeps only the default schema and
        the active roles. Session variables get their global values, or their defaults if they have no global value.

        :raises ConfigurationError: the server or proxy does not support the command.
        :raises pymysql.MySQLError: the command failed, or the session broke.
        """
        driver: Any = self
        self._execute_command(_RESET_CONNECTION, b"")
        try:
            with self._parsing():
                driver._read_ok_packet()
        except pymysql.MySQLError as error:
            if error.args[0] != ER.UNKNOWN_COM_ERROR:
                raise
            raise ConfigurationError(
                "the server or proxy cannot reset a session (COM_RESET_CONNECTION), so the session may have state of "
                "other sessions or of init_connect",
                where=self._where,
                hint="connect to the server directly, or configure the proxy to forward connections unchanged",
            ) from error

    def _get_auth_plugin_handler(self, plugin_name: bytes) -> _Method:
        return _Method(self, plugin_name, self._secret, self._where)

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._bytes_left -= num_bytes + _PER_READ
        if self._bytes_left < 0:
            self.drop()
            raise DecodeError(
                f"the server's answer has more than {ANSWER_BYTES:,} bytes",
                where=self._where,
                hint="check for a proxy between this machine and the server, or copy fewer tables with one run",
            )
        if self._deadline is None:
            return super()._read_bytes(num_bytes)  # type: ignore[misc, no-any-return]
        driver: Any = self
        data = bytearray()
        while len(data) < num_bytes:
            # PyMySQL's own timeout restarts with every byte.
            seconds_left = self._deadline - time.monotonic()
            driver._sock.settimeout(max(seconds_left, 0.001))
            driver._current_timeout = None
            try:
                piece = b"" if seconds_left <= 0 else driver._rfile.read1(num_bytes - len(data))
            except OSError as error:
                raise err.OperationalError(CR.CR_SERVER_LOST, f"the session broke ({error})") from error
            if not piece:
                reason = "the login takes too long" if seconds_left <= 0 else "the server closed the connection"
                raise err.OperationalError(CR.CR_SERVER_LOST, reason)
            data += piece
        return bytes(data)

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        data = sql.encode() if isinstance(sql, str) else sql
        # If a statement is too long, the server ends the session before it has received the whole statement, and the
        # server's error message may never arrive. So check the length first.
        if len(data) > _SMALL_BYTES and len(data) >= self.max_packet:
            raise ConfigurationError(
                f"a statement has {len(data):,} bytes, but the server accepts {self.max_packet:,} (max_allowed_packet)",
                where=self._where,
                hint=f"set max_allowed_packet on the server to {2 * len(data)} or more",
            )
        self._bytes_left = ANSWER_BYTES
        super()._execute_command(command, data)  # type: ignore[misc]

    def _read_packet(self, *arguments: Any) -> Any:
        with self._parsing():
            return super()._read_packet(*arguments)  # type: ignore[no-untyped-call]

    def _read_query_result(self, unbuffered: bool = False) -> Any:
        with self._parsing():
            return super()._read_query_result(unbuffered)  # type: ignore[misc]

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        try:
            yield
        except (CdcError, pymysql.MySQLError, OSError):
            raise
        except Exception as error:
            # PyMySQL does not validate the server's answers, so an invalid answer can cause any exception. If the
            # server requests a local file, PyMySQL raises a RuntimeError.
            self.drop()
            raise DecodeError(
                f"the server's answer is malformed: {error}",
                where=self._where,
                hint="check for a proxy between this machine and the server",
            ) from error

    def may_show_password(self, method: bytes) -> None:
        """Check that the password may be revealed to the server.

        :raises ConfigurationError: the server has not proved its identity, so it may not see the password.
        """
        if not self._trust.may_reveal:
            raise ConfigurationError(
                f"the server requests the authentication method {method.decode(errors='replace')}, which would reveal "
                "the password, and the server's identity has not been verified",
                where=self._where,
                hint=_TRUST_HINT,
            )

    def pinned_key(self) -> bytes:
        """Return the server's public key from the file that the connection's settings name. Empty: the settings do not
        name a file.

        :raises ConfigurationError: the file cannot be read.
        """
        if not self._server_key_path:
            return b""
        try:
            return Path(self._server_key_path).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"the file with the server's public key cannot be read: {error}",
                where=self._where,
                hint="correct tls_server_key",
            ) from error


class _Method:
    """An authentication method that the server named. PyMySQL calls ``authenticate`` with the server's packet."""

    def __init__(self, connection: GuardedConnection, name: bytes, secret: bytes, where: str) -> None:
        self._connection: Any = connection
        self._name = name
        self._secret = secret
        self._where = where
        self._nonce = b""

    def authenticate(self, packet: Any) -> Any:
        """Send the answer, and return the server's next packet."""
        if not packet.is_auth_switch_request():
            raise _no_protocol(self._where, f"it sent x'{packet.get_all_data()[:8].hex()}' during the login")
        if self._name not in (_NATIVE, _CACHING, _SHA256, _CLEAR):
            name = self._name[:64].decode(errors="replace")
            raise ConfigurationError(
                f"the server requests the authentication method {name or 'with an empty name'}, which is not supported",
                where=self._where,
                hint="use an account that is identified with caching_sha2_password"
                + ("" if name else ". A proxy that answers in place of the server may cause an empty name"),
            )
        if self._name == _CLEAR:
            return self._show()
        nonce = packet.read_all()
        # The nonce itself has no zero bytes, so a zero byte at the end is the terminator.
        self._nonce = nonce[:-1] if nonce.endswith(b"\0") else nonce
        if len(self._nonce) != _NONCE_BYTES:
            raise _no_protocol(self._where, f"its nonce has {len(self._nonce)} bytes")
        if not self._secret:
            # An empty password needs no protection, so every method gets the same empty answer.
            return self._exchange(b"\0" if self._name == _SHA256 else b"")
        if self._name == _NATIVE:
            return self._exchange(_auth.scramble_native_password(self._secret, self._nonce))
        return self._caching() if self._name == _CACHING else self._show()

    def _caching(self) -> Any:
        # The server requests the password itself if its cache has no entry for the account, for example after a
        # restart. Always check whether the server may see the password. Otherwise, the success of a connection would
        # depend on the server's cache.
        if not self._connection.pinned_key() or self._connection._secure:
            self._connection.may_show_password(self._name)
        packet = self._exchange(_auth.scramble_caching_sha2(self._secret, self._nonce))
        answer = packet.get_all_data()
        if answer == _FAST_DONE:
            return self._connection._read_packet()
        return self._show() if answer == _FULL_WANTED else packet

    def _show(self) -> Any:
        """Send the password. On a secure connection, send it as clear text. Otherwise, encrypt it with the server's
        public key."""
        connection = self._connection
        if connection._secure or self._name == _CLEAR:
            connection.may_show_password(self._name)
            return self._exchange(self._secret + b"\0")
        key = connection.pinned_key()
        if not key:
            connection.may_show_password(self._name)
            key = self._exchange(_REQUEST_KEY[self._name]).get_all_data()[1:]
        try:
            encrypted = _auth.sha2_rsa_encrypt(self._secret, self._nonce, key)
        except ValueError as error:
            raise ConfigurationError(
                "the server's public key is not a valid key",
                where=self._where,
                hint="correct tls_server_key, or use TLS",
            ) from error
        return self._exchange(encrypted)

    def _exchange(self, data: bytes) -> Any:
        self._connection.write_packet(data)
        return self._connection._read_packet()


def _no_protocol(where: str, what: object) -> ConfigurationError:
    return ConfigurationError(
        f"this address does not speak the MySQL protocol: {what}",
        where=where,
        hint="correct host and port, and check for a proxy between this machine and the server",
    )


# Maps the driver's errors to errors of this package. Only the error numbers are used, not the texts of the errors,
# except for the name and the value of a resource limit.
#
# An error of a statement that reads a single table belongs either to the session, to the server, to the user's
# privileges, or to the table (`is_of_table`). A run may leave out a table because of its own errors. All other errors
# concern the other tables, too.


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
_BLOCKED = 3955
"""The error number for an account that is locked for a time, after too many wrong logins."""
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
        return refused_login(settings, message, hint)
    if code in _PASSWORD_EXPIRED:
        return refused_login(settings, text, "give the connection's user a new password (ALTER USER)")
    if code == _BLOCKED:
        return refused_login(settings, text, "ALTER USER … ACCOUNT UNLOCK, for the connection's user")
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
