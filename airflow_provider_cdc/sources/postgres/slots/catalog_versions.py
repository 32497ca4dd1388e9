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

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.errors import ConfigurationError
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.postgres.catalog.type_catalog import label_oids
from airflow_provider_cdc.sources.postgres.server.session import Connection, query
from airflow_provider_cdc.sources.postgres.slots.commits import commits_since
from airflow_provider_cdc.sources.postgres.slots.standing_record import Joined

_NEVER = Lsn(2**64 - 1)

# The catalog rows for a table, its columns (including dropped columns), its NOT NULL constraints, and the labels of its
# enums. The rows for constraints are needed because VALIDATE CONSTRAINT changes no other row. All transactions older
# than the slot's catalog_xmin have ended before the position of the slot. The log from the slot's position on contains
# the commits of the other transactions.
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


@dataclass(frozen=True)
class Asked:
    """The question whether ``table`` already had its present definition at ``position``. Since it ``joined`` the
    standing slot, it must be unchanged.

    ``labels_at``: the position at which the labels of its enums must already have had their present names. None:
    ``position``. ``only_labels``: ask only about the labels.
    """

    table: Table
    joined: Joined
    position: Lsn
    labels_at: Lsn | None = None
    only_labels: bool = False

    @property
    def named_at(self) -> Lsn:
        return self.position if self.labels_at is None else self.labels_at


def already_so(
    settings: ConnectionSettings, connection: Connection, slot: str, confirmed: Lsn, asked: Sequence[Asked]
) -> set[TableName]:
    """Return the tables for which the answer is yes. For the other tables, the answer is no or unknown.

    It is unknown for partitioned tables, because not all of their catalog rows are checked. It is also unknown after
    changes in a subtransaction, because the log lists them under another transaction.

    If a table has an enum, no transaction that committed after the position may have a change from before the last
    change of a label. The log prints such a change with the label's former name.

    The log is read once for all tables.

    :param slot: the standing slot. Its position was ``confirmed``.
    """
    unchanged: set[TableName] = set()
    open_questions: list[tuple[Asked, dict[str, bool], bool]] = []
    for question in asked:
        table, joined, position = question.table, question.joined, question.position
        if table.details["kind"] != "r" or not joined.shape or position < Lsn.parse(joined.shape_position):
            continue
        labels = label_oids(table.columns)
        arguments = {"table": table.details["oid"], "labels": labels, "slot": slot, "position": str(question.named_at)}
        late = {
            xid: is_label
            for xid, is_label in query(connection, _LATE, arguments)
            if is_label or not question.only_labels
        }
        if late or labels:
            open_questions.append((question, late, bool(labels)))
        else:
            unchanged.add(table.name)
    if not open_questions:
        return unchanged

    wanted = {xid for _, late, _ in open_questions for xid in late}
    ends: dict[str, Lsn] = {}
    # Maps each position to the lowest `begin` of the commits after the position.
    begins: dict[Lsn, Lsn] = {question.named_at: _NEVER for question, _, has_labels in open_questions if has_labels}
    # A transaction that commits after a table joined the standing slot also began after the table joined.
    last = max(question.position for question, _, _ in open_questions)
    if begins:
        last = max(last, *(Lsn.parse(question.joined.position) for question, _, _ in open_questions))
    try:
        with closing(commits_since(settings, slot, confirmed)) as commits:
            for commit in commits:
                if commit.end > last or (not begins and len(ends) == len(wanted)):
                    break
                if commit.xid in wanted:
                    ends[commit.xid] = commit.end
                for position, begin in begins.items():
                    if commit.end > position and commit.begin < begin:
                        begins[position] = commit.begin
    except ConfigurationError:
        # The server lacks test_decoding.
        return unchanged
    for question, late, has_labels in open_questions:
        # If the transaction that changed a label is not in the log, the label was changed before the position of the
        # slot.
        labels_since = max([confirmed, *(ends.get(xid, _NEVER) for xid, is_label in late.items() if is_label)])
        bounds = {xid: question.named_at if is_label else question.position for xid, is_label in late.items()}
        if all(ends.get(xid, _NEVER) <= bound for xid, bound in bounds.items()) and (
            not has_labels or begins[question.named_at] >= labels_since
        ):
            unchanged.add(question.table.name)
    return unchanged
