"""Whether a table was at a position already what it is now, although it joined the standing slot anew since.

A table's digest on record tells of any change since it joined (`standing_record.states_of`). That is too much for a
position between the change and the next run. The catalog has the transaction that changed a row last (``xmin``), and
the log, where that was committed: if that is before the position, the row was there what it is now, whatever it was
earlier. What is not looked at in this way must not have changed at all (`standing_record.shapes_of`).
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

# Of the table and its columns. One that was dropped since has a row, too. Where a slot stands, all transactions have
# ended that are older than its catalog_xmin; of the others, the log since there tells.
_LATE = """
SELECT DISTINCT v.xid::text FROM (
    SELECT c.xmin FROM pg_class c WHERE c.oid = %s
    UNION ALL SELECT a.xmin FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0
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
    """Whether a table, which is still what it was when it ``joined``, was so at ``position``, as far as can be told.

    Of a partitioned table the catalog has more rows than those that are looked at. Of a change in a subtransaction the
    log names another transaction.

    :param slot: the standing slot, which stood at ``confirmed``.
    """
    if table.details["kind"] != "r" or not joined.shape or position < Lsn.parse(joined.shape_position):
        return False
    oid = table.details["oid"]
    late = {xid for (xid,) in query(connection, _LATE, (oid, oid, slot, str(position)))}
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
