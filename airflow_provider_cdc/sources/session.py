"""What both kinds of databases share about sessions: the checks of certificates, and sessions that are kept open."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sources.api.source import ConnectionSettings

DISABLED, PREFERRED, REQUIRED, VERIFY_CA, VERIFY_IDENTITY = MODES = (
    "disabled",
    "preferred",
    "required",
    "verify_ca",
    "verify_identity",
)
_VERIFYING = (VERIFY_CA, VERIFY_IDENTITY)
_FIELDS = ("mode", "ca", "cert", "key", "trusted_network")
_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Trust:
    """The TLS mode and the trust in the server, as they result from the settings.

    ``mode`` is never empty. ``may_reveal`` is true if the password may be revealed to the server after the TLS
    requirements of the mode are met.
    """

    mode: str
    may_reveal: bool

    @property
    def encrypted(self) -> bool:
        """Whether sessions without TLS are rejected."""
        return self.mode not in (DISABLED, PREFERRED)


def trust_in(settings: ConnectionSettings, more: Collection[str] = ()) -> Trust:
    """Return the TLS mode for a connection, and whether the password may be revealed to the server.

    If a certificate authority is given, the default mode is ``verify_ca``. Otherwise, the default mode is ``preferred``
    for this machine and for trusted networks, if there is no client certificate. In all other cases, it is
    ``required``. If a certificate authority is given, the server's certificate is always verified, regardless of the
    mode.

    A token is sent as it is, so sessions that log in with tokens need TLS, and a server that has proved its identity.

    :param more: further fields that ``ConnectionSettings.tls`` may have for this kind of database.
    :raises ConfigurationError: the settings contradict each other, or have unknown fields or values.
    """
    tls = settings.tls
    fields = (*_FIELDS, *more)
    mode, ca = tls.get("mode", ""), tls.get("ca", "")
    unknown = sorted(set(tls) - set(fields))
    if unknown or (mode and mode not in MODES):
        raise ConfigurationError(
            f"unknown TLS settings: {unknown if unknown else f'the mode {mode!r}'}",
            where=settings.address,
            hint=f"use only {', '.join(fields)}; the mode is one of {', '.join(MODES)}",
        )
    if ca and mode == DISABLED:
        raise ConfigurationError(
            "TLS is disabled, but an authority is given to verify the server's certificate",
            where=settings.address,
            hint="clear the field `tls_mode` or the field `tls_ca`",
        )
    nobody_between = is_local(settings.host) or _is_yes(settings, "trusted_network")
    if ca:
        mode = VERIFY_IDENTITY if mode == VERIFY_IDENTITY else VERIFY_CA
    elif not mode:
        mode = PREFERRED if nobody_between and not tls.get("cert") and not settings.auth else REQUIRED
    trust = Trust(mode, may_reveal=nobody_between or mode in _VERIFYING)
    if settings.auth and not (trust.encrypted and trust.may_reveal):
        raise ConfigurationError(
            f"a token ({settings.auth}) is sent to the server as it is, "
            + ("and the server's identity is not verified" if trust.encrypted else f"and tls_mode is {mode}"),
            where=settings.address,
            hint="in the field `tls_ca`, enter the authority that signed the server's certificate: the provider of the "
            "cloud publishes it as a file. Leave `tls_mode` empty",
        )
    return trust


def is_local(host: str) -> bool:
    """Return whether ``host`` is this machine. ``host`` is an address or the path of a socket."""
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def warning(settings: ConnectionSettings) -> str:
    """Return a warning about an insecure connection, for the log of a step. Empty: there is nothing to warn about."""
    if is_local(settings.host):
        return ""
    if _is_yes(settings, "trusted_network"):
        return (
            f"{settings.address}: tls_trusted_network is set: an attacker in that network can read the password, "
            "unless the field tls_ca names the authority of the server's certificate"
        )
    mode = settings.tls.get("mode")
    if mode in (DISABLED, PREFERRED) and not settings.tls.get("ca"):
        return (
            f"{settings.address}: tls_mode is {mode}: an attacker in the network can read and change the copied data; "
            "to verify the server's certificate, name its authority in the field tls_ca"
        )
    return ""


def without_frames(error: BaseException) -> BaseException:
    """Remove everything except the messages from a driver's error and its causes, and return the error.

    The stack frames of the errors are removed, because some frames have the password in a local variable. The
    attributes of the errors are removed, because errors of psycopg have the connection's parameters as attributes.
    """
    visited: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is not None and id(link) not in visited:
            visited.add(id(link))
            link.__traceback__ = None
            if not isinstance(link, CdcError):
                vars(link).update(dict.fromkeys(vars(link)))
            todo += (link.__cause__, link.__context__)
    return error


def _is_yes(settings: ConnectionSettings, name: str) -> bool:
    setting = settings.tls.get(name, "").lower()
    if setting and setting not in _YES + _NO:
        raise ConfigurationError(
            f"the TLS setting {name} is {setting!r}",
            where=settings.address,
            hint="set the TLS setting to true, or clear it",
        )
    return setting in _YES


# Keeps sessions open, so that several readers can use them one after the other. Opening a session takes longer than
# reading a small table.


Session = TypeVar("Session")


class Kept:
    """The open sessions of one Spark task or of one thread. The sessions are never used concurrently."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[ExitStack, Any]] = {}

    @contextmanager
    def use(self, kind: str, opened: Callable[[], AbstractContextManager[Session]]) -> Iterator[Session]:
        """Return a context with the kept session of this kind. If the block raises an error, the session is closed, and
        the next call opens a new session.

        An error in the block is also passed to the context manager that ``opened`` returned.
        """
        if kind not in self._open:
            stack = ExitStack()
            self._open[kind] = stack, stack.enter_context(opened())
        stack, session = self._open[kind]
        try:
            yield session
        except BaseException:
            del self._open[kind]
            stack.__exit__(*sys.exc_info())
            raise

    def close(self) -> None:
        """Close all sessions."""
        while self._open:
            stack, _ = self._open.popitem()[1]
            stack.close()


@contextmanager
def keeping() -> Iterator[Kept]:
    """Yield a `Kept`, and close its sessions at the end of the block."""
    sessions = Kept()
    try:
        yield sessions
    finally:
        sessions.close()


def session_of(
    kept: Kept | None, kind: str, opened: Callable[[], AbstractContextManager[Session]]
) -> AbstractContextManager[Session]:
    """Return a context with the kept session of this kind, or with a new session if ``kept`` is None."""
    return opened() if kept is None else kept.use(kind, opened)
