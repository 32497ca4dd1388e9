"""Recognizes ALTER TABLE statements on copied tables that do not stop the run.

A statement is accepted if it changes neither rows nor row images. It may change indexes, except the table's key; a
column's default; checks; comments; statistics options; the next AUTO_INCREMENT value. It may rebuild the table. It may
combine several of these changes, but this module must understand the whole statement. ENGINE=InnoDB is accepted only
for a table that was an InnoDB table before. A table of another engine (MERGE, FEDERATED) may contain rows that were
logged for another table or not at all. DROP CONSTRAINT is not accepted, because it may drop a foreign key, which ends
cascades. DROP CHECK cannot drop a foreign key.

The algorithm that the server uses matters, too. If the server copies the table row by row, it recomputes STORED columns
with the settings of the session, and replaces dates that the session's sql_mode does not allow. The server copies the
table with ALGORITHM=COPY; with ``old_alter_table=ON`` (the log does not show this setting); for a new CHECK; and for
every change that it cannot make in place. So if a row-by-row copy may change values, the statement must name an
algorithm that does not copy the table. A rebuild in place, or a move of rows between partitions, keeps the rows byte
for byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import (
    IdentityEffect,
    added_index,
    dropped_index,
    is_other_index,
    is_text,
    made_index,
    widest,
)
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

# Recognizes partition changes of copied tables that do not stop the run because they change no row.
#
# - ADD PARTITION adds an empty partition. If the table has HASH partitions, ADD PARTITION also redistributes the rows,
#   as COALESCE PARTITION does.
# - OPTIMIZE PARTITION rebuilds the whole table with every ALGORITHM, and keeps each row in its partition. ANALYZE
#   PARTITION only collects statistics.
# - REBUILD and REORGANIZE PARTITION move each row to the partition that it belongs to, and silently drop rows that
#   belong to no partition. If all rows belonged to partitions at the recorded position, they still do
#   (`sources.mysql.tables.partitions`). If the last of the new ranges is unbounded (MAXVALUE), every row belongs to a
#   partition. The server does not allow a REORGANIZE that shrinks the ranges. A REORGANIZE may remove values from a
#   list. In this case, the rows with these values are lost.
# - All of these statements except OPTIMIZE and ANALYZE compute the partition of each row, unless they add ranges or
#   lists. If the computation fails with the sql_mode of the session, these statements drop the row
#   (`sources.mysql.tables.schema`).
#
# TRUNCATE, DROP, EXCHANGE, DISCARD, IMPORT and REPAIR PARTITION change rows.


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


_STATISTICS = ("STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES")
_OPTIONS = ("AUTO_INCREMENT", "COMMENT", "ENGINE", *_STATISTICS)
_IN_PLACE = ("INPLACE", "INSTANT")
RECOMPUTED = (
    "the server may copy the table row by row, which recomputes its STORED columns or changes its invalid dates; with "
    "ALGORITHM=INPLACE it does not"
)
OTHER_ENGINE = "the statement may have converted the table from another engine; its earlier engine is not known"
_SHOWN = frozenset(
    "ADD ALTER ANALYZE AUTO_INCREMENT BY CHANGE CHARACTER CHECK CHECKSUM COALESCE COLUMN COLUMNS COMMENT CONSTRAINT "
    "CONVERT DEFAULT DISABLE DISCARD DROP ENABLE ENGINE EXCHANGE FIRST FORCE FOREIGN FULLTEXT IMPORT INDEX KEY KEYS "
    "MODIFY OPTIMIZE ORDER PARTITION PARTITIONING PRIMARY REBUILD REMOVE RENAME REORGANIZE REPAIR ROW_FORMAT SET "
    "SPATIAL TABLESPACE TO TRUNCATE UNIQUE".split()
)
"""Words at the beginning of a part of the statement. They identify the kind of change."""
_MOST_SHOWN = 4


@dataclass(frozen=True)
class Alteration:
    """The effect of an ALTER TABLE on a copied table. If the statement is known to change no row, ``identity`` is its
    effect on the table's identity. Otherwise, ``what`` names the part of the statement that may change rows, and
    ``why`` is the reason, unless the reason is obvious."""

    identity: IdentityEffect | None
    what: str = ""
    why: str = ""


def alteration(reader: Reader, table: TableName, tracked: TrackedNames) -> Alteration:
    """Parse the rest of an ALTER TABLE statement, after the name of a copied ``table``. Consume the tokens only if the
    statement changes no row."""
    at = reader.at
    parts = Parts(reader, table, tracked)
    try:
        identity = parts.identity()
    except UnreadableError:
        identity = None
    if identity is not None:
        return Alteration(identity)
    reader.at = parts.begun
    what = _shown(reader)
    reader.at = at
    return Alteration(None, what, parts.why)


def made_or_dropped_index(
    reader: Reader, effect: IdentityEffect | None, table: TableName, tracked: TrackedNames
) -> IdentityEffect | None:
    """Parse the end of a CREATE INDEX or DROP INDEX statement that has this ``effect``. Return ``effect`` if the
    statement changes no row and only ALGORITHM and LOCK clauses follow."""
    parts = Parts(reader, table, tracked)
    try:
        return parts.done(effect) if effect is not None and parts.modifiers() else None
    except UnreadableError:
        return None


def made_index_of(
    reader: Reader, name: str, unique: bool, table: TableName, tracked: TrackedNames
) -> IdentityEffect | None:
    """Parse the rest of a CREATE INDEX statement, after the table's name. Return the statement's effect on the table's
    identity. None: the statement may change rows."""
    try:
        effect = made_index(reader, name, unique, tracked.key_index(table))
    except UnreadableError:
        return None
    return made_or_dropped_index(reader, effect, table, tracked)


class Parts:
    """Parses the parts of an ALTER TABLE. ``begun`` is the start of the part that may change rows. ``why`` is the
    reason why this part may change rows."""

    def __init__(self, reader: Reader, table: TableName, tracked: TrackedNames) -> None:
        self.begun = reader.at
        self.why = ""
        self.reader = reader
        self._table = table
        self._tracked = tracked
        self._key_index = tracked.key_index(table)
        self.algorithm = ""

    def identity(self) -> IdentityEffect | None:
        reader = self.reader
        effects: list[IdentityEffect] = []
        while True:
            self.begun = reader.at
            if not self._modifier():
                alone = not effects and changes_partitions(reader)
                effect = self._of_partitions() if alone else self.part()
                if effect is None:
                    return None
                effects.append(effect)
                if alone:
                    break
            if not reader.sign(","):
                break
        self.begun = reader.at if reader.at < len(reader.tokens) else self.begun
        if reader.at < len(reader.tokens) or not effects:
            return None
        return self.done(widest(effects))

    def modifiers(self) -> bool:
        """Consume the ALGORITHM and LOCK clauses. Return whether the statement ends after these clauses."""
        while self.reader.at < len(self.reader.tokens):
            if not self._modifier():
                return False
        return True

    def done(self, effect: IdentityEffect) -> IdentityEffect | None:
        """Return the effect of the ALTER TABLE, given the algorithm that the statement names. None: the statement may
        change rows."""
        if effect is IdentityEffect.KEPT:
            return effect
        if self._tracked.is_recomputed(self._table) and self.algorithm not in _IN_PLACE:
            self.why = RECOMPUTED
            return None
        return IdentityEffect.REBUILT if self.algorithm == "COPY" else effect

    def _modifier(self) -> bool:
        what = self.reader.take("ALGORITHM", "LOCK")
        if what:
            self.reader.sign("=")
            how = self.reader.need("DEFAULT", "INSTANT", "INPLACE", "COPY", "NONE", "SHARED", "EXCLUSIVE")
            self.algorithm = how if what == "ALGORITHM" else self.algorithm
        return bool(what)

    def _of_partitions(self) -> IdentityEffect | None:
        found = partition_change(self.reader, self._table, self._tracked)
        if isinstance(found, str):
            self.why = found
            return None
        return found

    def part(self) -> IdentityEffect | None:
        """Parse one part of the statement. None: the part may change rows."""
        reader, key_index = self.reader, self._key_index
        if reader.take("ADD"):
            return self._check() if reader.word() in ("CHECK", "CONSTRAINT") else added_index(reader, key_index)
        if reader.take("DROP"):
            if reader.take("CHECK"):
                reader.name()
                return IdentityEffect.MARKED
            reader.need("INDEX", "KEY")
            return dropped_index(reader.name(), key_index)
        if reader.take("RENAME"):
            reader.need("INDEX", "KEY")
            other = is_other_index(reader, key_index)
            reader.need("TO")
            return IdentityEffect.MARKED if other and is_other_index(reader, key_index) else None
        if reader.take("ALTER"):
            return self._altered()
        if reader.take("FORCE"):
            return IdentityEffect.REBUILT
        effects = []
        # A comma between options is optional.
        while option := reader.take(*_OPTIONS):
            if (effect := self._option(option)) is None:
                return None
            effects.append(effect)
        return widest(effects) if effects else None

    def _check(self) -> IdentityEffect:
        """Parse a new check. The server copies the table to check each row."""
        reader = self.reader
        if reader.take("CONSTRAINT") and reader.word() != "CHECK":
            reader.name()
        reader.need("CHECK")
        _skip_parentheses(reader)
        return self._enforced()

    def _enforced(self) -> IdentityEffect:
        if self.reader.take("NOT"):
            self.reader.need("ENFORCED")
            return IdentityEffect.MARKED
        self.reader.take("ENFORCED")
        return IdentityEffect.REBUILT

    def _altered(self) -> IdentityEffect | None:
        """Parse a change of an index's visibility, of a check's enforcement, or of a column's default."""
        reader = self.reader
        if reader.take("INDEX"):
            other = is_other_index(reader, self._key_index)
            reader.need("VISIBLE", "INVISIBLE")
            return IdentityEffect.MARKED if other else None
        if reader.take("CHECK"):
            reader.name()
            if reader.word() not in ("NOT", "ENFORCED"):
                return None
            return self._enforced()
        reader.take("COLUMN")
        reader.name()
        if reader.take("DROP"):
            reader.need("DEFAULT")
            return IdentityEffect.MARKED
        reader.need("SET")
        reader.need("DEFAULT")
        return IdentityEffect.MARKED if _is_constant(reader) else None

    def _option(self, option: str) -> IdentityEffect | None:
        reader = self.reader
        reader.sign("=")
        if option == "COMMENT":
            return IdentityEffect.MARKED if is_text(reader) else None
        if option == "ENGINE":
            if reader.name().upper() != "INNODB":
                return None
            if not self._tracked.has_known_engine(self._table):
                self.why = OTHER_ENGINE
                return None
            return IdentityEffect.REBUILT
        if option in _STATISTICS and reader.take("DEFAULT"):
            return IdentityEffect.MARKED
        return IdentityEffect.MARKED if reader.name().isdecimal() else None


def _skip_parentheses(reader: Reader) -> None:
    """Consume an opening parenthesis, its content, and the closing parenthesis."""
    if not reader.sign("("):
        raise UnreadableError
    depth = 1
    while depth:
        if reader.at == len(reader.tokens):
            raise UnreadableError
        if reader.sign("("):
            depth += 1
        elif reader.sign(")"):
            depth -= 1
        else:
            reader.at += 1


def _is_constant(reader: Reader) -> bool:
    if is_text(reader):
        return True
    reader.sign("-")
    if reader.take("NULL", "TRUE", "FALSE"):
        return True
    number = reader.name().isdecimal()
    return number and (not reader.sign(".") or reader.name().isdecimal())


def _shown(reader: Reader) -> str:
    words: list[str] = []
    while len(words) < _MOST_SHOWN and (word := reader.take(*_SHOWN)):
        words.append(word)
    return " ".join(words)
