"""Splits statements into tokens, and provides a reader that consumes the tokens one after the other.

If this module parsed a text differently from the server, the run could miss a changed table. So this module treats
ambiguous text as unreadable.

For servers of version 8.0.23 and later, the text of the versioned comment ``/*!80023 INVISIBLE */`` is part of the
statement. An older server skips this comment. It also overwrites the exclamation mark before it logs the statement, so
that replicas skip the comment, too. A replica logs statements in the form in which it executed them; so does a server
to which another server's log is applied. So a versioned comment in the log was part of the statement. The number in the
comment is at most the version of the server that wrote the log file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.server.dialect import OLDEST_VERSION, SIX_DIGIT_COMMENTS, comment_number
from airflow_provider_cdc.sources.mysql.tables.charsets import CHARSETS, GB18030_EDITION

# Decodes the bytes of a logged statement.
#
# An event names the client's character set at the time when the statement was executed, but the bytes of the text are
# not always in this character set:
#
# - The server words some statements anew, in UTF-8 (CREATE TABLE … SELECT, GRANT, CREATE USER). In some of them, the
#   literals stay in the client's character set.
# - A prepared statement keeps its bytes if the session changes its character set before it executes the statement. So
#   does a statement in the body of a stored procedure or of an event. These bytes may be in any client character set.
#
# So a text with other bytes than ASCII has one reading in each client character set (`grammar.Statement.readings`,
# `grammar.Statement.other_readings`). The ASCII bytes before the first other byte are the same text in all readings.
# Only swe7 has letters in place of some ASCII signs.
#
# In some character sets, the second byte of a character may look like a quote or a backslash. So the bytes are divided
# into characters exactly as the server divides them. The server does not reject a name with a character that it cannot
# convert: it replaces the character, and perhaps a byte after it, with a question mark, and ends the name before an
# incomplete character. So this module replaces such a character or byte with a lone surrogate, and
# `tracked_names.alike` compares it.


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


OLDEST = comment_number(OLDEST_VERSION)
"""Version of the oldest supported server."""
_SIX_DIGITS_SINCE = comment_number(SIX_DIGIT_COMMENTS.since)


@dataclass(frozen=True)
class Statement:
    """The text of a statement and the session settings that were logged with it.

    ``atomic``: whether the server logged the number of a storage engine transaction with the statement. The server logs
    this number if the statement really changed the data dictionary. ``schemas``: the schemas of all tables that the
    statement opened, as listed by the server. None: the log has no list of schemas for this statement. ``charset``: the
    character set in which the client sent the text. ``literals_charset``: the character set to which the server
    converts the literals in the text (character_set_connection). ``server_version``: the version of the server that
    logged the statement, in the form of the numbers in versioned comments. ``raw``: the bytes of the text. Empty:
    ``text`` is the only reading.
    """

    text: str
    schema: str
    ansi_quotes: bool = False
    backslash_escapes: bool = True
    atomic: bool = True
    schemas: frozenset[str] | None = None
    charset: str = "utf8mb4"
    literals_charset: str = "utf8mb4"
    server_version: int = OLDEST
    raw: bytes = b""

    @property
    def readings(self) -> tuple[Statement, ...]:
        """The likely readings of the statement's bytes: in the client's character set, and in UTF-8.

        Only CREATE statements can be partly in UTF-8 and partly in the client's character set. All other statements are
        in UTF-8 as a whole, or not at all.
        """
        if not self.raw or self.charset in UTF8_NAMES or (self.raw.isascii() and self.charset != SWE7):
            return (self,)
        utf8_text = decode(self.raw, "utf8mb4")
        if not is_known(utf8_text) and "create" not in self.text.lower():
            return (self,)
        return self, replace(self, text=utf8_text, charset="utf8mb4")

    def other_readings(self, *, only_ascii_names: bool = False) -> Iterator[Statement]:
        """Yield all other readings: in every client character set, if it gives another text or other tokens.

        One of these is what the server executed if the session changed its character set after it had prepared the
        statement, or within a stored procedure.

        :param only_ascii_names: whether readings that differ only in names with other characters than ASCII may be
            omitted.
        """
        seen = {_lexed(reading, only_ascii_names) for reading in self.readings}
        for charset in possible_charsets(self.raw):
            reading = replace(self, text=decode(self.raw, charset), charset=charset)
            if (lexed := _lexed(reading, only_ascii_names)) not in seen:
                seen.add(lexed)
                yield reading


_NAMED = re.compile(r"[^\x00-\x7f\udc80-\udcff]+")


def _lexed(reading: Statement, only_ascii_names: bool) -> tuple[str, str, bool]:
    """Return what determines the tokens of a text."""
    text, charset = reading.text, reading.charset
    special = "".join(character for character in comment_starts(charset) if character in text)
    if only_ascii_names and not special:
        text = _NAMED.sub("\x80", text)
    return text, special and charset, charset == SWE7


class UnreadableError(Exception):
    """The text does not match the grammar. ``at``: the offset in the text up to which the tokens are known."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        self.at = at


class NotTextError(UnreadableError):
    """A quote in the text has no end. The server would not have executed such a statement, so the bytes of the
    statement mean something else."""


@dataclass(frozen=True)
class Token:
    """A word, a quoted name, a string, or a sign. ``word``: the upper-case form of a word, for comparison with
    keywords.

    ``spaced``: whether a space or a comment separates the token from the previous token. ``literal``: the text of a
    string, as written between its quotes.
    """

    text: str
    word: str = ""
    name: bool = False
    spaced: bool = field(default=False, compare=False)
    literal: str = field(default="", compare=False)

    @property
    def can_name(self) -> bool:
        return self.name or bool(self.word)


# The server treats fewer characters as spaces than Python does. Two dashes begin a comment if any control character
# follows them. Outside of quotes and comments, a character above ASCII is a space, a letter, or an error of syntax.
_TOKEN = r"""
    (?P<space>[ \t\n\v\f\rSPACES]+|\#[^\n]*|--(?=[\x00-\x20\x7fSTARTS]|\Z)[^\n]*)
    | /\*!(?P<versioned>(?:[0-9]{5}(?:[0-9](?=[ \t\n\v\f\r]))?)?)   # what follows is part of the statement
    | (?P<comment>/\*.*?\*/)
    | (?P<end_of_versioned>\*/)
    | `(?P<backtick>(?:[^`]|``)*)`
    | '(?P<string>SINGLE)'
    | "(?P<double>DOUBLE)"
    | (?P<word>(?:[0-9A-Za-z_$]|LETTER)+)
    | (?P<sign>[^'"`])
"""


_LETTER = r"[\u0080-\U0010ffff]"
_SWE7_LETTER = r"[\[\\\]^{}~\u0080-\U0010ffff]"
_UNKNOWN = re.compile(r"[^\x00-\x7f]")


@cache
def _pattern(backslash_escapes: bool, ansi_quotes: bool, charset: str) -> re.Pattern[str]:
    single = r"(?:[^'\\]|''|\\.)*" if backslash_escapes else "(?:[^']|'')*"
    # In a quoted name, a backslash has no special meaning.
    double = r'(?:[^"\\]|""|\\.)*' if backslash_escapes and not ansi_quotes else '(?:[^"]|"")*'
    letter = _SWE7_LETTER if charset == SWE7 else _LETTER
    if spaces(charset):
        letter = f"(?![{spaces(charset)}]){letter}"
    token = _TOKEN.replace("SINGLE", single).replace("DOUBLE", double).replace("LETTER", letter)
    token = token.replace("SPACES", spaces(charset)).replace("STARTS", comment_starts(charset))
    return re.compile(token, re.VERBOSE | re.DOTALL)


def _tokens(statement: Statement) -> Iterator[Token]:
    pattern = _pattern(statement.backslash_escapes, statement.ansi_quotes, statement.charset)
    text = statement.text
    # In an unknown character set, all characters except those of ASCII are unknown.
    unknown = None if statement.charset else _UNKNOWN.search(text)
    letters = SWE7_LETTERS if statement.charset == SWE7 else {}
    at = 0
    spaced = versioned = False
    while at < len(text):
        start = at
        match = pattern.match(text, at)
        if unknown is not None and (match is None or match.end() > unknown.start()):
            raise UnreadableError(start)
        if match is None:
            raise NotTextError(start)
        at = match.end()
        kind = match.lastgroup
        if kind == "versioned":
            number = match["versioned"]
            if len(number) == 6 and statement.server_version < _SIX_DIGITS_SINCE:
                number, at = number[:5], at - 1
            if int(number or 0) > statement.server_version:
                # A server of this version skips such a comment, and marks a skipped comment in the log. But this
                # comment is not marked.
                raise UnreadableError(start)
            versioned = True
        elif kind == "end_of_versioned":
            if not versioned:
                if not text.startswith("*", at):
                    # This mark ends a comment, but no comment is open. So the server must have parsed an earlier
                    # comment differently.
                    raise UnreadableError(start)
                # For the server, this star is a separate token, and the slash after it begins a comment.
                yield Token("*")
                at -= 1
            # One end mark ends all open versioned comments.
            versioned = False
        if kind == "double":
            if statement.ansi_quotes:
                yield Token(match["double"].replace('""', '"').translate(letters), name=True)
            else:
                yield Token('"', literal=match["double"])
        elif kind == "backtick":
            yield Token(match["backtick"].replace("``", "`").translate(letters), name=True)
        elif kind == "word":
            yield Token(match["word"], match["word"].upper())
        elif kind == "string":
            yield Token("'", literal=match["string"])
        elif kind == "sign":
            yield Token(match["sign"], spaced=spaced)
        spaced = kind in ("space", "comment", "versioned", "end_of_versioned")


def is_known(name: str) -> bool:
    """Return whether all bytes of ``name`` are known characters."""
    return name.isascii() or not any("\ud800" <= character <= "\udfff" for character in name)


def known(name: str) -> str:
    """Return ``name`` if all of its bytes are known characters.

    :raises UnreadableError: some bytes of the name are not known characters.
    """
    if not is_known(name):
        raise UnreadableError
    return name


class Reader:
    """Consumes tokens one after the other.

    :param whole: whether the whole text must be split into tokens. If not, the reader raises `UnreadableError` only at
        the end of the tokens that are known.
    """

    def __init__(self, statement: Statement, *, whole: bool = True) -> None:
        self.statement = statement
        self.tokens: list[Token] = []
        self.unread: UnreadableError | None = None
        self.at = 0
        try:
            for token in _tokens(statement):
                self.tokens.append(token)
        except UnreadableError as error:
            self.unread = error
        if whole:
            self.check_whole()

    def check_whole(self) -> None:
        """Check that the whole text was split into tokens.

        :raises UnreadableError: it was not.
        """
        if self.unread is not None:
            raise self.unread

    def next(self) -> Token | None:
        """Return the next token, without consuming it. None: the statement ends here."""
        if self.at < len(self.tokens):
            return self.tokens[self.at]
        self.check_whole()
        return None

    def word(self) -> str:
        """Return the next token as a keyword, without consuming it."""
        token = self.next()
        return token.word if token is not None else ""

    def take(self, *words: str) -> str:
        """Consume and return the next word if it is one of ``words``; otherwise return ``""``."""
        word = self.word()
        if word and word in words:
            self.at += 1
            return word
        return ""

    def need(self, *words: str) -> str:
        word = self.take(*words)
        if not word:
            raise UnreadableError
        return word

    def sign(self, sign: str) -> bool:
        """Consume the next token if it is ``sign``. Return whether it was consumed."""
        token = self.next()
        if token is None or token.can_name or token.text != sign:
            return False
        self.at += 1
        return True

    def name(self) -> str:
        """Consume a name.

        :raises UnreadableError: the next token is no name, or some bytes of the name are not known characters.
        """
        return known(self.any_name())

    def any_name(self) -> str:
        """Consume a name. Bytes of the name that are not known characters are lone surrogates (`decode`)."""
        token = self.next()
        if token is None or not token.can_name:
            raise UnreadableError
        self.at += 1
        return token.text

    def table(self) -> TableName:
        """Consume the name of a table, with or without its schema, as `any_name` does."""
        first = self.any_name()
        if self.sign("."):
            return TableName(first, self.any_name())
        return TableName(known(self.statement.schema), first)

    def if_exists(self) -> bool:
        """Consume IF EXISTS or IF NOT EXISTS, if one of them follows. Return whether IF NOT EXISTS was consumed."""
        if not self.take("IF"):
            return False
        negated = bool(self.take("NOT"))
        self.need("EXISTS")
        return negated
