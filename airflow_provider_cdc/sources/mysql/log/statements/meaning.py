"""Determines how a statement in the binary log affects the copied tables.

With row logging, the server logs all changes except row changes as statements. This module parses as much of a
statement as it needs to find the tables that the statement changes. If it cannot parse a statement, the result is
``NOT_UNDERSTOOD``, and the reader stops. Names are compared as in ``tracked_names``. This comparison never misses a
table, but may stop a run because of a table with a similar name.

The bytes of a statement may have several readings (`grammar.decode`). One of them is the statement that the server
executed. So the effect is the worst one of all readings. A reading that the server could not have executed does not
count.

Grammar: https://dev.mysql.com/doc/refman/9.7/en/sql-data-definition-statements.html. Statements that the server itself
writes to the log, such as DROP TABLE with its generated comment, follow the same grammar.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.alter_table import (
    alteration,
    made_index_of,
    made_or_dropped_index,
)
from airflow_provider_cdc.sources.mysql.log.statements.grammar import (
    UTF8_NAMES,
    NotTextError,
    Reader,
    Statement,
    Token,
    UnreadableError,
    is_known,
    known,
)
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import IdentityEffect, dropped_index, widest
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

# Finds the table that a logged statement writes to, if the text of the statement shows that there is only one.
#
# An example is pt-table-checksum. Its statements read a copied table and write counts into a separate table. Each
# replica executes the same statements to compute its own counts. The server lists the schemas that a statement opened,
# but not the schemas that it wrote to. The text of the statement shows the target, if this module understands the whole
# text. If a single INSERT, REPLACE, UPDATE or DELETE names its target with a schema, it writes only to this table,
# except through the following:
#
# - functions: only built-in functions without side effects are accepted. If an unqualified name is directly followed by
#   a parenthesis, the server calls the built-in function, even if a stored function has the same name.
# - cascades: for a statement that may cause cascades, the server lists no schemas (``Statement.schemas``), and the
#   statement is not accepted.
# - triggers and views: the text does not show them, so the run queries the server for them
#   (``mysql.steps.statement_writes``).
#
# A statement with an unknown part is not accepted. It stops the run, like any other change that was logged as a
# statement.


_CHARSETS = {"ascii", "latin1", "utf8mb3", "utf8mb4"}
"""In these character sets, no byte of a multi-byte character looks like a quote or a backslash."""

FUNCTIONS = frozenset(
    "ABS ADDDATE AVG BIN BIT_AND BIT_COUNT BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING CHAR_LENGTH COALESCE CONCAT "
    "CONCAT_WS CONV CONVERT COUNT CRC32 CURDATE CURTIME DATABASE DATE_FORMAT FLOOR FROM_UNIXTIME GREATEST HEX IF "
    "IFNULL ISNULL LCASE LEAST LEFT LENGTH LOWER LPAD LTRIM MAX MIN MOD NOW NULLIF OCT ORD POW RIGHT ROUND RPAD "
    "RTRIM SHA2 SIGN SUBSTR SUBSTRING SUM TO_BASE64 TRIM TRUNCATE UCASE UNHEX UNIX_TIMESTAMP UPPER "
    "UTC_TIMESTAMP".split()
)
"""Functions that are built into every version and have no side effects. MD5 and SHA1 are excluded. Since MySQL 9.6,
they are in a component; on a server without the component, stored functions may have these names. A test checks each
function on a server."""
_BEFORE_PARENTHESES = frozenset(
    "AND AS BETWEEN BY CASE CHAR DECIMAL DISTINCT DIV ELSE EXISTS HAVING IN INDEX KEY LIKE NOT ON OR SELECT THEN "
    "VALUES WHEN WHERE XOR".split()
)
"""Reserved words that may be followed by a parenthesis and are not function names."""
_UNKNOWN = frozenset("DUMPFILE FROM INTO JOIN LATERAL OUTFILE PROCEDURE RETURNING STRAIGHT_JOIN TABLE WITH".split())
"""Words that may introduce more tables or other targets. The parser handles FROM before it checks for these words."""
_AFTER_TABLE = frozenset("FOR GROUP HAVING LIMIT LOCK ON ORDER UNION WHERE".split())
_INDEX_HINTS = ("FORCE", "IGNORE", "USE")
_UNKNOWN_SIGNS = frozenset(":;?{}\\")
_POINT = Token(".")


@dataclass(frozen=True)
class Write:
    """The tables of a statement. ``table``: the target. ``read``: the tables that the statement reads, without the
    copied tables."""

    table: TableName
    read: tuple[TableName, ...]


def write_of(statement: Statement, tracked: TrackedNames) -> Write | None:
    """Return the tables of a statement that writes to a single table, in a schema without copied tables. None: the
    statement is not known to be of this kind."""
    if statement.schemas is None or statement.charset not in _CHARSETS:
        return None
    return _write_of(statement, tracked)


def _write_of(statement: Statement, tracked: TrackedNames) -> Write | None:
    settings = statement.backslash_escapes and not statement.ansi_quotes
    if not settings or any(sign in statement.text for sign in ("/*!", "/*+")):
        return None
    try:
        return _Parser(statement).write(tracked)
    except UnreadableError:
        return None


class _Parser(Reader):
    """Parses the whole statement or rejects it."""

    def write(self, tracked: TrackedNames) -> Write:
        verb = self.need("DELETE", "INSERT", "REPLACE", "UPDATE")
        self.take("LOW_PRIORITY")
        self.take("IGNORE")
        if verb != "UPDATE":
            self.need("FROM" if verb == "DELETE" else "INTO")
        table = self._qualified()
        if tracked.first_in(table.schema) is not None:
            raise UnreadableError
        if verb == "UPDATE":
            self.need("SET")
        elif verb == "DELETE":
            if self.at < len(self.tokens):
                self.need("LIMIT", "ORDER", "WHERE")
        else:
            if self.sign("("):
                self._names()
            if self.word() not in ("SELECT", "SET", "VALUES"):
                raise UnreadableError
        self._check_numbers()
        # Omit only names that are equal to a copied table's name. A name that is merely similar may be the name of a
        # view.
        return Write(table, tuple(name for name in self._rest() if not tracked.has(name)))

    def table(self) -> TableName:
        name = super().table()
        known(name.schema + name.name)
        if "." in name.schema:
            # Reject a schema name that contains a dot. In the summary, the qualified name would look like the name of
            # another table.
            raise UnreadableError
        return name

    def _qualified(self) -> TableName:
        at = self.at
        name = self.table()
        if self.at == at + 1:
            raise UnreadableError
        return name

    def _names(self) -> None:
        """Parse names and the closing parenthesis after them."""
        self.name()
        while self.sign(","):
            self.name()
        if not self.sign(")"):
            raise UnreadableError

    def _check_numbers(self) -> None:
        """Check that no keyword directly follows a number. The server also accepts a number that ends inside a word:
        1.5FROM, 1.e5FROM, 1e5FROM."""
        for at, token in enumerate(self.tokens):
            behind = at > 1 and self.tokens[at - 1] == _POINT and self.tokens[at - 2].word.isdecimal()
            if token.word and not token.word.isdecimal() and (behind or token.word[0].isdecimal()):
                raise UnreadableError

    def _rest(self) -> list[TableName]:
        """Return the tables that the rest of the statement reads."""
        tables: dict[TableName, None] = {}
        while self.at < len(self.tokens):
            if self.take("FROM"):
                tables[self._read_table()] = None
                continue
            token = self.tokens[self.at]
            if token.word in _UNKNOWN or (not token.can_name and token.text in _UNKNOWN_SIGNS):
                raise UnreadableError
            if not token.can_name and token.text == "(":
                self._check_parenthesis()
            self.at += 1
        return list(tables)

    def _read_table(self) -> TableName:
        """Parse one table after FROM, and everything that may come between it and the next clause."""
        table = self.table()
        if self.take("AS") or (self.word() not in {*_AFTER_TABLE, *_INDEX_HINTS, *_UNKNOWN} and self._is_name()):
            self.name()
        while self.take(*_INDEX_HINTS):
            self.need("INDEX", "KEY")
            if not self.sign("("):
                raise UnreadableError
            self._names()
        ends = self.at == len(self.tokens) or self.word() in _AFTER_TABLE
        if not ends and (self._is_name() or self.tokens[self.at].text != ")"):
            raise UnreadableError
        return table

    def _is_name(self) -> bool:
        return self.at < len(self.tokens) and self.tokens[self.at].can_name

    def _check_parenthesis(self) -> None:
        """Check that the current parenthesis does not begin a call of an unknown function."""
        before = self.tokens[self.at - 1]
        # After a dot, even a reserved word is an identifier.
        qualified = self.at > 1 and self.tokens[self.at - 2] == _POINT
        if not before.can_name or (before.word in _BEFORE_PARENTHESES and not qualified):
            return
        if before.word not in FUNCTIONS or qualified or self.tokens[self.at].spaced:
            raise UnreadableError


class Effect(Enum):
    """Effect of a statement on the copied tables."""

    HARMLESS = "harmless"
    TOUCHES = "touches"
    """The statement changes a copied table, and the log contains no row images of the change."""
    ROW_CHANGE = "row change"
    """The statement changes rows and was logged as text, so the log has no row images for any table that it changed."""
    ELSEWHERE = "elsewhere"
    """Like `ROW_CHANGE`, but the statement has a single target, which is not a copied table. If the target is a view or
    has a trigger, the statement may write to other tables, too."""
    NOT_UNDERSTOOD = "not understood"


@dataclass(frozen=True)
class Meaning:
    """The effect of a statement. ``statement`` is the kind of the statement, such as ALTER TABLE. ``table`` is the
    copied table that the statement touches.

    ``write``: with `Effect.ELSEWHERE`, the tables that the statement writes to and reads. ``redefines``: the names of
    tables, copied or not, that may now be the names of views or of other tables, or that may have other triggers. ``*``
    stands for all tables. ``identity``: for a statement that is known to change no row of the copied tables that it
    names, the possible effect on the identity of these tables. ``detail``: how the statement changes the copied table,
    if ``statement`` does not show this; or why the statement is not understood.
    """

    effect: Effect
    statement: str
    table: TableName | None = None
    write: Write | None = None
    redefines: tuple[TableName, ...] = ()
    identity: IdentityEffect | None = None
    detail: str = ""

    @property
    def described(self) -> str:
        """The statement and its detail, for messages."""
        return f"{self.statement} … {self.detail}" if self.detail else self.statement


EVERY_TABLE = TableName("*", "*")


class _StatementParser(Reader):
    """Parses a statement and looks up its names among the copied tables."""

    def __init__(self, statement: Statement, tracked: TrackedNames) -> None:
        # Many statements are understood from their first words.
        super().__init__(statement, whole=False)
        self.tracked = tracked

    def words(self) -> list[str]:
        """Return the words of the rest of the statement as keywords. If the rest of the text cannot be split into
        tokens, the result also has the words of this text, even those of literals, names and comments."""
        words = [token.word for token in self.tokens[self.at :]]
        if self.unread is not None:
            words += re.findall("[A-Z_]+", self.statement.text[self.unread.at :].upper())
        return words

    def rows_as_text(self, what: str) -> Meaning:
        """Return the meaning of a statement that changes rows. The statement is harmless if it opened no table in a
        schema that has copied tables."""
        schemas = self.statement.schemas
        if schemas is not None and not any(self.tracked.first_in(known(schema)) for schema in schemas):
            return Meaning(Effect.HARMLESS, what)
        if (write := write_of(self.statement, self.tracked)) is not None:
            return Meaning(Effect.ELSEWHERE, what, write=write)
        return Meaning(Effect.ROW_CHANGE, what)

    def found(self, table: TableName) -> TableName | None:
        return self.tracked.find(table.schema, table.name)

    def names_copied_table(self) -> bool:
        """Return whether the tokens have the names of a copied table and of its schema, at any place."""
        names = {token.text for token in self.tokens if token.can_name}
        return self.tracked.is_named(names, self.statement.schema)

    def touches(self, what: str, *tables: TableName) -> Meaning:
        for table in tables:
            table_name = self.tracked.find(table.schema, table.name)
            if table_name is not None:
                return Meaning(Effect.TOUCHES, what, table_name)
        return Meaning(Effect.HARMLESS, what)

    def redefines(self, what: str, *tables: TableName) -> Meaning:
        """Like `touches`, but for a statement after which a name may refer to another object."""
        are_known = all(is_known(table.schema + table.name) for table in tables)
        return replace(self.touches(what, *tables), redefines=tables if are_known else (EVERY_TABLE,))

    def other(self, what: str) -> Meaning:
        """Return the meaning of a statement about an object that is not a table, index or schema. Views and triggers
        may affect any table."""
        self.at = 0
        words = {*self.words()}
        return Meaning(Effect.HARMLESS, what, redefines=(EVERY_TABLE,) if words & {"TRIGGER", "VIEW"} else ())


_ROW_CHANGES = {"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH", "SELECT", "DO", "CALL", "TABLE", "VALUES"}
_HARMLESS = {"ANALYZE", "CHECK", "CHECKSUM", "FLUSH", "GRANT", "REVOKE", "SET", "INSTALL", "UNINSTALL"}
_OTHER_OBJECTS = {
    "AGGREGATE", "ALGORITHM", "DEFINER", "EVENT", "FUNCTION", "INSTANCE", "JSON", "LIBRARY", "LOGFILE", "PROCEDURE",
    "RESOURCE", "ROLE", "SERVER", "SPATIAL", "SQL", "TABLESPACE", "TRIGGER", "UNDO", "USER", "VIEW",
}  # fmt: skip
"""Words that may follow CREATE, ALTER and DROP if the object is not a table, index or schema. Words such as DEFINER
begin the definition of a view or of a stored program. The parser checks for SPATIAL INDEX before it uses these
words."""

_PROGRAMS = frozenset({"EVENT", "FUNCTION", "PROCEDURE", "TRIGGER", "VIEW"})


_ORDER = (Effect.HARMLESS, Effect.ELSEWHERE, Effect.TOUCHES, Effect.ROW_CHANGE, Effect.NOT_UNDERSTOOD)


def meaning(statement: Statement, tracked: TrackedNames) -> Meaning:
    """Return what ``statement`` does to the tracked tables.

    For transaction control (BEGIN, COMMIT, SAVEPOINT, XA and so on), this function returns NOT_UNDERSTOOD.
    """
    meanings = [found for reading in statement.readings if (found := _meaning_of(reading, tracked)) is not None]
    writes = {found.write for found in meanings if found.effect is Effect.ELSEWHERE}
    if len(writes) > 1:
        return Meaning(Effect.ROW_CHANGE, meanings[0].statement)
    if not _is_decided(statement):
        for reading in statement.other_readings(only_ascii_names=tracked.only_ascii):
            if any(found.effect not in (Effect.HARMLESS, Effect.ELSEWHERE) for found in meanings):
                break
            found = _other_meaning(reading, tracked, *writes, is_likely=is_utf8(statement))
            meanings += [found] if found is not None else []
    if not meanings:
        return _not_understood(statement)
    worst = max(meanings, key=lambda found: _ORDER.index(found.effect))
    if len(meanings) == 1:
        return worst
    identities = [found.identity for found in meanings if found.identity is not None]
    return replace(
        worst,
        redefines=tuple(dict.fromkeys(table for found in meanings for table in found.redefines)),
        identity=widest(identities) if identities else None,
    )


def _is_decided(statement: Statement) -> bool:
    """Return whether the words before the first character above ASCII, which are the same in all readings, show that
    the statement is about accounts or stored programs."""
    head = re.match(r"[\x00-\x7f]*", statement.text)
    assert head is not None
    # The last word may go on after the head.
    first, *words = [token.word for token in Reader(replace(statement, text=head[0]), whole=False).tokens][:-1] or [""]
    if first not in ("CREATE", "ALTER", "DROP", "RENAME") or not words:
        return first in _HARMLESS
    if words[0] in ("ALGORITHM", "DEFINER", "OR", "SQL"):
        return not _PROGRAMS.isdisjoint(words)
    return words[0] in {*_PROGRAMS, "ROLE", "USER"}


def is_utf8(statement: Statement) -> bool:
    """Return whether the client used UTF-8, according to the log, and the bytes are UTF-8, so that they are hardly
    text of another character set."""
    return statement.charset in UTF8_NAMES and is_known(statement.text)


def _other_meaning(
    reading: Statement, tracked: TrackedNames, write: Write | None = None, *, is_likely: bool
) -> Meaning | None:
    """Return the effect of a statement if its text is in another character set than the client's. None: this reading
    has no effect, or the server could not have executed it.

    Most of these readings are no statement at all. So a reading that is not understood counts only if it names a copied
    table.

    :param write: with `Effect.ELSEWHERE`, the tables that the statement names in the client's character set.
    :param is_likely: whether the text is hardly in another character set than the client's (`is_utf8`).
    """
    parser = _StatementParser(reading, tracked)
    if isinstance(parser.unread, NotTextError):
        return None
    try:
        found = _meaning(parser)
    except UnreadableError:
        return _not_understood(reading) if parser.unread is not None or parser.names_copied_table() else None
    if found.effect in (Effect.ELSEWHERE, Effect.ROW_CHANGE):
        other = _write_of(reading, tracked)
        if write is not None and (other == write or (is_likely and (other is None or other.table == write.table))):
            return None
        return Meaning(Effect.ROW_CHANGE, found.statement)
    # A name with unknown bytes is not the name of a table that a statement wrote to.
    return replace(found, redefines=tuple(table for table in found.redefines if is_known(table.schema + table.name)))


def _meaning_of(reading: Statement, tracked: TrackedNames) -> Meaning | None:
    """Return the effect of one reading of a statement. None: the server could not have executed this reading."""
    parser = _StatementParser(reading, tracked)
    try:
        return _meaning(parser)
    except UnreadableError:
        # The quote without an end may be behind the words that do not match the grammar.
        return None if isinstance(parser.unread, NotTextError) else _not_understood(reading)


def _not_understood(statement: Statement) -> Meaning:
    is_clear = statement.raw.isascii() and len(statement.readings) == 1
    detail = "" if is_clear else f"its text is not clear in {statement.charset or 'an unknown character set'}"
    return Meaning(Effect.NOT_UNDERSTOOD, _shown(statement.text), detail=detail)


def _shown(text: str) -> str:
    return " ".join(text.split()[:2])[:40].encode("utf-8", "replace").decode()


def _meaning(parser: _StatementParser) -> Meaning:
    verb = parser.word()
    parser.at += 1
    if verb in _ROW_CHANGES:
        return parser.rows_as_text(verb)
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
    if verb == "OPTIMIZE":
        # OPTIMIZE TABLE keeps the rows of a table, unless the server copies the table row by row, for example because
        # of a FULLTEXT index.
        parser.take("NO_WRITE_TO_BINLOG", "LOCAL")
        parser.need("TABLE", "TABLES")
        meanings = [
            table_meaning for table in _table_list(parser) if (table_meaning := parser.found(table)) is not None
        ]
        optimized = parser.touches("OPTIMIZE TABLE", *filter(parser.tracked.is_recomputed, meanings))
        return replace(optimized, identity=IdentityEffect.REBUILT if meanings else None)
    if verb == "REPAIR":
        parser.take("NO_WRITE_TO_BINLOG", "LOCAL")
        parser.need("TABLE", "TABLES")
        return parser.touches("REPAIR TABLE", *_table_list(parser))
    raise UnreadableError


def _table_list(parser: _StatementParser) -> list[TableName]:
    tables = [parser.table()]
    while parser.sign(","):
        tables.append(parser.table())
    return tables


def _alter(parser: _StatementParser) -> Meaning:
    if parser.take("DATABASE", "SCHEMA"):
        return Meaning(Effect.HARMLESS, "ALTER DATABASE")
    other = parser.take(*_OTHER_OBJECTS)
    if other:
        return parser.other(f"ALTER {other}")
    parser.take("ONLINE", "OFFLINE")
    parser.take("IGNORE")
    parser.need("TABLE", "TABLES")
    parser.if_exists()
    tables = [parser.table()]
    parser.check_whole()
    meaning_ = parser.found(tables[0])
    detail = ""
    if meaning_ is not None:
        altered = alteration(parser, meaning_, parser.tracked)
        if altered.identity is not None:
            return Meaning(Effect.HARMLESS, "ALTER TABLE", identity=_changed(altered.identity))
        detail = f"{altered.what} ({altered.why})" if altered.why else altered.what
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
    return replace(parser.redefines("ALTER TABLE", *tables), detail=detail)


def _changed(identity: IdentityEffect) -> IdentityEffect | None:
    return None if identity is IdentityEffect.KEPT else identity


def _create(parser: _StatementParser) -> Meaning:
    if parser.take("OR"):
        parser.need("REPLACE")
    index = parser.at
    kind = parser.take("UNIQUE", "FULLTEXT", "SPATIAL")
    if parser.take("INDEX"):
        name = parser.name()
        if parser.take("USING"):
            parser.name()
        parser.need("ON")
        table = parser.table()
        table_meaning = parser.found(table)
        if table_meaning is not None:
            parser.check_whole()
        if table_meaning is not None and kind in ("", "UNIQUE"):
            identity = made_index_of(parser, name, bool(kind), table_meaning, parser.tracked)
            if identity is not None:
                return Meaning(Effect.HARMLESS, "CREATE INDEX", identity=identity)
        return parser.touches("CREATE INDEX", table)
    parser.at = index
    if parser.take("DATABASE", "SCHEMA"):
        return Meaning(Effect.HARMLESS, "CREATE DATABASE")
    temporary = parser.take("TEMPORARY")
    other = "" if temporary else parser.take(*_OTHER_OBJECTS)
    if other:
        return parser.other(f"CREATE {other}")
    parser.take("EXTERNAL")
    parser.need("TABLE")
    rest = parser.words()
    if {"SELECT", "TABLE"} & set(rest) or ("VALUES", "ROW") in pairwise(rest):
        # With row logging, the log contains row images after this statement. Without row logging, functions in the
        # SELECT may have changed other tables.
        meaning_ = parser.rows_as_text("CREATE TABLE … SELECT")
        if meaning_.effect is Effect.ROW_CHANGE:
            return meaning_
    if temporary:
        return Meaning(Effect.HARMLESS, "CREATE TEMPORARY TABLE")
    start_transaction = [Token("START", "START"), Token("TRANSACTION", "TRANSACTION")]
    with_rows = parser.unread is not None or parser.tokens[-2:] == start_transaction
    if parser.if_exists() and not parser.statement.atomic and not with_rows:
        # Applications run CREATE TABLE IF NOT EXISTS at each start. For a table that already exists, the statement does
        # nothing.
        return Meaning(Effect.HARMLESS, "CREATE TABLE IF NOT EXISTS")
    return parser.touches("CREATE TABLE", parser.table())


def _drop(parser: _StatementParser) -> Meaning:
    if parser.take("DATABASE", "SCHEMA"):
        parser.if_exists()
        schema = parser.any_name()
        table_name = parser.tracked.first_in(schema)
        redefines = (TableName(schema, "*") if is_known(schema) else EVERY_TABLE,)
        return Meaning(
            Effect.TOUCHES if table_name else Effect.HARMLESS, "DROP DATABASE", table_name, redefines=redefines
        )
    if parser.take("INDEX"):
        name = parser.name()
        parser.need("ON")
        table = parser.table()
        table_name = parser.found(table)
        if table_name is not None:
            parser.check_whole()
            dropped = dropped_index(name, parser.tracked.key_index(table_name))
            identity = made_or_dropped_index(parser, dropped, table_name, parser.tracked)
            if identity is not None:
                return Meaning(Effect.HARMLESS, "DROP INDEX", identity=identity)
        return parser.touches("DROP INDEX", table)
    if parser.take("TEMPORARY"):
        parser.need("TABLE", "TABLES")
        return Meaning(Effect.HARMLESS, "DROP TEMPORARY TABLE")
    other = parser.take(*_OTHER_OBJECTS)
    if other:
        return parser.other(f"DROP {other}")
    parser.need("TABLE", "TABLES")
    parser.if_exists()
    return parser.redefines("DROP TABLE", *_table_list(parser))


def _rename(parser: _StatementParser) -> Meaning:
    if parser.take("USER"):
        return Meaning(Effect.HARMLESS, "RENAME USER")
    parser.need("TABLE", "TABLES")
    tables = []
    while True:
        tables.append(parser.table())
        parser.need("TO")
        tables.append(parser.table())
        if not parser.sign(","):
            return parser.redefines("RENAME TABLE", *tables)
