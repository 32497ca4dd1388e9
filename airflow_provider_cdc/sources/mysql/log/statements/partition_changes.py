"""Recognizes partition changes of copied tables that do not stop the run because they change no row.

- ADD PARTITION adds an empty partition. If the table has HASH partitions, ADD PARTITION also redistributes the rows, as
  COALESCE PARTITION does.
- OPTIMIZE PARTITION rebuilds the whole table with every ALGORITHM, and keeps each row in its partition. ANALYZE
  PARTITION only collects statistics.
- REBUILD and REORGANIZE PARTITION move each row to the partition that it belongs to, and silently drop rows that belong
  to no partition. If all rows belonged to partitions at the recorded position, they still do
  (`sources.mysql.tables.partitions`). If the last of the new ranges is unbounded (MAXVALUE), every row belongs to a
  partition. The server does not allow a REORGANIZE that shrinks the ranges. A REORGANIZE may remove values from a list.
  In this case, the rows with these values are lost.
- All of these statements except OPTIMIZE and ANALYZE compute the partition of each row, unless they add ranges or
  lists. If the computation fails with the sql_mode of the session, these statements drop the row
  (`sources.mysql.tables.partition_expressions`).

TRUNCATE, DROP, EXCHANGE, DISCARD, IMPORT and REPAIR PARTITION change rows.
"""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

_VERBS = ("ADD", "ANALYZE", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE")
MAY_LOSE_ROWS = (
    "it drops rows that belong to no partition, as EXCHANGE PARTITION … WITHOUT VALIDATION may leave them, and it is "
    "not known whether there were any (a last partition VALUES LESS THAN MAXVALUE would make this known)"
)
MAY_LACK_PARTITIONS = (
    "it drops rows for which computing the partition is an error in the session's sql_mode (a division by zero, or an "
    "unsigned difference below zero), and that session's mode is not known; OPTIMIZE TABLE keeps these rows"
)
LOSES_VALUES = "it drops rows whose values are not in the new lists"


def changes_partitions(reader: Reader) -> bool:
    """Return whether the next tokens begin one of the known partition changes. Consumes no tokens."""
    at = reader.at
    found = bool(reader.take(*_VERBS)) and bool(reader.take("PARTITION"))
    reader.at = at
    return found


def partition_change(reader: Reader, table: TableName, tracked: TrackedNames) -> IdentityEffect | str:
    """Return the effect of a partition change on the table's identity. If the statement may change rows, return the
    reason instead, or "" if no reason is needed.

    :raises UnreadableError: the rest of the statement is not understood.
    """
    verb = reader.need(*_VERBS)
    reader.need("PARTITION")
    if verb in ("ADD", "COALESCE"):
        effect = _added(reader) if verb == "ADD" else _coalesced(reader)
        moves_rows = effect is IdentityEffect.REBUILT
        return MAY_LACK_PARTITIONS if moves_rows and tracked.may_lack_partitions(table) else effect
    _partitions(reader)
    if verb == "ANALYZE":
        return IdentityEffect.KEPT
    if verb == "OPTIMIZE":
        if tracked.is_recomputed(table):
            return "it may copy the table row by row, which recomputes its STORED columns or changes its invalid dates"
        return IdentityEffect.REBUILT
    if tracked.may_lack_partitions(table):
        return MAY_LACK_PARTITIONS
    if verb == "REORGANIZE":
        reader.need("INTO")
        kinds, endless = _definitions(reader)
        if kinds != {"LESS"}:
            return LOSES_VALUES if kinds == {"IN"} else ""
        if endless:
            return IdentityEffect.REBUILT
    return IdentityEffect.REBUILT if tracked.has_rows_in_partitions_only(table) else MAY_LOSE_ROWS


def _added(reader: Reader) -> IdentityEffect:
    if reader.take("PARTITIONS"):
        _number(reader)
        return IdentityEffect.REBUILT
    kinds, _ = _definitions(reader)
    # Partitions without VALUES are HASH or KEY partitions.
    return IdentityEffect.EXTENDED if len(kinds) == 1 else IdentityEffect.REBUILT


def _coalesced(reader: Reader) -> IdentityEffect:
    _number(reader)
    return IdentityEffect.REBUILT


def _partitions(reader: Reader) -> None:
    """Parse the names of partitions, or ALL."""
    reader.name()
    while reader.sign(","):
        reader.name()


def _number(reader: Reader) -> None:
    if not reader.name().isdecimal():
        raise UnreadableError


def _definitions(reader: Reader) -> tuple[set[str], bool]:
    """Parse the definitions of partitions in parentheses. Return the kinds of VALUES in them (LESS, IN), and whether
    any range is unbounded."""
    if not reader.sign("("):
        raise UnreadableError
    kinds: set[str] = set()
    endless = False
    depth = 1
    while depth:
        if reader.at == len(reader.tokens):
            raise UnreadableError
        if reader.sign("("):
            depth += 1
        elif reader.sign(")"):
            depth -= 1
        elif depth == 1 and reader.take("VALUES"):
            kind = reader.need("LESS", "IN")
            kinds.add(kind)
            if kind == "LESS":
                reader.need("THAN")
                depth += reader.sign("(")
                endless |= bool(reader.take("MAXVALUE"))
        else:
            reader.at += 1
    return kinds, endless
