"""The one table that a change writes to which was logged as a statement, where its text alone shows that.

pt-table-checksum, for one, reads a copied table and writes what it counted into a table of its own, as a statement: its
replicas are to count for themselves. The server's list of the schemas that a statement opened does not tell which of
them it wrote to; the text does, if all of it is known here. So a single INSERT, REPLACE, UPDATE or DELETE whose target
is named with its schema writes to that table, and to no other but by what is hidden behind a name:

- functions: those that are called are built in and change nothing. The server takes an unqualified name, with the
  parenthesis right after it, for the built-in function, whatever stored functions there are.
- cascades: the server lists no schemas then (``Statement.schemas``), and nothing passes.
- triggers, and views: of these the text tells nothing. The server is asked (``mysql.statement_writes``).

Whatever is not known here does not pass: the run stops, as it does for any other change that was logged as a statement.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, Statement, Token, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

_CHARSETS = {"ascii", "latin1", "utf8mb3", "utf8mb4"}
"""In these no byte of a character looks like a quote or a backslash."""

FUNCTIONS = frozenset(
    "ABS ADDDATE AVG BIN BIT_AND BIT_COUNT BIT_LENGTH BIT_OR BIT_XOR CAST CEIL CEILING CHAR_LENGTH COALESCE CONCAT "
    "CONCAT_WS CONV CONVERT COUNT CRC32 CURDATE CURTIME DATABASE DATE_FORMAT FLOOR FROM_UNIXTIME GREATEST HEX IF "
    "IFNULL ISNULL LCASE LEAST LEFT LENGTH LOWER LPAD LTRIM MAX MIN MOD NOW NULLIF OCT ORD POW RIGHT ROUND RPAD "
    "RTRIM SHA2 SIGN SUBSTR SUBSTRING SUM TO_BASE64 TRIM TRUNCATE UCASE UNHEX UNIX_TIMESTAMP UPPER "
    "UTC_TIMESTAMP".split()
)
"""Functions that are built into every version and change nothing. MD5 and SHA1 are not: since 9.6 they are a component,
and without it the names may be those of stored functions. A test asks the server for each."""
_BEFORE_PARENTHESES = frozenset(
    "AND AS BETWEEN BY CASE CHAR DECIMAL DISTINCT DIV ELSE EXISTS HAVING IN INDEX KEY LIKE NOT ON OR SELECT THEN "
    "VALUES WHEN WHERE XOR".split()
)
"""Reserved words, which name no function, with what may be in parentheses after them."""
_UNKNOWN = frozenset("DUMPFILE FROM INTO JOIN LATERAL OUTFILE PROCEDURE RETURNING STRAIGHT_JOIN TABLE WITH".split())
"""What may name more tables, or other places to write to; FROM is read before."""
_AFTER_TABLE = frozenset("FOR GROUP HAVING LIMIT LOCK ON ORDER UNION WHERE".split())
_INDEX_HINTS = ("FORCE", "IGNORE", "USE")
_UNKNOWN_SIGNS = frozenset(":;?{}\\")
_POINT = Token(".")


@dataclass(frozen=True)
class Write:
    """``table`` is written to; ``read`` are the tables that are read and not copied."""

    table: TableName
    read: tuple[TableName, ...]


def write_of(statement: Statement, tracked: TrackedNames) -> Write | None:
    """What a statement writes to, if that is one table in a schema without copied ones; None: nobody knows."""
    settings = statement.backslash_escapes and not statement.ansi_quotes and statement.charset in _CHARSETS
    if statement.schemas is None or not settings or any(sign in statement.text for sign in ("/*!", "/*+")):
        return None
    try:
        return _Parser(statement).write(tracked)
    except UnreadableError:
        return None


class _Parser(Reader):
    """Reads all of a statement, or none of it."""

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
        # What only looks like a copied table may be a view.
        return Write(table, tuple(name for name in self._rest() if not tracked.has(name)))

    def table(self) -> TableName:
        name = super().table()
        if "." in name.schema:
            # In a record its text would be that of another table.
            raise UnreadableError
        return name

    def _qualified(self) -> TableName:
        at = self.at
        name = self.table()
        if self.at == at + 1:
            raise UnreadableError
        return name

    def _names(self) -> None:
        """Names, and the parenthesis behind them."""
        self.name()
        while self.sign(","):
            self.name()
        if not self.sign(")"):
            raise UnreadableError

    def _check_numbers(self) -> None:
        """Make sure that no word hides behind a number, which for the server may end in the middle: 1.5FROM, 1.e5FROM,
        1e5FROM."""
        for at, token in enumerate(self.tokens):
            behind = at > 1 and self.tokens[at - 1] == _POINT and self.tokens[at - 2].word.isdecimal()
            if token.word and not token.word.isdecimal() and (behind or token.word[0].isdecimal()):
                raise UnreadableError

    def _rest(self) -> list[TableName]:
        """The tables that are read from here on."""
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
        """One table after FROM, with all that may stand between it and the next clause."""
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
        """Make sure that the parenthesis at hand begins no call of a function that may be anything."""
        before = self.tokens[self.at - 1]
        # Behind a point even a reserved word is a name.
        qualified = self.at > 1 and self.tokens[self.at - 2] == _POINT
        if not before.can_name or (before.word in _BEFORE_PARENTHESES and not qualified):
            return
        if before.word not in FUNCTIONS or qualified or self.tokens[self.at].spaced:
            raise UnreadableError
