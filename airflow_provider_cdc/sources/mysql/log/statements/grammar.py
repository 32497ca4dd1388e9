"""Statements as tokens, and a reader that takes them one after the other.

Whatever the server reads otherwise than this does could hide a table, so a doubtful text counts as unreadable.

The text of a versioned comment (``/*!80023 INVISIBLE */``) is part of the statement for servers of that version and
later ones. A server that skips such a comment overwrites its exclamation mark before it logs the statement, so that
replicas skip it, too. A replica logs what it executed itself, and so does a server that is handed another one's log.
So a versioned comment that the log still has was part of the statement, and its number is at most the version of the
server that wrote the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.server.session import OLDEST_VERSION

_MAJOR, _MINOR, _PATCH = OLDEST_VERSION
OLDEST = 10_000 * _MAJOR + 100 * _MINOR + _PATCH
"""The version of the oldest server that is copied from."""
_SIX_DIGITS_SINCE = 80_100


@dataclass(frozen=True)
class Statement:
    """A statement's text and what its session's settings say of it.

    ``atomic`` is whether the server logged it with the number of a storage engine transaction, as it does when a
    statement really changed the dictionary. ``schemas`` are those of all tables that it opened, in any way, as the
    server says; None if it does not. ``charset`` is the character set that the text was sent in. ``server_version`` is
    that of the server that logged it, as versioned comments have it.
    """

    text: str
    schema: str
    ansi_quotes: bool = False
    backslash_escapes: bool = True
    atomic: bool = True
    schemas: frozenset[str] | None = None
    charset: str = "utf8mb4"
    server_version: int = OLDEST


class UnreadableError(Exception):
    """The text does not continue as the grammar has it."""


@dataclass(frozen=True)
class Token:
    """A word (``word``, upper case, is its keyword reading), a quoted name, a string, or a sign.

    ``spaced`` is whether it stands apart from what is before it.
    """

    text: str
    word: str = ""
    name: bool = False
    spaced: bool = field(default=False, compare=False)

    @property
    def can_name(self) -> bool:
        return self.name or bool(self.word)


# The server's spaces are fewer than Python's, and after two dashes it takes any control character.
_TOKEN = r"""
    (?P<space>[ \t\n\v\f\r]+|\#[^\n]*|--(?=[\x00-\x20\x7f]|\Z)[^\n]*)
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
_UNICODE = ("utf8mb3", "utf8mb4")
_ODD = r"\u0080-\u00a0\u200e\u200f\u201d\u201e\u20ac\udc81-\udcff"
"""Beyond ASCII, what the server may take for a space, or for the end of two dashes, in other character sets; a test
asks it for each byte of each. The surrogates are bytes that are no character (`events`)."""
_ODD_LETTERS = ("hp8", "macroman")
"""In these even some letters are spaces to it."""


@cache
def _pattern(backslash_escapes: bool, ansi_quotes: bool, charset: str) -> re.Pattern[str]:
    single = r"(?:[^'\\]|''|\\.)*" if backslash_escapes else "(?:[^']|'')*"
    # Between the quotes of a name, a backslash is a character like any other.
    double = r'(?:[^"\\]|""|\\.)*' if backslash_escapes and not ansi_quotes else '(?:[^"]|"")*'
    letter = _LETTER if charset in _UNICODE else "(?!)" if charset in _ODD_LETTERS else f"(?![{_ODD}]){_LETTER}"
    token = _TOKEN.replace("SINGLE", single).replace("DOUBLE", double).replace("LETTER", letter)
    return re.compile(token, re.VERBOSE | re.DOTALL)


def _tokens(statement: Statement) -> Iterator[Token]:
    pattern = _pattern(statement.backslash_escapes, statement.ansi_quotes, statement.charset)
    text = statement.text
    at = 0
    spaced = versioned = False
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise UnreadableError
        at = match.end()
        kind = match.lastgroup
        if kind == "sign" and not match[0].isascii():
            # The server may take it for a space.
            raise UnreadableError
        if kind == "versioned":
            number = match["versioned"]
            if len(number) == 6 and statement.server_version < _SIX_DIGITS_SINCE:
                number, at = number[:5], at - 1
            if int(number or 0) > statement.server_version:
                # This server skips it, and would have said so in the log.
                raise UnreadableError
            versioned = True
        elif kind == "end_of_versioned":
            if not versioned:
                if not text.startswith("*", at):
                    # It ends nothing: some comment was read otherwise by the server.
                    raise UnreadableError
                # A star, which the server takes alone: the slash begins a comment.
                yield Token("*")
                at -= 1
            # One ends all that have begun.
            versioned = False
        if kind == "double":
            if statement.ansi_quotes:
                yield Token(match["double"].replace('""', '"'), name=True)
            else:
                yield Token('"')
        elif kind == "backtick":
            yield Token(match["backtick"].replace("``", "`"), name=True)
        elif kind == "word":
            yield Token(match["word"], match["word"].upper())
        elif kind == "string":
            yield Token("'")
        elif kind == "sign":
            yield Token(match["sign"], spaced=spaced)
        spaced = kind in ("space", "comment", "versioned", "end_of_versioned")


def known(name: str) -> str:
    """The name, unless bytes of it are no characters that are known."""
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise UnreadableError
    return name


class Reader:
    """Reads tokens one after the other."""

    def __init__(self, statement: Statement) -> None:
        self.statement = statement
        self.tokens = list(_tokens(statement))
        self.at = 0

    def word(self) -> str:
        """The keyword reading of the next token, without taking it."""
        return self.tokens[self.at].word if self.at < len(self.tokens) else ""

    def take(self, *words: str) -> str:
        """The next word, taken, if it is one of these; else ``""``."""
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
        """Whether the next token is this sign; it is taken then."""
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or token.can_name or token.text != sign:
            return False
        self.at += 1
        return True

    def name(self) -> str:
        token = self.tokens[self.at] if self.at < len(self.tokens) else None
        if token is None or not token.can_name:
            raise UnreadableError
        self.at += 1
        return known(token.text)

    def table(self) -> TableName:
        first = self.name()
        if self.sign("."):
            return TableName(first, self.name())
        return TableName(known(self.statement.schema), first)

    def if_exists(self) -> bool:
        """Take IF EXISTS or IF NOT EXISTS, and say whether it was the latter."""
        if not self.take("IF"):
            return False
        negated = bool(self.take("NOT"))
        self.need("EXISTS")
        return negated
