"""Finds out whether a table already had its present definition at a position before it joined the standing slot.

A table joins the standing slot again when its recorded digest changes (`standing_record.states_of`). For a position
between that change and the next run, the digest alone would be too strict. Each catalog row has the id of the
transaction that changed it last (``xmin``), and the log shows where that transaction was committed. If that is before
the position, the row had its present state at the position. The parts of the definition that are not checked in this
way must not have changed at all (`standing_record.shapes_of`).
"""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.server.session import Connection, query
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Joined

# The catalog rows of the table, of its columns (including dropped columns), and of its NOT NULL constraints. The
# constraints are needed because VALIDATE CONSTRAINT changes only the constraint's row. All transactions older than the
# slot's catalog_xmin have ended before the position of the slot. For the other transactions, the log from the slot's
# position on shows where they were committed.
_LATE = """
SELECT DISTINCT v.xid::text FROM (
    SELECT c.xmin FROM pg_class c WHERE c.oid = %s
    UNION ALL SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0
    UNION ALL SELECT k.xmin FROM pg_constraint k WHERE k.conrelid = %s AND k.contype = 'n'
) AS v(xid)
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = %s AND s.confirmed_flush_lsn <= %s::pg_lsn
    AND age(v.xid) > age(s.catalog_xmin))
"""


def was_already_so(
    settings: ConnectionSettings,
    connection: Connection,
    slot: str,
    confirmed: Lsn,
    joined: Joined,
    table: Table,
    position: Lsn,
) -> bool:
    """Return whether a table had its present definition at ``position``. Since it ``joined``, it must be unchanged.

    False also means that the answer is unknown. This applies to partitioned tables, because not all of their catalog
    rows are checked. It also applies to changes in a subtransaction, because the log lists them under another
    transaction.

    :param slot: the standing slot. Its position was ``confirmed``.
    """
    if table.details["kind"] != "r" or not joined.shape or position < Lsn.parse(joined.shape_position):
        return False
    oid = table.details["oid"]
    late = {xid for (xid,) in query(connection, _LATE, (oid, oid, oid, slot, str(position)))}
    if not late:
        return True
    try:
        with closing(commits_since(settings, slot, confirmed)) as commits:
            for commit in commits:
                if commit.end > position:
                    break
                late.discard(commit.xid)
                if not late:
                    return True
    except ConfigurationError:
        # The server lacks test_decoding.
        pass
    return False
