"""What may be done to a copied table because it changes no row, nor what an image of one looks like.

Indexes of plain columns, but not the one that is the key; a column's default; comments. One thing per statement, and
all of it read: a functional index, for one, is a hidden column.

How the server does it counts, too. It may copy the table, row by row, and then it computes STORED columns anew, with
the settings of whoever asked for the index, and takes dates that this session's sql_mode does not allow for others. It
does so with ALGORITHM=COPY, and with ``old_alter_table=ON``, of which the log says nothing. So where a copy may have
other values, the statement has to say that it makes none.
"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.core.table import Table, TableName
from airflow_provider_cdc.sources.mysql.declarations import parse
from airflow_provider_cdc.sources.mysql.log.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.names import TrackedNames, alike

_DATES = frozenset(["date", "datetime", "timestamp"])


def is_recomputed(table: Table) -> bool:
    """Whether published values may become others when the server copies the table row by row."""
    return any(
        column.details.get("generated") == "stored"
        # Otherwise a date that no calendar has is published as no value at all, whichever it is.
        or (table.options.unrepresentable == "string" and getattr(parse(column.type), "name", "") in _DATES)
        for column in table.columns
    )


def alters_no_row(reader: Reader, table: TableName, tracked: TrackedNames) -> bool:
    """Whether what follows ALTER TABLE and its name is such a change; nothing is taken if it is not."""
    return _taken(reader, table, tracked, lambda: _is_change(reader, tracked.key_index(table)))


def makes_index(reader: Reader, name: str, unique: bool, table: TableName, tracked: TrackedNames) -> bool:
    """Whether what follows CREATE INDEX … ON and the table's name makes an index of plain columns."""
    if unique and _may_be_key(name, tracked.key_index(table)):
        return False
    return _taken(reader, table, tracked, lambda: _is_index(reader))


def drops_index(reader: Reader, name: str, table: TableName, tracked: TrackedNames) -> bool:
    """Whether DROP INDEX drops another index than the key; what follows the table's name is still to be read."""
    key_index = tracked.key_index(table)
    return bool(key_index) and not alike(name, key_index) and _taken(reader, table, tracked, lambda: True)


def _taken(reader: Reader, table: TableName, tracked: TrackedNames, is_change: Callable[[], bool]) -> bool:
    at = reader.at
    try:
        found = is_change() and _ends(reader, in_place=tracked.is_recomputed(table))
    except UnreadableError:
        found = False
    reader.at = reader.at if found else at
    return found


def _may_be_key(name: str, key_index: str) -> bool:
    """Whether a new unique index may be the very one that is recorded as the key: then rows of the initial position
    need not have been unique. One without a name gets that of a column."""
    return bool(key_index) and key_index.upper() != "PRIMARY" and (not name or alike(name, key_index))


def _is_change(reader: Reader, key_index: str) -> bool:
    if reader.take("ADD"):
        unique = bool(reader.take("UNIQUE"))
        if not unique:
            reader.need("INDEX", "KEY")
        else:
            reader.take("INDEX", "KEY")
        name = reader.name() if not _next_is(reader, "(") and reader.word() != "USING" else ""
        if unique and _may_be_key(name, key_index):
            return False
        if reader.take("USING"):
            reader.need("BTREE", "HASH")
        return _is_index(reader)
    if reader.take("DROP"):
        reader.need("INDEX", "KEY")
        return _is_other(reader, key_index)
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


def _ends(reader: Reader, *, in_place: bool) -> bool:
    """Whether nothing follows but how it is to be done; with ``in_place``, that must not be by a copy."""
    algorithm = ""
    while reader.at < len(reader.tokens):
        reader.sign(",")
        what = reader.take("ALGORITHM", "LOCK")
        if not what:
            return False
        reader.sign("=")
        how = reader.need("DEFAULT", "INSTANT", "INPLACE", "COPY", "NONE", "SHARED", "EXCLUSIVE")
        algorithm = how if what == "ALGORITHM" else algorithm
    return not in_place or algorithm in ("INPLACE", "INSTANT")


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
