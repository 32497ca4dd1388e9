"""The commit times by which a transaction is recognized on another server.

A GTID identifies a transaction only within one history: in a restored backup, or after a crash with sync_binlog=0, the
server gives the same GTIDs to other transactions. A session can give any GTID to a transaction, too (``gtid_next``):
after a write on a replica, operators commit an empty transaction with the same GTID on the primary. But replication
keeps the time at which the transaction was committed on its first server, in microseconds
(``original_commit_timestamp``). If a GTID has the same time on two servers, it is the same transaction on both.

Replication keeps the ``server_id`` of this server, too. So a replica's log tells which transactions were committed by
sessions of the replica, whatever GTIDs they chose.
"""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.core.positions.gtid import Gtid, GtidSet
from airflow_provider_cdc.errors import SourceUnavailable
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.mysql.server import log_protocol
from airflow_provider_cdc.sources.mysql.server.log_history import HistoryEvent, log_events, log_files
from airflow_provider_cdc.sources.mysql.server.session import Connection, value

_NOTHING = GtidSet()
_HAS_TIMES = 2
_TIME_AT, _TIME_BYTES = 42, 7
_ORIGINAL_FOLLOWS = 1 << 55
_SERVER_AT = slice(5, 9)
_SEARCHED = 100_000


def last_commits(
    settings: ConnectionSettings, connection: Connection, *positions: GtidSet, without: GtidSet = _NOTHING
) -> str:
    """Return the commit time of the last transaction of each UUID in each of the ``positions``, as text:
    ``uuid:number@microseconds``, separated by commas. Transactions that are no longer in the log are omitted.

    Empty: the log has none of them. Or it has transactions with tags, whose events have another format.

    :param without: transactions to omit.
    """
    purged = GtidSet.parse(value(connection, "@@global.gtid_purged"))
    if any(tag for position in positions for _, tag, _ in (position - purged).items()):
        return ""
    found = commit_times(settings, connection, last_transactions(*positions) - without)
    return ",".join(f"{gtid}@{when}" for gtid, when in sorted(found.items()))


def last_transactions(*positions: GtidSet) -> GtidSet:
    """Return the last transaction of each UUID in each of the ``positions``, except those with tags."""
    return GtidSet.of(
        [
            Gtid(uuid, "", intervals[-1][1] - 1)
            for position in positions
            for uuid, tag, intervals in position.items()
            if not tag
        ]
    )


def difference(settings: ConnectionSettings, connection: Connection, commits: str) -> str | None:
    """Return why the transactions of ``commits`` (`last_commits`) are not those that have these GTIDs on this server.

    Empty: they are. None: the server no longer has any of them in its log.
    """
    wanted = dict(one.rsplit("@", 1) for one in commits.split(",") if one)
    found = commit_times(settings, connection, GtidSet.parse(",".join(wanted)))
    others = sorted(gtid for gtid, when in found.items() if str(when) != wanted[gtid])
    if others:
        return f"{', '.join(others)} is another transaction there: a backup was restored, or a server lost transactions"
    return "" if found else None


def commit_times(settings: ConnectionSettings, connection: Connection, wanted: GtidSet) -> dict[str, int]:
    """Return the original commit times of a few transactions, in microseconds since 1970, by the text of the GTID.

    Transactions that are no longer in the log are omitted. For each transaction, the server reads one file, but sends
    hardly anything else.
    """
    # Read gtid_purged first: the server may purge log meanwhile, and then it refuses the request.
    purged, executed = (
        GtidSet.parse(value(connection, f"@@global.{name}")) for name in ("gtid_purged", "gtid_executed")
    )
    found: dict[str, int] = {}
    logged = ((wanted & executed) - purged).items()
    for one in (
        Gtid(uuid, tag, gno) for uuid, tag, intervals in logged for bounds in intervals for gno in range(*bounds)
    ):
        # Request one at a time: for several, the server would read all files from the first to the last of them.
        others = (executed - GtidSet.of([one])).encode()
        with closing(log_events(settings, "", log_protocol.FIRST_POSITION, others)) as events:
            for event in events:
                if event.kind == log_protocol.GTID and (read := _original_time(event)) is not None:
                    gtid, when = read
                    if gtid == str(one):
                        found[gtid] = when
                        break
    return found


def _original_time(event: HistoryEvent) -> tuple[str, int] | None:
    body = event.data[log_protocol.HEADER_BYTES :]
    if len(body) < _TIME_AT + 2 * _TIME_BYTES or body[25] != _HAS_TIMES:
        return None
    gtid = str(Gtid(body[1:17], "", int.from_bytes(body[17:25], "little")))
    times = [int.from_bytes(body[at : at + _TIME_BYTES], "little") for at in (_TIME_AT, _TIME_AT + _TIME_BYTES)]
    return gtid, times[1] if times[0] & _ORIGINAL_FOLLOWS else times[0]


def committed_by_sessions(settings: ConnectionSettings, connection: Connection, searched: GtidSet) -> list[str]:
    """Return the transactions that the server has in its log as its own, with GTIDs of any server.

    For example, operators skip a transaction that a replica cannot apply: they commit an empty one with its GTID. This
    is possible with ``super_read_only=ON``, too.

    :param searched: transactions to omit. Empty: the last transactions of each UUID are searched, as far as they are in
        the two newest files of the log.
    """
    executed = GtidSet.parse(value(connection, "@@global.gtid_executed"))
    if executed <= searched:
        return []
    # Without a name, the server begins with the file of the first transaction that was not searched.
    file, without = "", searched
    if not searched:
        file, without = [*log_files(connection)][-2:][0], executed - _newest(executed)
    own = int(value(connection, "@@global.server_id"))
    found, is_empty = [], True
    with closing(log_events(settings, file, log_protocol.FIRST_POSITION, without.encode())) as events:
        for event in events:
            is_empty = False
            if event.kind not in (log_protocol.GTID, log_protocol.TAGGED_GTID):
                continue
            if int.from_bytes(event.data[_SERVER_AT], "little") == own:
                body = event.data[log_protocol.HEADER_BYTES :]
                untagged = event.kind == log_protocol.GTID
                gtid = Gtid(body[1:17], "", int.from_bytes(body[17:25], "little")) if untagged else "one with a tag"
                found.append(str(gtid))
    if is_empty:
        raise SourceUnavailable(
            "the log was purged while it was searched", where=settings.address, hint="retry the task"
        )
    return found


def _newest(executed: GtidSet) -> GtidSet:
    """Return the last transactions of each UUID and tag."""
    last = [Gtid(uuid, tag, intervals[-1][1] - 1) for uuid, tag, intervals in executed.items()]
    ranges = (f"{str(one).rpartition(':')[0]}:{max(1, one.gno - _SEARCHED)}-{one.gno}" for one in last)
    return GtidSet.parse(",".join(ranges)) & executed
