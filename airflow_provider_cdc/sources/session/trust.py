"""Decides to which servers a password may be sent, by the same rules for every kind of database.

An attacker in the network may impersonate the server, and must not learn the password. Two kinds of data reveal the
password: the password itself, and the password encrypted with a key that the other side has just sent. Such data is
sent only to a server whose identity is certain. This is the case if the server's certificate was verified, if the
server is on this machine, or if it is in a network that the connection declares as trusted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

from airflow_provider_cdc.errors import CdcError, ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings

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
        mode = PREFERRED if nobody_between and not tls.get("cert") else REQUIRED
    return Trust(mode, may_reveal=nobody_between or mode in _VERIFYING)


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
