"""What a statement in the binary log means to the tables that are copied.

With row logging, the log still holds statements: everything that is not a row change. This module reads as much of
their grammar as it takes to name the tables that one changes, and answers ``NOT_UNDERSTOOD`` to the rest, so that the
reader stops. Names are compared without regard to case: with ``lower_case_table_names=0`` that may stop a run for a
table that only looks alike, never the other way round.

Grammar: https://dev.mysql.com/doc/refman/9.7/en/sql-data-definition-statements.html. Statements as the server writes
them into the log, such as DROP TABLE with its generated comment, are of the same grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from airflow_provider_cdc.core.table import TableName


class Effect(Enum):
    """What a statement does to the copied tables."""

    HARMLESS = "harmless"
    TOUCHES = "touches"
    """It changes a copied table in a way that leaves no row images."""
    ROW_CHANGE = "row change"
    """It changes rows and was logged as text: there are no images, whatever tables it reached."""
    NOT_UNDERSTOOD = "not understood"


@dataclass(frozen=True)
class Meaning:
    """``statement`` is its kind, such as ALTER TABLE; ``table`` the copied one that it touches."""

    effect: Effect
    statement: str
    table: TableName | None = None


@dataclass(frozen=True)
class Statement:
    """A statement's text and what its session's settings say of it.

    ``atomic`` is whether the server logged it with the number of a storage engine transaction, as it does when a
    statement really changed the dictionary.
    """

    text: str
    schema: str
    ansi_quotes: bool = False
    backslash_escapes: bool = True
    atomic: bool = True


class TrackedNames:
    """The copied tables, to look names up as a statement writes them."""

    def __init__(self, names: Iterable[TableName]) -> None:
        self._by_name = {(name.schema.lower(), name.name.lower()): name for name in names}

    def find(self, schema: str, table: str) -> TableName | None:
        return self._by_name.get((schema.lower(), table.lower()))

    def first_in(self, schema: str) -> TableName | None:
        """Some copied table of the schema."""
        return next((name for key, name in self._by_name.items() if key[0] == schema.lower()), None)


class _UnreadableError(Exception):
    """The text does not continue as the grammar has it."""


@dataclass(frozen=True)
class _Token:
    """A word (``word``, upper case, is its keyword reading), a quoted name, a string, or a sign."""

    text: str
    word: str = ""
    name: bool = False

    @property
    def can_name(self) -> bool:
        return self.name or bool(self.word)


_TOKEN = r"""
    (?P<space>\s+|\#[^\n]*|--(?=\s|$)[^\n]*)
    | (?P<versioned>/\*!(?:\d{5,6})?)   # the text of a versioned comment is part of the statement
    | (?P<comment>/\*.*?\*/)
    | (?P<end_of_versioned>\*/)
    | `(?P<backtick>(?:[^`]|``)*)`
    | '(?P<string>SINGLE)'
    | "(?P<double>DOUBLE)"
    | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
    | (?P<sign>[^'"`])
"""


@cache
def _pattern(backslash_escapes: bool, ansi_quotes: bool) -> re.Pattern[str]:
    single = r"(?:[^'\\]|''|\\.)*" if backslash_escapes else "(?:[^']|'')*"
    # Between the quotes of a name, a backslash is a character like any other.
    double = r'(?:[^"\\]|""|\\.)*' if backslash_escapes and not ansi_quotes else '(?:[^"]|"")*'
    return re.compile(_TOKEN.replace("SINGLE", single).replace("DOUBLE", double), re.VERBOSE | re.DOTALL)


def _tokens(statement: Statement) -> Iterator[_Token]:
    pattern = _pattern(statement.backslash_escapes, statement.ansi_quotes)
    text = statement.text
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise _UnreadableError
        at = match.end()
        kind = match.lastgroup
        if kind == "double":
            if statement.ansi_quotes:
                yield _Token(match["double"].replace('""', '"'), name=True)
            else:
                yield _Token('"')
        elif kind == "backtick":
            yield _Token(match["backtick"].replace("``", "`"), name=True)
        elif kind == "word":
            yield _Token(match["word"], match["word"].upper())
        elif kind == "string":
            yield _Token("'")
        elif kind == "sign":
            yield _Token(match["sign"])


class _Parser:
    """Reads tokens one after the other."""

    def __init__(self, statement: Statement, tracked: TrackedNames) -> None:
        self.statement = statement
        self.tracked = tracked
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
        taken = self.take(*words)
        if not taken:
            raise _UnreadableError
        return taken

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
            raise _UnreadableError
        self.at += 1
        return token.text

    def table(self) -> TableName:
        first = self.name()
        if self.sign("."):
            return TableName(first, self.name())
        return TableName(self.statement.schema, first)

    def if_exists(self) -> bool:
        """Take IF EXISTS or IF NOT EXISTS, and say whether it was the latter."""
        if not self.take("IF"):
            return False
        negated = bool(self.take("NOT"))
        self.need("EXISTS")
        return negated

    def touches(self, what: str, *tables: TableName) -> Meaning:
        for table in tables:
            found = self.tracked.find(table.schema, table.name)
            if found is not None:
                return Meaning(Effect.TOUCHES, what, found)
        return Meaning(Effect.HARMLESS, what)


_ROW_CHANGES = {"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "SELECT", "DO", "CALL", "TABLE", "VALUES"}
_HARMLESS = {"ANALYZE", "CHECK", "CHECKSUM", "OPTIMIZE", "FLUSH", "GRANT", "REVOKE", "SET", "INSTALL", "UNINSTALL"}
"""OPTIMIZE writes a table anew, with the same rows."""
_OTHER_OBJECTS = {
    "AGGREGATE", "ALGORITHM", "DEFINER", "EVENT", "FUNCTION", "INSTANCE", "JSON", "LIBRARY", "LOGFILE", "PROCEDURE",
    "RESOURCE", "ROLE", "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW",
}  # fmt: skip
"""What CREATE, ALTER and DROP may go on with when it is no table, index or schema. DEFINER and the like begin a view or
a stored program; SPATIAL INDEX is looked for before."""


def meaning(statement: Statement, tracked: TrackedNames) -> Meaning:
    """What ``statement`` does to the tracked tables.

    Transaction control (BEGIN, COMMIT, SAVEPOINT, XA and so on) is not a statement in this sense: it is
    NOT_UNDERSTOOD.
    """
    try:
        parser = _Parser(statement, tracked)
        return _meaning(parser)
    except _UnreadableError:
        return Meaning(Effect.NOT_UNDERSTOOD, " ".join(statement.text.split()[:2])[:40])


def _meaning(parser: _Parser) -> Meaning:
    verb = parser.word()
    parser.at += 1
    if verb in _ROW_CHANGES:
        return Meaning(Effect.ROW_CHANGE, verb)
    if verb in _HARMLESS:
        return Meaning(Effect.HARMLESS, verb)
    if verb == "ALTER":
        return _alter(parser)
    if verb == "CREATE":
        return _create(parser)
    if verb == "DROP":
        return _drop(parser)
    if verb == "RENAME":
        return _rename(parser)
    if verb == "TRUNCATE":
        parser.take("TABLE")
        return parser.touches("TRUNCATE TABLE", parser.table())
    if verb == "REPAIR":
        parser.take("NO_WRITE_TO_BINLOG", "LOCAL")
        parser.need("TABLE", "TABLES")
        return parser.touches("REPAIR TABLE", *_table_list(parser))
    raise _UnreadableError


def _table_list(parser: _Parser) -> list[TableName]:
    tables = [parser.table()]
    while parser.sign(","):
        tables.append(parser.table())
    return tables


def _alter(parser: _Parser) -> Meaning:
    if parser.take("DATABASE", "SCHEMA"):
        return Meaning(Effect.HARMLESS, "ALTER DATABASE")
    other = parser.take(*_OTHER_OBJECTS)
    if other:
        return Meaning(Effect.HARMLESS, f"ALTER {other}")
    parser.take("ONLINE", "OFFLINE")
    parser.take("IGNORE")
    parser.need("TABLE", "TABLES")
    parser.if_exists()
    tables = [parser.table()]
    while parser.at < len(parser.tokens):
        if parser.take("RENAME"):
            if parser.take("COLUMN", "INDEX", "KEY"):
                continue
            parser.take("TO", "AS")
            parser.sign("=")
            tables.append(parser.table())
        elif parser.take("EXCHANGE"):
            if not parser.take("PARTITION"):
                continue
            parser.name()
            parser.need("WITH")
            parser.need("TABLE")
            tables.append(parser.table())
        else:
            parser.at += 1
    return parser.touches("ALTER TABLE", *tables)


def _create(parser: _Parser) -> Meaning:
    if parser.take("OR"):
        parser.need("REPLACE")
    index = parser.at
    parser.take("UNIQUE", "FULLTEXT", "SPATIAL")
    if parser.take("INDEX"):
        parser.name()
        if parser.take("USING"):
            parser.name()
        parser.need("ON")
        return parser.touches("CREATE INDEX", parser.table())
    parser.at = index
    if parser.take("DATABASE", "SCHEMA"):
        return Meaning(Effect.HARMLESS, "CREATE DATABASE")
    if parser.take("TEMPORARY"):
        parser.need("TABLE")
        return Meaning(Effect.HARMLESS, "CREATE TEMPORARY TABLE")
    other = parser.take(*_OTHER_OBJECTS)
    if other:
        return Meaning(Effect.HARMLESS, f"CREATE {other}")
    parser.take("EXTERNAL")
    parser.need("TABLE")
    with_rows = parser.tokens[-2:] == [_Token("START", "START"), _Token("TRANSACTION", "TRANSACTION")]
    if parser.if_exists() and not parser.statement.atomic and not with_rows:
        # Applications say this whenever they start. The table was there, and nothing happened to it.
        return Meaning(Effect.HARMLESS, "CREATE TABLE IF NOT EXISTS")
    return parser.touches("CREATE TABLE", parser.table())


def _drop(parser: _Parser) -> Meaning:
    if parser.take("DATABASE", "SCHEMA"):
        parser.if_exists()
        found = parser.tracked.first_in(parser.name())
        return Meaning(Effect.TOUCHES if found else Effect.HARMLESS, "DROP DATABASE", found)
    if parser.take("INDEX"):
        parser.name()
        parser.need("ON")
        return parser.touches("DROP INDEX", parser.table())
    if parser.take("TEMPORARY"):
        parser.need("TABLE", "TABLES")
        return Meaning(Effect.HARMLESS, "DROP TEMPORARY TABLE")
    other = parser.take(*_OTHER_OBJECTS)
    if other:
        return Meaning(Effect.HARMLESS, f"DROP {other}")
    parser.need("TABLE", "TABLES")
    parser.if_exists()
    return parser.touches("DROP TABLE", *_table_list(parser))


def _rename(parser: _Parser) -> Meaning:
    if parser.take("USER"):
        return Meaning(Effect.HARMLESS, "RENAME USER")
    parser.need("TABLE", "TABLES")
    tables = []
    while True:
        tables.append(parser.table())
        parser.need("TO")
        tables.append(parser.table())
        if not parser.sign(","):
            return parser.touches("RENAME TABLE", *tables)
