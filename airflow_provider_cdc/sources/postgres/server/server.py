"""The server behind a session: which one it is, and how a copy's history relates to the present one."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.core.copies.history import MARK, Finding, Relation, Trace
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

NEXT_XID = "txid_snapshot_xmax(txid_current_snapshot())::text"
"""The number that the server's next transaction gets at least. It only ever grows, whatever is restarted: all that is
below it was in the log before anybody could see that, and a run has its log flushed before its position counts."""


def identity(connection: Connection) -> dict[str, str]:
    """What tells this server from another: JSON for the manifest."""
    system, database, oid, version, timeline, meaning, next_xid = query(
        connection,
        "SELECT s.system_identifier::text, d.datname, d.oid::text, current_setting('server_version'), "
        f"{session_setup.TIMELINE}, current_setting('{session_setup.MEANING}'), {NEXT_XID} "
        "FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()",
    )[0]
    return {
        "system_identifier": system,
        "timeline": session_setup.timeline(timeline),
        "database": database,
        "database_oid": oid,
        "version": version,
        session_setup.MEANING: meaning,
        MARK: next_xid,
    }


def relations(connection: Connection, traces: Sequence[Trace]) -> list[Finding]:
    """`TellsHistory.relations`.

    The log's end, and the number of the next transaction, only ever grow: a server that has not come as far as it was
    when a copy was made was set back. One that has, may have been, too: nothing in it would tell.
    """
    end, next_xid = query(connection, f"SELECT pg_current_wal_insert_lsn()::text, {NEXT_XID}")[0]
    return [_relation(Lsn.parse(end), int(next_xid), trace) for trace in traces]


def _relation(end: Lsn, next_xid: int, trace: Trace) -> Finding:
    start = trace.position
    if not isinstance(start, Lsn):
        return Finding(Relation.UNKNOWN, "the copy does not say what it is exact at")
    if end < start:
        return Finding(Relation.OTHER, f"the server's log reaches to {end} only, and the copy is of {start}")
    if trace.mark.isdecimal() and next_xid < int(trace.mark):
        why = f"the server has counted {next_xid:,} transactions, and {int(trace.mark):,} when the copy was made"
        return Finding(Relation.OTHER, why)
    return Finding(Relation.SAME)
