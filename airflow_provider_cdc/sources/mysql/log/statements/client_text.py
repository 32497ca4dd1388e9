"""Decodes the bytes of a logged statement.

An event names the client's character set at the time when the statement was executed, but the bytes of the text are not
always in this character set:

- The server words some statements anew, in UTF-8 (CREATE TABLE … SELECT, GRANT, CREATE USER). In some of them, the
  literals stay in the client's character set.
- A prepared statement keeps its bytes if the session changes its character set before it executes the statement. The
  server converts the text of PREPARE to UTF-8.

So a text with other bytes than ASCII has two readings: one in the client's character set, and one in UTF-8
(`grammar.Statement.readings`). The ASCII bytes before the first other byte are the same text in both readings.

In some character sets, the second byte of a character may look like a quote or a backslash. So the bytes are divided
into characters exactly as the server divides them. The server does not reject a name with a character that it cannot
convert. It replaces the character with a question mark, and ends the name before a byte that belongs to no character.
So this module replaces such a character or byte with a lone surrogate, and `tracked_names.alike` compares it.
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
_UNASSIGNED = "\udc80"
_UNASSIGNED_BYTE = 0xDC00


def decode(text: bytes, charset: str) -> str:
    """Decode ``text``. Each character that the server cannot convert, and each byte that belongs to no character, is
    replaced with a lone surrogate.

    :param charset: the client's character set. If it is unknown, all bytes above ASCII are replaced.
    """
    if text.isascii():
        return text.decode("ascii")
    if charset in UTF8_NAMES:
        return text.decode("utf-8", "surrogateescape")
    known = CHARSETS.get(charset)
    if known is None or known.unit != 1 or not known.ascii:
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
    unassigned = _UNASSIGNED if len(code) > 1 else chr(_UNASSIGNED_BYTE + code[0])
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
