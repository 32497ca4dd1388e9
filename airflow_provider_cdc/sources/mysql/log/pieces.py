"""Pieces of the binary log, between two places in the log. A place is inside a file, between two transactions."""

from __future__ import annotations

import pymysql

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.positions.position import LogEnd, Position
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.log import Waiting
from airflow_provider_cdc.sources.api.window import LogSegment
from airflow_provider_cdc.sources.mysql.log.segments import together
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.facts import MysqlFacts
from airflow_provider_cdc.sources.mysql.server.log_history import (
    LogPlace,
    backlog,
    check_continuity,
    check_place,
    is_before,
    log_files,
)
from airflow_provider_cdc.sources.mysql.server.session import query, session

_DENIED = 1401


def waiting(settings: ConnectionSettings, facts: MysqlFacts, place: LogEnd) -> Waiting:
    """`Source.waiting`."""
    with session(settings) as connection:
        return Waiting(backlog(connection, LogPlace.parse(place) if place else facts.place))


def segments_from(
    settings: ConnectionSettings, start: LogEnd, end: LogEnd, facts: MysqlFacts, number: int, slots: int
) -> list[LogSegment]:
    """Return the segments from the place ``start``, at which a recorded piece ends, to the place ``end``."""
    begin, stop = LogPlace.parse(start), LogPlace.parse(end)
    with session(settings) as connection:
        files = log_files(connection)
        names = list(files)
        for place in (begin, stop):
            check_place(settings, files, place)
        first, last = names.index(begin.file), names.index(stop.file)
        check_continuity(settings, {name: files[name] for name in names[: last + 1]}, begin, _restarts(facts))
    sizes = {name: stop.position if name == stop.file else files[name] for name in names[first : last + 1]}
    sizes[begin.file] -= begin.position
    return [
        LogSegment(
            number + place,
            group[0],
            begin.position if group[0] == begin.file else log_protocol.FIRST_POSITION,
            stop.position if group[-1] == stop.file else None,
            also=tuple(group[1:]),
            bytes=sum(sizes[name] for name in group),
        )
        for place, group in enumerate(together(sizes, slots))
    ]


def check_joined(settings: ConnectionSettings, end: LogEnd, facts: MysqlFacts) -> None:
    """`Source.check_joined`. The server must have closed each file since ``end`` cleanly, so it has not crashed."""
    place = LogPlace.parse(end)
    with session(settings) as connection:
        files = log_files(connection)
        check_place(settings, files, place)
        check_continuity(settings, files, place, _restarts(facts))


def _restarts(facts: MysqlFacts) -> int:
    return 0 if facts.reached is None else facts.reached.restarts


def place_is_before(one: LogEnd, other: LogEnd) -> bool:
    """`Source.is_before`."""
    return is_before(LogPlace.parse(one), LogPlace.parse(other))


def is_within(position: str, upper: Position) -> bool:
    """`Source.is_within`."""
    return GtidSet.parse(position) <= GtidSet.expect(upper)


def prepared_now(settings: ConnectionSettings) -> set[str] | None:
    """`Source.prepared_now`."""
    with session(settings) as connection:
        try:
            rows = query(connection, "XA RECOVER CONVERT XID")
        except pymysql.MySQLError as error:
            if error.args[0] != _DENIED:
                raise
            return None
    return {_xid(int(form), int(of_transaction), str(data)) for form, of_transaction, _, data in rows}


def _xid(form: int, of_transaction: int, data: str) -> str:
    digits = data.removeprefix("0x").lower()
    return f"X'{digits[: 2 * of_transaction]}',X'{digits[2 * of_transaction :]}',{form}"
