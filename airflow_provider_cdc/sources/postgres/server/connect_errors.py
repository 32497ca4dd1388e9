"""Why a connection could not be made, by SQLSTATE: the server's words are in whatever language it is set to.

libpq reports a refusal as text only, and leaves out the SQLSTATE unless it is told to be verbose. No driver passes that
option on, so a refused connection is tried once more, by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
import selectors
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from airflow_provider_cdc.errors import CdcError, ConfigurationError, SourceUnavailable
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog import types

NO_CLEARTEXT = "!password"
"""``require_auth`` for a server that has not proved to be the one that is meant."""

_RAISED = ("P0", "22", "23", "42", "2F", "38", "39")
"""Classes of errors that a server raises in code that it runs for a session."""
_SECONDS = 15
# PQERRORS_VERBOSE, of libpq-fe.h: it adds the SQLSTATE, in any language.
_VERBOSE = 2
# Behind the severity; there is no SQLSTATE without a digit.
_STATE = re.compile(r":  (?=[A-Z]*[0-9])([0-9A-Z]{5}): ")


def connect_error(settings: ConnectionSettings, arguments: Mapping[str, str], text: str) -> CdcError:
    """The error for a connection that a driver could not make.

    :param arguments: what it was asked for, as parameters of libpq.
    :param text: what it said.
    """
    where, message = settings.address, " ".join(text.split())
    # What libpq itself says is in English: it speaks other languages only where a program asks for them.
    if re.search("could not translate host name|failed to resolve host", text) and "Temporary failure" not in text:
        return ConfigurationError(f"no host is called {settings.host!r}", where=where, hint="correct the host")
    if f'"{NO_CLEARTEXT}"' in text:
        return ConfigurationError(
            "the server wants the password as it is, and nothing shows that it is the server it says it is",
            where=where,
            hint="name the authority that signed its certificate (tls_ca); or let it use scram-sha-256 (pg_hba.conf); "
            "or say that nobody else is in the network between (tls_trusted_network)",
        )
    if re.search("private key file", text):
        return ConfigurationError(
            f"the key of the client's certificate cannot be used: {message}",
            where=where,
            hint="correct tls_cert and tls_key: the certificate's own key, in a file that only this user can read, "
            "without a passphrase",
        )
    if re.search("certificate|SSL error|SSL response|sslmode|does not support SSL|root.crt", text):
        return _tls_refused(where, message)
    # A server that did not answer gives no SQLSTATE either, and asking again would only wait once more.
    match "" if "timeout expired" in text else state_of_refusal(arguments):
        case "28P01":
            return ConfigurationError(
                "the server refuses this user or password",
                where=where,
                hint="correct the connection's login and password",
            )
        case "28000":
            return ConfigurationError(
                f"the server refuses this user or password, or does not let this user in from here, or not under these "
                f"TLS settings: {message}",
                where=where,
                hint="correct the connection's login and its TLS mode, or let the server accept them (pg_hba.conf, "
                f"ALTER ROLE {types.quote(settings.user)} LOGIN)",
            )
        case "3D000":
            return ConfigurationError(
                f"there is no database {settings.database!r}", where=where, hint="correct the connection's schema"
            )
        case "42501":
            return ConfigurationError(
                message,
                where=where,
                hint=f"GRANT CONNECT ON DATABASE {types.quote(settings.database)} TO {types.quote(settings.user)}; for "
                f"the log also ALTER ROLE {types.quote(settings.user)} REPLICATION; or, if an event trigger ON login "
                "(17 and later) raises this, what its function uses",
            )
        case "08P01" | "0A000" | "22023" | "42704":
            return ConfigurationError(
                f"what answers refuses the session's start-up options: {message}",
                where=where,
                hint="a connection pooler does so: connect to the server itself",
            )
        case state if state.startswith(_RAISED):
            return ConfigurationError(
                f"the server ends each session of this user when it begins: {message}",
                where=where,
                hint="an event trigger ON login (17 and later) raises this: qualify the names in its function with "
                f"their schemas, for our sessions have search_path = {types.SESSION_SETTINGS['search_path']}, or ALTER "
                "FUNCTION … SET search_path = …; or let it leave out the user of this connection",
            )
        case "53300" | "53000" | "53400":
            return SourceUnavailable(message, where=where, hint="let fewer Spark tasks run at once, or raise the limit")
        case "57P03":
            error = SourceUnavailable(
                f"the server is not ready for connections yet: {message}",
                where=where,
                hint="it is starting up, shutting down, or recovering from a crash: its log shows how far it is; the "
                "task can be retried once it answers",
            )
            error.is_starting = True
            return error
        case _:
            return SourceUnavailable(
                f"the server does not answer: {message}", where=where, hint="start the server, or correct host and port"
            )


def _tls_refused(where: str, said: str) -> ConfigurationError:
    return ConfigurationError(
        f"no connection could be made under these TLS settings: {said}",
        where=where,
        hint="correct the TLS mode, authority, certificate and key, or what the server asks for (pg_hba.conf)",
    )


def state_of_refusal(arguments: Mapping[str, str]) -> str:
    """Connect once more, and return the SQLSTATE with which the server refuses; empty if it does not say, or accepts.

    With several (libpq tries without TLS what was refused with it), the last one.
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
    """`PQsetErrorVerbosity`, of the very libpq that psycopg speaks through."""
    module = importlib.import_module(type(connection).__module__)
    path = pq.misc.find_libpq_full_path() if pq.__impl__ == "python" else module.__file__
    # Looked up in a module of a driver, a name is looked up in what it was linked with, too.
    function = ctypes.CDLL(path).PQsetErrorVerbosity
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    function(connection.pgconn_ptr, _VERBOSE)
