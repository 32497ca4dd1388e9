"""Finds the table that a logged statement writes to, if the text of the statement shows that there is only one.

An example is pt-table-checksum. Its statements read a copied table and write counts into a separate table. Each replica
executes the same statements to compute its own counts. The server lists the schemas that a statement opened, but not
the schemas that it wrote to. The text of the statement shows the target, if this module understands the whole text. If
a single INSERT, REPLACE, UPDATE or DELETE names its target with a schema, it writes only to this table, except through:

- functions: only built-in functions without side effects are accepted. If an unqualified name is directly followed by a
  parenthesis, the server calls the built-in function, even if a stored function has the same name.
- cascades: for a statement that may cause cascades, the server lists no schemas (``Statement.schemas``), and the
  statement is not accepted.
- triggers and views: the text does not show them, so the run queries the server for them (``mysql.statement_writes``).

A statement with an unknown part is not accepted. It stops the run, like any other change that was logged as a
statement.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, Statement, Token, UnreadableError, known
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

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
    settings = statement.backslash_escapes and not statement.ansi_quotes and statement.charset in _CHARSETS
    if statement.schemas is None or not settings or any(sign in statement.text for sign in ("/*!", "/*+")):
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
