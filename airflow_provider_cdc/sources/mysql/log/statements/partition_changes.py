"""What may be done to the partitions of a copied table because it changes no row.

- ADD PARTITION makes an empty one; of hashes it distributes the rows anew, and so does COALESCE PARTITION.
- OPTIMIZE PARTITION writes the whole table anew, whatever ALGORITHM says, and keeps each row in its partition. ANALYZE
  PARTITION only counts.
- REBUILD and REORGANIZE PARTITION put each row in the partition that it belongs to, and drop those that belong to none
  without a word. There is none if none was there at the beginning (`sources.mysql.tables.partitions`); if the last of
  the new ranges has no end (MAXVALUE), there is room for all. The server lets no range become shorter that way. A list
  may lose values, with the rows that have them.
- All of these but OPTIMIZE and ANALYZE compute the partition of each row, unless they add ranges or lists. They drop a
  row for which this session's sql_mode makes an error of it (`sources.mysql.tables.partition_expressions`).

TRUNCATE, DROP, EXCHANGE, DISCARD, IMPORT and REPAIR PARTITION change rows.
"""

from __future__ import annotations

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

_VERBS = ("ADD", "ANALYZE", "COALESCE", "OPTIMIZE", "REBUILD", "REORGANIZE")
MAY_LOSE_ROWS = (
    "it drops rows that belong to no partition, which EXCHANGE PARTITION … WITHOUT VALIDATION may leave, and it is not "
    "known that there were none: with a last partition VALUES LESS THAN MAXVALUE it would be"
)
MAY_LACK_PARTITIONS = (
    "it drops rows whose partition the session's sql_mode makes an error of (a division by zero, or an unsigned "
    "difference below zero), and which mode that session had is not known; OPTIMIZE TABLE keeps them"
)
LOSES_VALUES = "it drops rows whose values the new lists do not have"


def changes_partitions(reader: Reader) -> bool:
    """Whether what follows is one of the changes that are known here. Nothing is taken."""
    at = reader.at
    found = bool(reader.take(*_VERBS)) and bool(reader.take("PARTITION"))
    reader.at = at
    return found


def partition_change(reader: Reader, table: TableName, tracked: TrackedNames) -> IdentityEffect | str:
    """What such a change does to the table's identity; or, in words, why it may change rows, if that is known.

    :raises UnreadableError: it goes on in another way than is known here.
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
            return "it may copy the table row by row, which computes its STORED columns anew, or changes its odd dates"
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
    # Partitions without values are those of a hash.
    return IdentityEffect.EXTENDED if len(kinds) == 1 else IdentityEffect.REBUILT


def _coalesced(reader: Reader) -> IdentityEffect:
    _number(reader)
    return IdentityEffect.REBUILT


def _partitions(reader: Reader) -> None:
    """Names of partitions, or ALL."""
    reader.name()
    while reader.sign(","):
        reader.name()


def _number(reader: Reader) -> None:
    if not reader.name().isdecimal():
        raise UnreadableError


def _definitions(reader: Reader) -> tuple[set[str], bool]:
    """The definitions of partitions in parentheses: which kinds of VALUES they have (LESS, IN), and whether some range
    has no end."""
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
