"""Decodes the bytes of a logged statement.

An event names the client's character set at the time when the statement was executed, but the bytes of the text are not
always in this character set:

- The server words some statements anew, in UTF-8 (CREATE TABLE … SELECT, GRANT, CREATE USER). In some of them, the
  literals stay in the client's character set.
- A prepared statement keeps its bytes if the session changes its character set before it executes the statement. So
  does a statement in the body of a stored procedure or of an event. These bytes may be in any client character set.

So a text with other bytes than ASCII has one reading in each client character set (`grammar.Statement.readings`,
`grammar.Statement.other_readings`). The ASCII bytes before the first other byte are the same text in all readings. Only
swe7 has letters in place of some ASCII signs.

In some character sets, the second byte of a character may look like a quote or a backslash. So the bytes are divided
into characters exactly as the server divides them. The server does not reject a name with a character that it cannot
convert: it replaces the character, and perhaps a byte after it, with a question mark, and ends the name before an
incomplete character. So this module replaces such a character or byte with a lone surrogate, and `tracked_names.alike`
compares it.
"""

from __future__ import annotations

import re
from functools import cache

from airflow_provider_cdc.sources.mysql.tables.charsets import CHARSETS, GB18030_EDITION

UTF8_NAMES = ("utf8mb4", "utf8mb3", "binary")
"""The client's character sets in which the server reads a statement as UTF-8."""
_EUC = rb"\x8e[\xa1-\xdf]|\x8f[\xa1-\xfe]{2}|[\xa1-\xfe]{2}"
_JIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]"
_CHARACTERS = {
    "big5": rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]",
    "cp932": _JIS,
    "eucjpms": _EUC,
    "euckr": rb"[\x81-\xfe][\x41-\x5a\x61-\x7a\x81-\xfe]",
    "gb18030": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|[\x81-\xfe][\x30-\x39][\x81-\xfe][\x30-\x39]",
    "gb2312": rb"[\xa1-\xf7][\xa1-\xfe]",
    "gbk": rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]",
    "sjis": _JIS,
    "ujis": _EUC,
}
"""The bytes that the server's lexer treats as one character, also if the character set does not assign them. A test
compares each of them with a server."""
MULTI_BYTE = frozenset(_CHARACTERS)
_UNASSIGNED = "\udc00"
"""A character that the server cannot convert, or a byte that is part of none."""
_INCOMPLETE = 0xDC00
"""Added to a byte that may begin an incomplete character."""
_UTF8_CONTINUATIONS = {_INCOMPLETE + byte: _UNASSIGNED for byte in range(0x80, 0xC0)}

CLIENT_CHARSETS = tuple(name for name, charset in CHARSETS.items() if charset.unit == 1)
"""The character sets that a client may use."""
SWE7 = "swe7"
SWE7_LETTERS = str.maketrans({code: CHARSETS[SWE7].corrections[code] for code in b"@[\\]^`{|}~"})
"""The letters of swe7 that look like ASCII signs. The server treats `@`, `|` and the backtick as signs, except in
quoted names."""
_SWE7_SIGNS = re.compile(rb"[@\[\\\]^{|}~]|``")
_NO_BREAK_SPACE = dict.fromkeys(
    ("armscii8", "cp1250", "dec8", "geostd8", "greek", "hebrew", "latin1", "latin2", "latin5", "latin7"), b"\xa0"
) | dict.fromkeys(("cp852", "cp866", "keybcs2"), b"\xff")
_CONTROLS = {
    "cp1250": b"\x80\x81\x83\x88\x90\x98",
    "cp850": b"\xff",
    "hebrew": b"\xfd\xfe",
    "hp8": bytes([*range(0x80, 0xA1), 0xB1, 0xB2, *range(0xF2, 0xF6), 0xFF]),
    "latin7": b"\x81\xa1\x83\xa5\x88\x8a\x8c\x90\x98\x9a\x9c\x9f",
    "macroman": b"\x80\xcb\xe5",
}
"""The bytes above ASCII that the server's lexer treats as control characters. A test asks a server for them, and for
the spaces."""


def decode(text: bytes, charset: str) -> str:
    """Decode ``text``. Each character that the server cannot convert, and each byte that belongs to no character, is
    replaced with a lone surrogate.

    :param charset: the client's character set. If it is unknown, all bytes above ASCII are replaced. In swe7, all bytes
        of ASCII stay ASCII characters (`SWE7_LETTERS`).
    """
    if text.isascii():
        return text.decode("ascii")
    if charset in UTF8_NAMES:
        return text.decode("utf-8", "surrogateescape").translate(_UTF8_CONTINUATIONS)
    if charset not in CLIENT_CHARSETS:
        return text.decode("ascii", "surrogateescape")
    return "".join(_character(part, charset) for part in _parts(charset).findall(text))


@cache
def _parts(charset: str) -> re.Pattern[bytes]:
    wide = _CHARACTERS.get(charset, b"")
    return re.compile(b"[\x00-\x7f]+|" + (wide + b"|" if wide else b"") + b"[\x80-\xff]", re.DOTALL)


@cache
def _character(code: bytes, charset: str) -> str:
    known = CHARSETS[charset]
    if code.isascii():
        return code.decode("ascii")
    # In a character set of single bytes, the server never ends a name at a byte.
    is_whole = len(code) > 1 or charset not in MULTI_BYTE
    unassigned = _UNASSIGNED if is_whole else chr(_INCOMPLETE + code[0])
    number = int.from_bytes(code, "big")
    if number in known.corrections:
        point = known.corrections[number]
        return chr(point) if point else unassigned
    try:
        character = code.decode("ascii" if charset == "ascii" else known.codec)
    except UnicodeDecodeError:
        return unassigned
    if charset == "gb18030":
        character = character.translate(GB18030_EDITION)
    return character if len(character) == 1 else unassigned


@cache
def spaces(charset: str) -> str:
    """Return the characters above ASCII that the server treats as spaces."""
    return decode(_NO_BREAK_SPACE.get(charset, b""), charset)


@cache
def comment_starts(charset: str) -> str:
    """Return the characters above ASCII before which two dashes begin a comment."""
    return spaces(charset) + decode(_CONTROLS.get(charset, b""), charset)


def possible_charsets(text: bytes) -> tuple[str, ...]:
    """Return the client character sets in which ``text`` may be another text than in ASCII."""
    if not text.isascii():
        return CLIENT_CHARSETS
    return (SWE7,) if _SWE7_SIGNS.search(text) else ()
