"""Finds out whether a table already had its present definition at a position before it joined the standing slot.

A table joins the standing slot again when its recorded digest changes (`standing_record.states_of`). For a position
between that change and the next run, the digest alone would be too strict. Each catalog row has the id of the
transaction that changed it last (``xmin``), and the log shows where that transaction was committed. If that is before
the position, the row had its present state at the position. The parts of the definition that are not checked in this
way must not have changed at all (`standing_record.shapes_of`).

The labels of an enum need one more condition. Changing a label takes no lock on the tables, so an open transaction may
have written rows while a label had another name.
"""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.type_catalog import label_oids
from airflow_provider_cdc.sources.postgres.server.session import Connection, query
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Joined

# The catalog rows of the table, of its columns (including dropped columns), of its NOT NULL constraints, and of the
# labels of its enums. The constraints are needed because VALIDATE CONSTRAINT changes only the constraint's row. All
# transactions older than the slot's catalog_xmin have ended before the position of the slot. For the other
# transactions, the log from the slot's position on shows where they were committed.
_LATE = """
SELECT v.xid::text, bool_or(v.is_label) FROM (
    SELECT c.xmin, false FROM pg_class c WHERE c.oid = %(table)s
    UNION ALL SELECT a.xmin, false FROM pg_attribute a WHERE a.attrelid = %(table)s AND a.attnum > 0
    UNION ALL SELECT k.xmin, false FROM pg_constraint k WHERE k.conrelid = %(table)s AND k.contype = 'n'
    UNION ALL SELECT e.xmin, true FROM pg_enum e WHERE e.oid = ANY(%(labels)s::oid[])
) AS v(xid, is_label)
WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.slot_name = %(slot)s
    AND s.confirmed_flush_lsn <= %(position)s::pg_lsn AND age(v.xid) > age(s.catalog_xmin))
GROUP BY 1
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

    If the table has an enum, no transaction that committed after ``position`` may have a change from before the last
    change of a label. The log prints such a change with the label's former name.

    :param slot: the standing slot. Its position was ``confirmed``.
    """
    if table.details["kind"] != "r" or not joined.shape or position < Lsn.parse(joined.shape_position):
        return False
    labels = label_oids(table.columns)
    arguments = {"table": table.details["oid"], "labels": labels, "slot": slot, "position": str(position)}
    late = dict(query(connection, _LATE, arguments))
    if not late and not labels:
        return True
    # Labels whose transaction is not in the log were changed before the position of the slot.
    labels_since, joined_at = confirmed, Lsn.parse(joined.position)
    try:
        with closing(commits_since(settings, slot, confirmed)) as commits:
            for commit in commits:
                if commit.end <= position:
                    if late.pop(commit.xid, False):
                        labels_since = commit.end
                    if not late and not labels:
                        return True
                elif late or commit.begin < labels_since:
                    return False
                elif commit.end > joined_at:
                    break
    except ConfigurationError:
        # The server lacks test_decoding.
        return False
    # Transactions that commit after the table joined began after it joined.
    return not late
