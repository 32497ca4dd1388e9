"""Effects of logged statements on the identity of a table (`sources.mysql.tables.identity`), and changes of indexes.

This module recognizes index changes on copied tables that do not stop the run because they change no row. A change is
accepted if the index has only plain columns and is not the table's key. This module must understand the whole
statement. For example, a functional index is not accepted, because it adds a hidden column.

For an accepted statement, the functions return its effect on the table's identity. If a table has no primary key,
InnoDB stores its rows in the order of a unique index. So creating or dropping a unique index may rebuild the table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import alike


class IdentityEffect(Enum):
    """The parts of a table's identity that a statement may change.

    Statements that change no row are accepted. Give each accepted statement the narrowest member that describes its
    effect. If no member fits, add a new member. If the identity changes in a way that the member does not allow, the
    change is treated as a change that is not in the log.
    """

    KEPT = "kept"
    """The statement changes no part of the identity. Example: ANALYZE PARTITION."""
    MARKED = "marked"
    """The creation time becomes the time of the statement. The storage engine's tables stay the same. Example: in-place
    DDL."""
    EXTENDED = "extended"
    """Like `MARKED`, but the storage engine may also add tables. Example: ADD PARTITION."""
    REBUILT = "rebuilt"
    """Like `MARKED`, but the storage engine may also replace its tables with new tables that have the same rows.
    Examples: OPTIMIZE, ALGORITHM=COPY."""
    ANY = "any"
    """The statement may change any part of the identity, even without a new creation time. Example: TRUNCATE. All
    statements that may change rows have this effect."""


_WIDER = tuple(IdentityEffect)


def widest(effects: Iterable[IdentityEffect]) -> IdentityEffect:
    """Return the effect of a whole statement from the effects of its parts."""
    return max(effects, key=_WIDER.index, default=IdentityEffect.KEPT)


def added_index(reader: Reader, key_index: str) -> IdentityEffect | None:
    """Parse the words after ADD. If they add an index and change no row, return the effect on the table's identity.
    Otherwise, return None.

    :param key_index: the index that is the table's key; empty if the table has no such index.
    :raises UnreadableError: the words are another clause. The functions below also raise this error.
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
    """Like `added_index`, but parse only the columns of the index and the options after the columns."""
    if (unique and _may_be_key(name, key_index)) or not _is_index(reader):
        return None
    return _of_index(key_index) if unique else IdentityEffect.MARKED


def dropped_index(name: str, key_index: str) -> IdentityEffect | None:
    """Return how dropping an index affects the table's identity. None: the index may be the table's key."""
    return _of_index(key_index) if key_index and not alike(name, key_index) else None


def is_other_index(reader: Reader, key_index: str) -> bool:
    """Consume a name. Return whether it is the name of an index other than the table's key."""
    return bool(key_index) and not alike(reader.name(), key_index)


def is_text(reader: Reader) -> bool:
    """Consume the next token if it is a string. Return whether it was consumed."""
    return reader.sign("'") or reader.sign('"')


def _of_index(key_index: str) -> IdentityEffect:
    """Return how creating or dropping a unique index affects the table's identity."""
    return IdentityEffect.MARKED if key_index.upper() == "PRIMARY" else IdentityEffect.REBUILT


def _may_be_key(name: str, key_index: str) -> bool:
    """Return whether a new unique index may be the index that is recorded as the table's key. In this case, several
    rows at the initial position may have had the same key. An index that is created without a name gets the name of a
    column."""
    return bool(key_index) and key_index.upper() != "PRIMARY" and (not name or alike(name, key_index))


def _is_index(reader: Reader) -> bool:
    """Parse the columns in parentheses and the options after the columns."""
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
