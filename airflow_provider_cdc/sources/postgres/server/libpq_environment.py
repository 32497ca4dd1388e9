"""Keeps libpq's environment variables from changing sessions.

libpq takes each parameter that a program does not pass from an environment variable (PGSSLMINPROTOCOLVERSION, …). These
variables may be set for other programs of the machine. So a session passes the default of each parameter whose variable
is set. The parameter ``service`` has no value that stands for the default, so an error names its variable.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping

from psycopg import pq

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


def variables(given: Container[str]) -> list[str]:
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
