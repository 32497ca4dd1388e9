"""Who may be shown a password: the same rules for every kind of database.

Whoever sits between us and the server can pose as it, and must not learn the password. So whatever reveals it (the
password itself, or the password encrypted for a key that the other side has just sent) goes only to a server that is
known to be the right one: its certificate was verified, or it is on this machine, or it is in a network that the
connection calls trusted.
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
    """What the settings amount to.

    ``mode`` is never empty. ``may_reveal``: the password may be shown to the server, once TLS is as the mode demands.
    """

    mode: str
    may_reveal: bool

    @property
    def encrypted(self) -> bool:
        """Whether a session without TLS is refused."""
        return self.mode not in (DISABLED, PREFERRED)


def trust_in(settings: ConnectionSettings, more: Collection[str] = ()) -> Trust:
    """What TLS has to be like for this connection, and what the server may be shown.

    Without a mode: ``verify_ca`` if there is an authority, else ``required``, or ``preferred`` where nobody is in
    between. A given authority is always checked, whatever the mode.

    :param more: further fields that ``ConnectionSettings.tls`` may have for this kind of database.
    :raises ConfigurationError: the settings contradict each other, or have unknown fields or values.
    """
    tls = settings.tls
    fields = (*_FIELDS, *more)
    mode, ca = tls.get("mode", ""), tls.get("ca", "")
    unknown = sorted(set(tls) - set(fields))
    if unknown or (mode and mode not in MODES):
        raise ConfigurationError(
            f"TLS settings cannot have {unknown if unknown else f'the mode {mode!r}'}",
            where=settings.address,
            hint=f"they are {', '.join(fields)}; mode is one of {', '.join(MODES)}",
        )
    if ca and mode == DISABLED:
        raise ConfigurationError(
            "TLS is disabled, and an authority is there to verify the server's certificate",
            where=settings.address,
            hint="clear tls_mode, or tls_ca",
        )
    nobody_between = is_local(settings.host) or _is_yes(settings, "trusted_network")
    if ca:
        mode = VERIFY_IDENTITY if mode == VERIFY_IDENTITY else VERIFY_CA
    elif not mode:
        mode = PREFERRED if nobody_between and not tls.get("cert") else REQUIRED
    return Trust(mode, may_reveal=nobody_between or mode in _VERIFYING)


def is_local(host: str) -> bool:
    """Whether a host is this machine, by its address or the path of its socket: nobody is in between."""
    if host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def warning(settings: ConnectionSettings) -> str:
    """What a step's log should say about how the server is reached; empty: nothing."""
    if is_local(settings.host):
        return ""
    if _is_yes(settings, "trusted_network"):
        return (
            f"{settings.address}: tls_trusted_network is set: whoever is in that network can read the password, "
            "unless the server's certificate is verified (tls_ca)"
        )
    mode = settings.tls.get("mode")
    if mode in (DISABLED, PREFERRED) and not settings.tls.get("ca"):
        return (
            f"{settings.address}: tls_mode is {mode}: whoever is on the way can read and change what is copied; "
            "verify the server's certificate (tls_ca)"
        )
    return ""


def without_frames(error: BaseException) -> BaseException:
    """A driver's error, and what caused it, with nothing but its message: neither the frames that it passed, of which
    some hold the password as a local variable, nor its attributes, of which psycopg's hold the connection's parameters.
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
            f"the TLS setting {name} is {setting!r}", where=settings.address, hint="set it to true, or clear it"
        )
    return setting in _YES
