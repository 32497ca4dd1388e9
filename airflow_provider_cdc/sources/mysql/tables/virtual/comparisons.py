"""Check that comparisons and searches have the same result in every session."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.sources.mysql.tables.virtual.values import (
    BINARY,
    BYTES,
    CAST,
    COLUMN,
    COMPARED,
    CONVERTED,
    DATES,
    INT,
    LITERAL,
    ZONE,
    Dependent,
    Value,
    check_text,
    is_literal_of,
    joined,
)

_OF_PADDED = frozenset("= <=> <> != < > <= >= in between strcmp field".split()) | {"case of"}
_KNOWN_CHARSETS = (COLUMN, BINARY, LITERAL, CAST)
_OF_DOCUMENTS = frozenset("= <=> <> != < > <= >=".split())


def check_comparable(name: str, values: Sequence[Value]) -> Value:
    """Return the result of the comparison ``name``, a number.

    Two numbers, or a text and a number, are compared as numbers. Texts are compared by a collation, which must come
    from a column or from JSON. Dates can be compared with dates, and with literals that mean the same date in every
    session.

    :raises Dependent: the result may differ between sessions.
    """
    known = [value for value in values if value.kind != "null"]
    for value in known:
        if value.wraps or value.kind == "geometry":
            check_text(value)
        if value.kind == "timestamp":
            raise Dependent(ZONE)
    moments = [value for value in known if value.is_moment]
    if moments:
        _check_moments(known, moments)
        return INT
    texts = [value for value in known if value.kind in ("text", "bytes")]
    if texts and name in ("greatest", "least", "strcmp"):
        # These functions convert numbers to texts if one argument is a text.
        texts = known
    documents = [value for value in known if value.kind == "json"]
    if documents and (name not in _OF_DOCUMENTS or any(value.padded or value.kind == "bytes" for value in texts)):
        raise Dependent(COMPARED)
    if documents and any(value.collation != LITERAL and value.collation != COLUMN for value in texts):
        raise Dependent(COMPARED)
    if len(texts) > 1 and not documents:
        _check_collation(name, texts)
    return INT


def check_found(name: str, values: Sequence[Value]) -> Value:
    """Return the result of a search or replacement, such as LIKE, LOCATE or REGEXP_REPLACE.

    :raises Dependent: sessions may find different texts.
    """
    text = joined(values)
    if name == "like" and len(values) == 2 and values[1].literal is None:
        raise Dependent("without ESCAPE, the meaning of a backslash depends on sql_mode (NO_BACKSLASH_ESCAPES)")
    if not any(value.collation == COLUMN for value in values if value.kind == "text"):
        # Without a column's collation, texts that are made from numbers or bytes are compared by the connection's
        # collation.
        only_bytes = all(value.kind == "bytes" for value in values)
        if not only_bytes and text.collation != BINARY:
            raise Dependent(COMPARED)
    if text.kind == "bytes" and any(value.kind != "bytes" for value in values):
        raise Dependent(COMPARED)
    return (BYTES if text.kind == "bytes" else text) if name in ("regexp_substr", "regexp_replace") else INT


def _check_moments(known: Sequence[Value], moments: Sequence[Value]) -> None:
    kinds = {value.kind for value in moments}
    if not (kinds <= DATES or kinds == {"time"}):
        raise Dependent(CONVERTED)
    for value in known:
        if value.is_moment:
            if value.as_text or (value.odd and not value.direct):
                raise Dependent(CONVERTED)
        elif not is_literal_of("time" if kinds == {"time"} else "datetime", value):
            raise Dependent(CONVERTED)


def _check_collation(name: str, texts: Sequence[Value]) -> None:
    padded = [value for value in texts if value.padded]
    if padded:
        others = [value for value in texts if not value.padded]
        alike = all(value.pad_space for value in padded) and all(value.collation == LITERAL for value in others)
        if name not in _OF_PADDED or not alike or len(padded) > 1:
            raise Dependent(
                "the expression compares a CHAR, whose length depends on sql_mode (PAD_CHAR_TO_FULL_LENGTH)"
            )
        return
    if any(value.kind == "bytes" for value in texts):
        # To compare a text with a byte string, the server compares the bytes of the text. So the character set of the
        # text must be known.
        alike = all(value.kind != "text" or value.ascii or value.collation in _KNOWN_CHARSETS for value in texts)
    else:
        alike = joined(texts).collation in (COLUMN, BINARY)
    if not alike:
        raise Dependent(COMPARED)
