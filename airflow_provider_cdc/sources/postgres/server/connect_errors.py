"""Maps failed connections to errors by SQLSTATE. The text of an error cannot be used, because servers may use another
language.

libpq reports a failed connection only as text. This text includes the SQLSTATE only in verbose mode, and no driver
offers this mode. So this module repeats a failed connection attempt directly through libpq.
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
from airflow_provider_cdc.sources.postgres.server import libpq_environment

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
            return ConfigurationError(
                "the server refuses this user or password",
                where=where,
                hint="correct the connection's login and password",
            )
        case "28000":
            return ConfigurationError(
                f"the server refuses this user or password, this user's connections from this machine, or these TLS "
                f"settings: {message}",
                where=where,
                hint="correct the connection's login and its TLS mode, or make the server accept them (pg_hba.conf, "
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
                hint=f"GRANT CONNECT ON DATABASE {types.quote(settings.database)} TO {types.quote(settings.user)}; to "
                f"read the log, also ALTER ROLE {types.quote(settings.user)} REPLICATION. If an event trigger ON "
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
                f"search_path = {types.SESSION_SETTINGS['search_path']}: qualify the names in the trigger's "
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
        case _ if variables := libpq_environment.variables(arguments):
            names = ", ".join(variables)
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
