"""Compares a server with the table of versions (`server.dialect`), without writing to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass

import pymysql

from airflow_provider_cdc.errors import CdcError, SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.decode.prepared import PreparedStatement
from airflow_provider_cdc.sources.mysql.log import events
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.dialect import FEATURES, VARIABLES, Feature
from airflow_provider_cdc.sources.mysql.server.log_history import log_events, log_status
from airflow_provider_cdc.sources.mysql.server.server import durability_warnings, executed, service
from airflow_provider_cdc.sources.mysql.server.session import (
    Connection,
    query,
    server_version,
    session,
    set_session,
    value,
    variables,
)
from airflow_provider_cdc.sources.mysql.tables.identity import identity_warnings

PROBE_SECONDS = 10
"""The time limit of each probe."""

_LACKING = {1047, 1054, 1064, 1109, 1146, 1149, 1193, 1235, 1305, 1772}
"""Errors of a server that does not have a feature."""
_NOT_PREPARABLE = 1295
"""The server has parsed the statement, which it cannot prepare."""
_CHECKED, _PRIVATE = VARIABLES["gtid_mode"].use, ("hostname",)
"""The use of the variables that a report shows, and the names that it does not show."""


@dataclass(frozen=True)
class Compared:
    """What a server answered to the probe of a feature.

    :param expected: whether a server of this version has the feature. None: it is uncertain.
    :param found: whether the server has it. None: it was not found out.
    :param answer: the server's error, or why the feature was not probed.
    """

    feature: Feature
    expected: bool | None
    found: bool | None
    answer: str = ""

    @property
    def differs(self) -> bool:
        return None not in (self.expected, self.found) and self.expected is not self.found


@dataclass(frozen=True)
class ServerReport:
    """What a report of a problem needs to contain about a server. It may name the connection's user, but no server.

    :param log: the format of the log, or why it cannot be read.
    :param settings: the global variables that preflight checks.
    """

    version: str
    comment: str
    service: str
    log: str
    compared: tuple[Compared, ...]
    settings: Mapping[str, str]
    warnings: tuple[str, ...]

    @property
    def differences(self) -> list[Compared]:
        return [one for one in self.compared if one.differs]


def report(settings: ConnectionSettings) -> ServerReport:
    """Run the probe of every feature, in read-only sessions.

    :raises ConfigurationError: the connection cannot work, or the server is too old.
    :raises SourceUnavailable: the server cannot be reached.
    """
    with session(settings) as connection:
        set_session(connection, {"transaction_read_only": "ON", "max_execution_time": str(PROBE_SECONDS * 1000)})
        names = [name for name, one in VARIABLES.items() if one.use == _CHECKED and name not in _PRIVATE]
        found = variables(connection, names)
        compared = tuple(_compared(settings, connection, feature) for feature in FEATURES)
        return ServerReport(
            version=connection.greeted_version,
            comment=found.pop("version_comment", ""),
            service=service(connection).name,
            log=_log(settings, connection),
            compared=compared,
            settings=found,
            warnings=(*durability_warnings(connection), *identity_warnings(connection)),
        )


def _compared(settings: ConnectionSettings, connection: Connection, feature: Feature) -> Compared:
    expected = feature.known_to(server_version(connection)) if feature.certain else None
    command = _COMMANDS.get(feature.name)
    if not feature.probe and command is None:
        return Compared(feature, expected, None, "no statement shows this")
    try:
        if command is not None:
            return Compared(feature, expected, command(settings, connection))
        if feature.parsed:
            PreparedStatement(connection, feature.probe).close()
            return Compared(feature, expected, True)
        query(connection, feature.probe)
        return Compared(feature, expected, True)
    except pymysql.MySQLError as error:
        code, text = (*error.args, "")[:2]
        if not connection.open:
            raise
        answer = f"{text} (MySQL error {code})"
        found = {code in _LACKING: False, code == _NOT_PREPARABLE: True}.get(True)
        return Compared(feature, expected, found, answer)
    except CdcError as error:
        if isinstance(error, SourceUnavailable) or not connection.open:
            raise
        return Compared(feature, expected, None, str(error))


def _execute_prepared(settings: ConnectionSettings, connection: Connection) -> bool:
    prepared = PreparedStatement(connection, "SELECT CAST(? AS BINARY)")
    answer = prepared.value([b"x"])
    prepared.close()
    return answer == b"x"


def _dump_file(settings: ConnectionSettings, connection: Connection) -> bool:
    return bool(_format_of(settings, connection))


def _dump_gtids(settings: ConnectionSettings, connection: Connection) -> bool:
    others = executed(connection).encode()
    with closing(log_events(settings, "", log_protocol.FIRST_POSITION, others)) as found:
        return next(found, None) is not None


_COMMANDS: Mapping[str, Callable[[ConnectionSettings, Connection], bool]] = {
    "COM_BINLOG_DUMP": _dump_file,
    "COM_BINLOG_DUMP_GTID": _dump_gtids,
    **dict.fromkeys(("COM_STMT_PREPARE", "COM_STMT_EXECUTE", "COM_STMT_CLOSE"), _execute_prepared),
    # The session was opened with both of them.
    **dict.fromkeys(("COM_QUERY", "COM_RESET_CONNECTION"), lambda settings, connection: True),
}


def _format_of(settings: ConnectionSettings, connection: Connection) -> bytes:
    """Return the body of the FORMAT_DESCRIPTION event of the current file. Empty: the server did not send it."""
    file, *_ = log_status(connection)
    with closing(log_events(settings, file, log_protocol.FIRST_POSITION)) as found:
        data = next((event.data for event in found if event.kind == log_protocol.FORMAT_DESCRIPTION), b"")
    return data[log_protocol.HEADER_BYTES : -log_protocol.CHECKSUM_BYTES]


def _log(settings: ConnectionSettings, connection: Connection) -> str:
    try:
        body = _format_of(settings, connection)
        described = events.format_description(body)
    except pymysql.MySQLError as error:
        return f"cannot be read: {error.args[-1]} (MySQL error {error.args[0]})"
    except CdcError as error:
        return f"cannot be read: {error}"
    compressed = value(connection, "@@global.binlog_transaction_compression")
    return (
        f"written by {body[_VERSION].rstrip(bytes(1)).decode('utf-8', 'replace')}, "
        f"{len(body) - _EVENTS_AT} types of events, "
        f"checksums {'on' if described.checksums else 'off'}, compression {'on' if compressed else 'off'}"
    )


_VERSION, _EVENTS_AT = slice(2, 52), 58
"""In a FORMAT_DESCRIPTION event: the place of the server's version, and the size without the list of events."""
