"""What may be done to a copied table because it changes no row, nor what an image of one looks like.

Indexes of plain columns, but not the one that is the key; a column's default; comments. One thing per statement, and
all of it read: a functional index, for one, is a hidden column.
"""

from __future__ import annotations

from airflow_provider_cdc.sources.mysql.log.grammar import Reader, UnreadableError
from airflow_provider_cdc.sources.mysql.log.names import alike


def alters_no_row(reader: Reader, key_index: str) -> bool:
    """Whether what follows ALTER TABLE and its name is such a change; nothing is taken if it is not.

    :param key_index: the index whose columns tell the rows apart; empty if nothing does.
    """
    at = reader.at
    try:
        found = _is_change(reader, key_index) and _ends(reader)
    except UnreadableError:
        found = False
    reader.at = reader.at if found else at
    return found


def is_index(reader: Reader) -> bool:
    """Whether what follows CREATE INDEX … ON and the table's name makes an index of plain columns."""
    at = reader.at
    try:
        found = _is_index(reader) and _ends(reader)
    except UnreadableError:
        found = False
    reader.at = reader.at if found else at
    return found


def _is_change(reader: Reader, key_index: str) -> bool:
    if reader.take("ADD"):
        if not reader.take("UNIQUE"):
            reader.need("INDEX", "KEY")
        else:
            reader.take("INDEX", "KEY")
        if not _next_is(reader, "(") and reader.word() != "USING":
            reader.name()
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
        reader.name()
        return other
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


def _ends(reader: Reader) -> bool:
    """Whether nothing follows but how it is to be done."""
    while reader.at < len(reader.tokens):
        reader.sign(",")
        if not reader.take("ALGORITHM", "LOCK"):
            return False
        reader.sign("=")
        reader.need("DEFAULT", "INSTANT", "INPLACE", "COPY", "NONE", "SHARED", "EXCLUSIVE")
    return True


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
