"""Indexes of copied tables that may come and go, because that changes no row: those of plain columns, but not the one
that is the key. All of a statement is read: a functional index, for one, is a hidden column.

A statement that may be done returns what it may do to the table's identity. Without a primary key, InnoDB keeps the
rows in the order of a unique index: who makes or drops one may have it write the table anew.
"""

from __future__ import annotations

from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader
from airflow_provider_cdc.sources.mysql.log.statements.identity_effect import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import alike


def added_index(reader: Reader, key_index: str) -> IdentityEffect | None:
    """What follows ADD, if it is an index that changes no row: what that does to the table's identity.

    :param key_index: the index behind the table's key; empty if there is none.
    :raises UnreadableError: it is something else, as below.
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
    """As `added_index`, of the columns of an index and what may follow them."""
    if (unique and _may_be_key(name, key_index)) or not _is_index(reader):
        return None
    return _of_index(key_index) if unique else IdentityEffect.MARKED


def dropped_index(name: str, key_index: str) -> IdentityEffect | None:
    """What it does to a table's identity to drop an index, if it is another one than the key."""
    return _of_index(key_index) if key_index and not alike(name, key_index) else None


def is_other_index(reader: Reader, key_index: str) -> bool:
    """Whether the name that follows is that of another index than the key."""
    return bool(key_index) and not alike(reader.name(), key_index)


def is_text(reader: Reader) -> bool:
    """Whether a string follows; it is taken then."""
    return reader.sign("'") or reader.sign('"')


def _of_index(key_index: str) -> IdentityEffect:
    """What it does to a table's identity to make a unique index, or to drop one."""
    return IdentityEffect.MARKED if key_index.upper() == "PRIMARY" else IdentityEffect.REBUILT


def _may_be_key(name: str, key_index: str) -> bool:
    """Whether a new unique index may be the very one that is recorded as the key: then rows of the initial position
    need not have been unique. One without a name gets that of a column."""
    return bool(key_index) and key_index.upper() != "PRIMARY" and (not name or alike(name, key_index))


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
            if not is_text(reader):
                return False
        else:
            return True


def _next_is(reader: Reader, sign: str) -> bool:
    matches = reader.sign(sign)
    reader.at -= matches
    return matches
