"""Changes of the indexes of copied tables that are accepted because they change no row. Accepted are indexes of plain
columns, except the index that is the table's key. This module must understand the whole statement: a functional index,
for example, adds a hidden column.

For an accepted statement, the functions return its effect on the table's identity. Without a primary key, InnoDB stores
the rows in the order of a unique index, so creating or dropping one may rebuild the table.
"""

from __future__ import annotations

from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import alike


def added_index(reader: Reader, key_index: str) -> IdentityEffect | None:
    """Parse the words after ADD. If they add an index and change no row, return the effect on the table's identity,
    else None.

    :param key_index: the index that is the table's key; empty if there is none.
    :raises UnreadableError: another clause follows; the functions below raise it, too.
    """
    unique = bool(reader.take("UNIQUE"))
    if not unique:
        reader.need("INDEX", "KEY")
    else:
        reader.take("INDEX", "KEY")
    name = reader.name() if not _next_is(reader, "(") and reader.word() != "USING" else ""
    if reader.take("USING"):
        reader.need("BTREE", "HASH")
    return made_index(reader, name, unique, key_index)


def made_index(reader: Reader, name: str, unique: bool, key_index: str) -> IdentityEffect | None:
    """Like `added_index`, for the columns of an index and the options after them."""
    if (unique and _may_be_key(name, key_index)) or not _is_index(reader):
        return None
    return _of_index(key_index) if unique else IdentityEffect.MARKED


def dropped_index(name: str, key_index: str) -> IdentityEffect | None:
    """Return the effect on a table's identity of dropping an index, if the index is not the key."""
    return _of_index(key_index) if key_index and not alike(name, key_index) else None


def is_other_index(reader: Reader, key_index: str) -> bool:
    """Return whether the next name is the name of an index other than the key."""
    return bool(key_index) and not alike(reader.name(), key_index)


def is_text(reader: Reader) -> bool:
    """Consume a string if one follows, and return whether it did."""
    return reader.sign("'") or reader.sign('"')


def _of_index(key_index: str) -> IdentityEffect:
    """Return the effect on a table's identity of creating or dropping a unique index."""
    return IdentityEffect.MARKED if key_index.upper() == "PRIMARY" else IdentityEffect.REBUILT


def _may_be_key(name: str, key_index: str) -> bool:
    """Return whether a new unique index may be the index that is recorded as the key. In this case, the rows at the
    initial position may not have been unique in that key. An index without a name gets the name of a column."""
    return bool(key_index) and key_index.upper() != "PRIMARY" and (not name or alike(name, key_index))


def _is_index(reader: Reader) -> bool:
    """Parse the columns in parentheses and the options after them."""
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
            if not is_text(reader):
                return False
        else:
            return True


def _next_is(reader: Reader, sign: str) -> bool:
    matches = reader.sign(sign)
    reader.at -= matches
    return matches
