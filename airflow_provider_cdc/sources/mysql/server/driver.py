"""PyMySQL, hardened against a server that lies: it may not be the one that the connection means.

PyMySQL answers every method of authentication that a server asks for, some with the password itself, some with the
password encrypted for a key that the server has just sent. So the driver is not told the password: its first answer is
empty, whereupon every server names the account's method, which is then answered here, by the rules of
``sources.trust``. Nor does the driver bound what it receives: here a login has a deadline, and an answer a size.

Whatever PyMySQL keeps to itself is used in this module and in no other: those who read a socket beside it, or say what
it has no method for, ask `GuardedConnection`.

Source: MySQL's "Client/Server Protocol", pages "Connection Phase" and "Caching_sha2_password information".
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql import _auth, err
from pymysql.constants import CLIENT, CR, ER

from airflow_provider_cdc.errors import CdcError, ConfigurationError, DecodeError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.session.trust import PREFERRED, Trust

if TYPE_CHECKING:
    _Driver = pymysql.Connection[Any]
else:
    _Driver = pymysql.Connection

SERVER_KEY = "server_key"
"""The field of ``ConnectionSettings.tls`` with the path of the server's public RSA key."""

ANSWER_BYTES = 1 << 29
"""What one statement may return through the driver. Tables and logs are not read through it."""
_PER_READ = 100
"""What a read costs of that besides its bytes: a row becomes objects, however short it is."""

_SMALL_BYTES = 1 << 14
"""The server takes so much whatever its max_allowed_packet is (net_buffer_length)."""

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
    "name the authority that signed its certificate (tls_ca; MySQL keeps the one that it made as ca.pem in its data "
    "directory); or, with tls_mode disabled, its public RSA key (tls_server_key, public_key.pem there); or say that "
    "nobody else is in the network between (tls_trusted_network)"
)


class GuardedConnection(_Driver):
    """A session of PyMySQL, not yet connected.

    :param login_seconds: how long ``connect`` and what follows may take, until ``logged_in``.
    """

    def __init__(self, settings: ConnectionSettings, trust: Trust, login_seconds: float, **arguments: Any) -> None:
        # As text it would have to be Latin-1.
        self._secret = settings.password.encode()
        # The driver waits for a TLS handshake as long as for any other read or write.
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

        :raises pymysql.MySQLError: the server refuses, or the session broke.
        :raises ConfigurationError: the server wants what it must not get, or is not a MySQL server.
        """
        self._deadline = time.monotonic() + self._login_seconds
        try:
            super().connect(sock)
        except (CdcError, pymysql.MySQLError):
            raise
        except Exception as error:
            raise _no_protocol(self._where, error) from error

    def logged_in(self, read_timeout: float, write_timeout: float) -> None:
        """From now on the server may take this long before it says something, or takes what is said to it."""
        driver: Any = self
        self._deadline = None
        driver._write_timeout = write_timeout
        driver._read_timeout = driver._current_timeout = read_timeout
        driver._sock.settimeout(read_timeout)

    @property
    def number(self) -> int:
        """The connection's number, as the server's greeting gave it: the low 32 bits of it."""
        driver: Any = self
        return int(driver.thread_id())

    @property
    def greeted_version(self) -> str:
        """The server's version, as its greeting gave it."""
        driver: Any = self
        return str(driver.server_version)

    @property
    def max_packet(self) -> int:
        """The bytes that a command may have: the server's ``max_allowed_packet``, which it is asked for once."""
        if not self._max_packet:
            with self.cursor() as cursor:
                cursor.execute("SELECT @@session.max_allowed_packet")
                self._max_packet = int(cursor.fetchall()[0][0])
        return self._max_packet

    def send(self, command: int, data: str | bytes) -> None:
        """Send a command; the answer is the caller's to receive."""
        self._execute_command(command, data)

    def packet(self) -> Any:
        """The next packet of an answer, a ``pymysql.protocol.MysqlPacket``.

        :raises pymysql.MySQLError: it says that the command failed, or the session broke.
        """
        return self._read_packet()

    def bare_socket(self, timeout: float | None = None) -> socket.socket:
        """The socket, for who reads the answer to a command from it, up to the answer's last packet.

        PyMySQL reads its socket through a buffered file. Between a command's sending and its answer that file holds
        nothing: the server speaks only when asked.

        :param timeout: seconds of silence after which a read fails; None: as for the driver's own reads.
        """
        driver: Any = self
        sock: socket.socket = driver._sock
        sock.settimeout(driver._read_timeout if timeout is None else timeout)
        driver._current_timeout = driver._read_timeout if timeout is None else timeout
        return sock

    def drop(self) -> None:
        """End the session without a word: the server may be in the middle of an answer."""
        driver: Any = self
        driver._force_close()

    def keep_alive(self) -> None:
        """Notice within minutes that the other machine is gone; the kernel's default is two hours."""
        driver: Any = self
        sock = driver._sock
        for option, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if sock is not None and sock.family != getattr(socket, "AF_UNIX", None) and hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)

    def _get_server_information(self) -> None:
        driver: Any = self
        super()._get_server_information()  # type: ignore[misc]
        if driver.protocol_version != _PROTOCOL:
            raise _no_protocol(self._where, f"version {driver.protocol_version} of the protocol")
        offers_tls = driver.server_capabilities & CLIENT.SSL
        if self._trust.mode == PREFERRED and not offers_tls:
            # The driver has this mode as well, but loads every authority of the system for it at each connection.
            driver.ssl = False
            driver.client_flag &= ~CLIENT.SSL
        if self._trust.encrypted and not offers_tls:
            raise ConfigurationError(
                "no encrypted connection could be made: the server offers none",
                where=self._where,
                hint="enable TLS on the server; or, if its network is trusted, choose another tls_mode",
            )
        driver._auth_plugin_name = ""

    def _request_authentication(self) -> None:
        super()._request_authentication()  # type: ignore[misc]
        # Before the driver's SET NAMES, which must not be undone: SQL is read in the session's character set.
        self._reset()

    def _reset(self) -> None:
        """End all that the server's ``init_connect`` left in the session, which may be any SQL: a temporary table that
        hides one to be copied, a transaction, locks, values of variables.

        Only the default schema and the active roles stay. Session variables get their global values, or their defaults
        if they have none.

        :raises ConfigurationError: who answers does not know the command.
        :raises pymysql.MySQLError: it failed, or the session broke.
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
                "what answers cannot reset a session, so it may pass on what other sessions or init_connect left in it",
                where=self._where,
                hint="connect to the server itself, or let the proxy pass connections on as they are",
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
                hint="look for a proxy in between, or copy fewer tables with one run",
            )
        if self._deadline is None:
            return super()._read_bytes(num_bytes)  # type: ignore[misc, no-any-return]
        driver: Any = self
        data = bytearray()
        while len(data) < num_bytes:
            # The driver's own timeout begins anew with every byte.
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
        # The server ends the session while it is still being told, and its error may never arrive.
        if len(data) > _SMALL_BYTES and len(data) >= self.max_packet:
            raise ConfigurationError(
                f"a statement has {len(data):,} bytes, and the server takes {self.max_packet:,} (max_allowed_packet)",
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
            # The driver takes the server's word for everything. A request for a local file is a RuntimeError.
            self.drop()
            raise DecodeError(
                f"the server's answer is malformed: {error}", where=self._where, hint="look for a proxy in between"
            ) from error

    def may_show_password(self, method: bytes) -> None:
        """Refuse to show the password to a server that may be another than the one that is meant.

        :raises ConfigurationError: this server may not see it.
        """
        if not self._trust.may_reveal:
            raise ConfigurationError(
                f"the server wants the password by {method.decode(errors='replace')}, and nothing shows that it is "
                "the server it says it is",
                where=self._where,
                hint=_TRUST_HINT,
            )

    def pinned_key(self) -> bytes:
        """The server's public key, as the connection names it; empty: it does not.

        :raises ConfigurationError: there is no such file.
        """
        if not self._server_key_path:
            return b""
        try:
            return Path(self._server_key_path).read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"the server's key cannot be read: {error}", where=self._where, hint="correct tls_server_key"
            ) from error


class _Method:
    """One method of authentication, named by the server. PyMySQL calls ``authenticate`` with what the server said."""

    def __init__(self, connection: GuardedConnection, name: bytes, secret: bytes, where: str) -> None:
        self._connection: Any = connection
        self._name = name
        self._secret = secret
        self._where = where
        self._nonce = b""

    def authenticate(self, packet: Any) -> Any:
        """Answer, and return what the server says to that."""
        if not packet.is_auth_switch_request():
            raise _no_protocol(self._where, f"x'{packet.get_all_data()[:8].hex()}' during the login")
        if self._name not in (_NATIVE, _CACHING, _SHA256, _CLEAR):
            raise ConfigurationError(
                f"the server wants the password by {self._name[:64].decode(errors='replace')}, which is not supported",
                where=self._where,
                hint="use an account that is identified with caching_sha2_password",
            )
        if self._name == _CLEAR:
            return self._show()
        nonce = packet.read_all()
        # No random byte of it is zero.
        self._nonce = nonce[:-1] if nonce.endswith(b"\0") else nonce
        if len(self._nonce) != _NONCE_BYTES:
            raise _no_protocol(self._where, f"{len(self._nonce)} random bytes")
        if not self._secret:
            # There is nothing to hide, whatever the method.
            return self._say(b"\0" if self._name == _SHA256 else b"")
        if self._name == _NATIVE:
            return self._say(_auth.scramble_native_password(self._secret, self._nonce))
        return self._caching() if self._name == _CACHING else self._show()

    def _caching(self) -> Any:
        # The server wants to see the password whenever it has forgotten the account, as after a restart. Whether a
        # connection works must not hang on that.
        if not self._connection.pinned_key() or self._connection._secure:
            self._connection.may_show_password(self._name)
        packet = self._say(_auth.scramble_caching_sha2(self._secret, self._nonce))
        answer = packet.get_all_data()
        if answer == _FAST_DONE:
            return self._connection._read_packet()
        return self._show() if answer == _FULL_WANTED else packet

    def _show(self) -> Any:
        """Send the password: as it is where nobody can read it, else for the server's key alone."""
        connection = self._connection
        if connection._secure or self._name == _CLEAR:
            connection.may_show_password(self._name)
            return self._say(self._secret + b"\0")
        key = connection.pinned_key()
        if not key:
            connection.may_show_password(self._name)
            key = self._say(_REQUEST_KEY[self._name]).get_all_data()[1:]
        try:
            encrypted = _auth.sha2_rsa_encrypt(self._secret, self._nonce, key)
        except ValueError as error:
            raise ConfigurationError(
                "the server's public key is not a valid key",
                where=self._where,
                hint="correct tls_server_key, or use TLS",
            ) from error
        return self._say(encrypted)

    def _say(self, data: bytes) -> Any:
        self._connection.write_packet(data)
        return self._connection._read_packet()


def _no_protocol(where: str, what: object) -> ConfigurationError:
    return ConfigurationError(
        f"what answers there does not speak MySQL's protocol: {what}",
        where=where,
        hint="correct host and port, and look for a proxy in between",
    )
