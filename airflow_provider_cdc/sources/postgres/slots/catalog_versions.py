"""Finds out whether a table already had its present definition at a position before it joined the standing slot.

A table joins the standing slot again when its recorded digest changes (`standing_record.states_of`). For a position
between that change and the next run, the digest alone would be too strict. Each catalog row has the id of the
transaction that changed it last (``xmin``). If that transaction ended before the position, the row had its present
state at the position. The parts of the definition that are not checked in this way must not have changed at all
(`standing_record.shapes_of`).

Which transactions had ended: all transactions that are older than a slot's ``catalog_xmin`` ended before the slot's
position. The server logs the running transactions every 15 seconds, and a slot takes its ``catalog_xmin`` from there.
So it may be unknown whether the last transactions before a position had ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query
from airflow_provider_cdc.sources.postgres.slots.commits import copied_slot
from airflow_provider_cdc.sources.postgres.slots.standing_record import Joined

# The catalog rows for a table, its columns (including dropped columns), and its NOT NULL constraints. The rows for
# constraints are needed because VALIDATE CONSTRAINT changes no other row.
_ROWS = """
SELECT DISTINCT v.xid::text FROM (
    SELECT c.xmin FROM pg_class c WHERE c.oid = %(table)s
    UNION ALL SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0
    UNION ALL SELECT k.xmin FROM pg_constraint k WHERE k.conrelid = %(table)s AND k.contype = 'n'
) AS v(xid)
"""
_ENDED = """
SELECT x FROM pg_replication_slots s, unnest(%s::text[]) x
WHERE s.slot_name = %s AND s.confirmed_flush_lsn <= %s::pg_lsn AND age(x::xid) > age(s.catalog_xmin)
"""

Key = TypeVar("Key")


@dataclass(frozen=True)
class Asked:
    """The question whether ``table`` already had its present definition at ``position``. Since it ``joined`` the
    standing slot, it must be unchanged."""

    table: Table
    joined: Joined
    position: Lsn


def already_so(
    settings: ConnectionSettings, connection: Connection, slot: str, asked: Iterable[Asked]
) -> set[TableName]:
    """Return the tables for which the answer is yes. For the other tables, the answer is no or unknown.

    It is unknown for partitioned tables, because not all of their catalog rows are checked.

    :param slot: the standing slot.
    """
    versions: dict[Lsn, dict[TableName, set[str]]] = {}
    for question in asked:
        table, joined, position = question.table, question.joined, question.position
        if table.details["kind"] == "r" and joined.shape and position >= Lsn.parse(joined.shape_position):
            rows = query(connection, _ROWS, {"table": table.details["oid"]})
            versions.setdefault(position, {})[table.name] = {xid for (xid,) in rows}
    return {
        name
        for position, tables in versions.items()
        for name in all_ended(settings, connection, slot, position, tables)
    }


def all_ended(
    settings: ConnectionSettings,
    connection: Connection,
    slot: str,
    position: Lsn,
    transactions: Mapping[Key, Collection[str]],
) -> set[Key]:
    """Return the keys of ``transactions`` of which all transactions are known to have ended before ``position``.

    :param slot: a slot that has the log since ``position``.
    """
    ended = _ended(connection, slot, position, transactions)
    if unknown := {key: xids for key, xids in transactions.items() if key not in ended}:
        with copied_slot(settings, slot, position) as (own_connection, copy):
            # A slot takes its catalog_xmin from the first record of running transactions after its position. Only if
            # the log is decoded again, the slot also takes it from the later records before its position.
            query(own_connection, "SELECT pg_replication_slot_advance(%s, %s)", (copy, str(position)))
            ended |= _ended(own_connection, copy, position, unknown)
    return ended


def _ended(connection: Connection, slot: str, position: Lsn, transactions: Mapping[Key, Collection[str]]) -> set[Key]:
    wanted = [*{xid for xids in transactions.values() for xid in xids}]
    ended = {xid for (xid,) in query(connection, _ENDED, (wanted, slot, str(position)))}
    return {key for key, xids in transactions.items() if ended.issuperset(xids)}
