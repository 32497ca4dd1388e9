"""What may be done to a copied table because it changes no row, nor what an image of one looks like.

Indexes of plain columns, but not the one that is the key; a column's default; comments. One thing per statement, and
all of it read: a functional index, for one, is a hidden column.

How the server does it counts, too. It may copy the table, row by row, and then it computes STORED columns anew, with
the settings of whoever asked for the index, and takes dates that this session's sql_mode does not allow for others. It
does so with ALGORITHM=COPY, and with ``old_alter_table=ON``, of which the log says nothing. So where a copy may have
other values, the statement has to say that it makes none.

A statement that may be done returns what it may do to the table's identity. Without a primary key, InnoDB keeps the
rows in the order of a unique index: who makes or drops one may have it write the table anew.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames, alike
from airflow_provider_cdc.sources.mysql.tables.declarations import parse

_DATES = frozenset(["date", "datetime", "timestamp"])


def is_recomputed(table: Table) -> bool:
    """Whether published values may become others when the server copies the table row by row."""
    return any(
        column.details.get("generated") == "stored"
        # Otherwise a date that no calendar has is published as no value at all, whichever it is.
        or (table.options.unrepresentable == "string" and getattr(parse(column.type), "name", "") in _DATES)
        for column in table.columns
    )


def alters_no_row(reader: Reader, table: TableName, tracked: TrackedNames) -> IdentityEffect | None:
    """What such a change, which follows ALTER TABLE and the table's name, does to the table's identity.

    None: it is another statement, and nothing is taken.
    """
    return _taken(reader, table, tracked, lambda: _change(reader, tracked.key_index(table)))


def makes_index(
    reader: Reader, name: str, unique: bool, table: TableName, tracked: TrackedNames
) -> IdentityEffect | None:
    """As `alters_no_row`, of what follows CREATE INDEX … ON and the table's name: an index of plain columns."""
    key_index = tracked.key_index(table)
    if unique and _may_be_key(name, key_index):
        return None
    effect = _of_index(key_index) if unique else IdentityEffect.MARKED
    return _taken(reader, table, tracked, lambda: effect if _is_index(reader) else None)


def drops_index(reader: Reader, name: str, table: TableName, tracked: TrackedNames) -> IdentityEffect | None:
    """As `alters_no_row`, of DROP INDEX … ON and the table's name: of another index than the key."""
    key_index = tracked.key_index(table)
    if not key_index or alike(name, key_index):
        return None
    return _taken(reader, table, tracked, lambda: _of_index(key_index))


def _taken(
    reader: Reader, table: TableName, tracked: TrackedNames, change: Callable[[], IdentityEffect | None]
) -> IdentityEffect | None:
    at = reader.at
    try:
        effect = change()
        algorithm = _algorithm(reader) if effect is not None else None
    except UnreadableError:
        effect = algorithm = None
    if algorithm is None or (tracked.is_recomputed(table) and algorithm not in ("INPLACE", "INSTANT")):
        reader.at = at
        return None
    return IdentityEffect.REBUILT if algorithm == "COPY" else effect


def _of_index(key_index: str) -> IdentityEffect:
    """What it does to a table's identity to make a unique index, or to drop one."""
    return IdentityEffect.MARKED if key_index.upper() == "PRIMARY" else IdentityEffect.REBUILT


def _may_be_key(name: str, key_index: str) -> bool:
    """Whether a new unique index may be the very one that is recorded as the key: then rows of the initial position
    need not have been unique. One without a name gets that of a column."""
    return bool(key_index) and key_index.upper() != "PRIMARY" and (not name or alike(name, key_index))


def _change(reader: Reader, key_index: str) -> IdentityEffect | None:
    if reader.take("ADD"):
        unique = bool(reader.take("UNIQUE"))
        if not unique:
            reader.need("INDEX", "KEY")
        else:
            reader.take("INDEX", "KEY")
        name = reader.name() if not _next_is(reader, "(") and reader.word() != "USING" else ""
        if unique and _may_be_key(name, key_index):
            return None
        if reader.take("USING"):
            reader.need("BTREE", "HASH")
        effect = _of_index(key_index) if unique else IdentityEffect.MARKED
        return effect if _is_index(reader) else None
    if reader.take("DROP"):
        reader.need("INDEX", "KEY")
        return _of_index(key_index) if _is_other(reader, key_index) else None
    return IdentityEffect.MARKED if _renames_or_describes(reader, key_index) else None


def _renames_or_describes(reader: Reader, key_index: str) -> bool:
    """Whether an index gets another name or visibility, a column another default, or the table a comment."""
    if reader.take("RENAME"):
        reader.need("INDEX", "KEY")
        other = _is_other(reader, key_index)
        reader.need("TO")
        return other and _is_other(reader, key_index)
    if reader.take("ALTER"):
        if reader.take("INDEX"):
            return _is_other(reader, key_index) and bool(reader.need("VISIBLE", "INVISIBLE"))
        reader.take("COLUMN")
        reader.name()
        if reader.take("DROP"):
            return bool(reader.need("DEFAULT"))
        reader.need("SET")
        reader.need("DEFAULT")
        return _is_constant(reader)
    if reader.take("COMMENT"):
        reader.sign("=")
        return _is_text(reader)
    return False


def _is_other(reader: Reader, key_index: str) -> bool:
    return bool(key_index) and not alike(reader.name(), key_index)


def _is_index(reader: Reader) -> bool:
    """The columns in brackets, and what may follow them."""
    if not reader.sign("("):
        return False
    while True:
        reader.name()
        if reader.sign("(") and not (reader.name().isdecimal() and reader.sign(")")):
            return False
        reader.take("ASC", "DESC")
        if reader.sign(")"):
            break
        if not reader.sign(","):
            return False
    while True:
        if reader.take("VISIBLE", "INVISIBLE"):
            continue
        if reader.take("USING"):
            reader.need("BTREE", "HASH")
        elif reader.take("COMMENT"):
            if not _is_text(reader):
                return False
        else:
            return True


def _algorithm(reader: Reader) -> str | None:
    """How the change is to be done, empty if it does not say; None: something else follows."""
    algorithm = ""
    while reader.at < len(reader.tokens):
        reader.sign(",")
        what = reader.take("ALGORITHM", "LOCK")
        if not what:
            return None
        reader.sign("=")
        how = reader.need("DEFAULT", "INSTANT", "INPLACE", "COPY", "NONE", "SHARED", "EXCLUSIVE")
        algorithm = how if what == "ALGORITHM" else algorithm
    return algorithm


def _is_constant(reader: Reader) -> bool:
    if _is_text(reader):
        return True
    reader.sign("-")
    if reader.take("NULL", "TRUE", "FALSE"):
        return True
    number = reader.name().isdecimal()
    return number and (not reader.sign(".") or reader.name().isdecimal())


def _is_text(reader: Reader) -> bool:
    return reader.sign("'") or reader.sign('"')


def _next_is(reader: Reader, sign: str) -> bool:
    found = reader.sign(sign)
    reader.at -= found
    return found
