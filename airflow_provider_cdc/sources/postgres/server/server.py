"""Reads the identity of a session's server, and compares the history of a copy with the history of the server."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.core.copies.history import MARK, Finding, Relation, Trace
from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.sources.postgres.server import session_setup
from airflow_provider_cdc.sources.postgres.server.session import Connection, query

NEXT_XID = "txid_snapshot_xmax(txid_current_snapshot())::text"
"""SQL for a lower bound of the server's next transaction id. The bound never decreases, even after a restart, because
all lower ids were in the log before they were visible, and a run flushes the log before its position counts."""


def identity(connection: Connection) -> dict[str, str]:
    """Return the values that distinguish this server from other servers, in a form that the manifest can store."""
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
    """`Source.relations`.

    The end of the log and the id of the next transaction never decrease. If one of these values is less than it was
    when a copy was made, the server was reset to an earlier state. If neither value is less, the server may still have
    been reset, but this cannot be detected.
    """
    end, next_xid = query(connection, f"SELECT pg_current_wal_insert_lsn()::text, {NEXT_XID}")[0]
    return [_relation(Lsn.parse(end), int(next_xid), trace) for trace in traces]


def _relation(end: Lsn, next_xid: int, trace: Trace) -> Finding:
    start = trace.position
    if not isinstance(start, Lsn):
        return Finding(Relation.UNKNOWN, "the copy does not record its position")
    if end < start:
        return Finding(Relation.OTHER, f"the server's log ends at {end}, before the copy's position {start}")
    if trace.mark.isdecimal() and next_xid < int(trace.mark):
        why = f"the server has counted {next_xid:,} transactions, but {int(trace.mark):,} when the copy was made"
        return Finding(Relation.OTHER, why)
    return Finding(Relation.SAME)
