"""Recognizes ALTER TABLE statements that change columns in a way that can be computed outside the server.

For such a statement, each row after it follows from the same row before it: a column is dropped or renamed, a column
gets another declaration, or a column is added with one constant for all rows. This module only reads the statement.
`tables.column_eras` decides from the definitions of the tables whether the change can be carried.

The whole statement must be understood, as in `alter_table`, whose other parts are accepted beside these changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.mysql.log.statements.alter_table import Parts
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, Statement, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames

_NO_COLUMN = frozenset(
    "CHECK CONSTRAINT FOREIGN FULLTEXT INDEX KEY PARTITION PRIMARY SPATIAL SYSTEM TABLE UNIQUE".split()
)
"""Words after ADD and DROP that begin something other than a column."""
_TYPES = frozenset(
    "BIGINT BINARY BIT BLOB BOOL BOOLEAN CHAR DATE DATETIME DEC DECIMAL DOUBLE ENUM FIXED FLOAT INT INTEGER JSON "
    "LONGBLOB LONGTEXT MEDIUMBLOB MEDIUMINT MEDIUMTEXT NUMERIC REAL SET SMALLINT TEXT TIME TIMESTAMP TINYBLOB TINYINT "
    "TINYTEXT VARBINARY VARCHAR YEAR".split()
)
_CHARSETS = ("ascii", "latin1", "utf8mb3", "utf8mb4")
"""Character sets of a statement, and of its literals, in which the bytes of ASCII mean ASCII characters. In others,
such as swe7, the server replaces some ASCII characters of a literal."""
_INSTANT_SINCE = 80_029
"""Since this version, the server adds and drops a column at any place without a rebuild of the table."""


@dataclass(frozen=True)
class SqlLiteral:
    """A default as the statement writes it. ``text`` is None for NULL. ``quoted``: it is a string."""

    text: str | None
    quoted: bool = False


@dataclass(frozen=True)
class Added:
    """A new column. ``default`` is None if the statement names no default. ``after`` is the column before it; empty: it
    is the first column; None: it is the last one."""

    name: str
    nullable: bool
    default: SqlLiteral | None
    after: str | None = None


@dataclass(frozen=True)
class Dropped:
    name: str


@dataclass(frozen=True)
class DeclaredColumn:
    """A column that gets a new declaration, and perhaps a new name."""

    was: str
    name: str


@dataclass(frozen=True)
class Renamed:
    was: str
    name: str


Change: TypeAlias = Added | Dropped | DeclaredColumn | Renamed


@dataclass(frozen=True)
class ColumnChanges:
    """The changes of one ALTER TABLE, in the order in which it names them, and its effect on the table's identity."""

    table: TableName
    changes: tuple[Change, ...]
    identity: IdentityEffect

    @property
    def described(self) -> str:
        return f"ALTER TABLE {', '.join(map(_said, self.changes))}"


def column_changes(statement: Statement, tracked: TrackedNames) -> ColumnChanges | None:
    """Return the changes of an ALTER TABLE on a copied table. None: the statement is another one, it changes no column,
    or it is not understood as a whole. If the bytes of the statement have two likely readings (`grammar.decode`), both
    must make the same changes. In no other reading may the statement be about another copied table."""
    first, *others = (_column_changes(reading, tracked) for reading in statement.readings)
    if first is None or any(other != first for other in others):
        return None
    unlikely = statement.other_readings(only_ascii_names=tracked.only_ascii)
    return None if any(_altered(reading, tracked) not in (None, first.table) for reading in unlikely) else first


def _altered(statement: Statement, tracked: TrackedNames) -> TableName | None:
    """Return the copied table that an ALTER TABLE names. None: it names none, or the text is no statement."""
    try:
        reader = Reader(statement)
        reader.need("ALTER")
        reader.need("TABLE")
        table = reader.table()
    except UnreadableError:
        return None
    return tracked.find(table.schema, table.name)


def _column_changes(statement: Statement, tracked: TrackedNames) -> ColumnChanges | None:
    # Without row logging, the server also logs the ALTER of a temporary table, which hides a table of the same name.
    # Such a statement does not change the data dictionary.
    if not statement.atomic or "alter" not in statement.text.lower():
        return None
    try:
        reader = Reader(statement)
        reader.need("ALTER")
        reader.need("TABLE")
        table = reader.table()
        if not tracked.has(table):
            # A similar name may be the name of another table.
            return None
        parts = _ColumnParts(reader, table, tracked)
        identity = parts.identity()
    except UnreadableError:
        return None
    if identity is None or not parts.changes:
        return None
    return ColumnChanges(table, tuple(parts.changes), identity)


def _said(change: Change) -> str:
    if isinstance(change, Added):
        return f"ADD COLUMN {change.name}"
    if isinstance(change, Dropped):
        return f"DROP COLUMN {change.name}"
    if isinstance(change, Renamed):
        return f"RENAME COLUMN {change.was} TO {change.name}"
    return f"MODIFY COLUMN {change.name}" if change.was == change.name else f"CHANGE COLUMN {change.was} {change.name}"


class _ColumnParts(Parts):
    """Also parses changes of columns."""

    def __init__(self, reader: Reader, table: TableName, tracked: TrackedNames) -> None:
        super().__init__(reader, table, tracked)
        self.changes: list[Change] = []
        self._is_mixed = False

    def part(self) -> IdentityEffect | None:
        reader = self.reader
        at = reader.at
        if reader.take("MODIFY"):
            reader.take("COLUMN")
            name = reader.name()
            return self._declared(name, name)
        if reader.take("CHANGE"):
            reader.take("COLUMN")
            return self._declared(reader.name(), reader.name())
        if reader.take("RENAME") and reader.take("COLUMN"):
            was = reader.name()
            reader.need("TO")
            self.changes.append(Renamed(was, reader.name()))
            return IdentityEffect.MARKED
        reader.at = at
        if verb := reader.take("ADD", "DROP"):
            if reader.take("COLUMN") or reader.word() not in _NO_COLUMN:
                return self._added() if verb == "ADD" else self._dropped()
            reader.at = at
        self._is_mixed = True
        return super().part()

    def done(self, effect: IdentityEffect) -> IdentityEffect | None:
        whole = super().done(effect)
        is_old = self.reader.statement.server_version < _INSTANT_SINCE
        # A statement with other parts, such as a new index, is not instant.
        rebuilds = is_old or self._is_mixed or self.algorithm == "INPLACE"
        return IdentityEffect.REBUILT if whole is not None and self.changes and rebuilds else whole

    def _added(self) -> IdentityEffect:
        name = self.reader.name()
        nullable, default, after = self._declaration()
        self.changes.append(Added(name, nullable, default, after))
        return IdentityEffect.MARKED

    def _dropped(self) -> IdentityEffect:
        self.changes.append(Dropped(self.reader.name()))
        return IdentityEffect.MARKED

    def _declared(self, was: str, name: str) -> IdentityEffect | None:
        _, _, after = self._declaration()
        if after is not None:
            # The column may move to another place.
            return None
        self.changes.append(DeclaredColumn(was, name))
        # Such a change may copy the table row by row.
        return IdentityEffect.REBUILT

    def _declaration(self) -> tuple[bool, SqlLiteral | None, str | None]:
        """Parse the declaration of a column: whether it may be NULL, its default, and its place (`Added.after`).

        :raises UnreadableError: the declaration has a part whose effect on rows is not known, such as AUTO_INCREMENT,
            GENERATED, CHECK or an expression.
        """
        reader = self.reader
        kind = reader.need(*_TYPES)
        if kind == "DOUBLE":
            reader.take("PRECISION")
        if reader.sign("("):
            self._arguments()
        while word := reader.take("UNSIGNED", "SIGNED", "ZEROFILL", "CHARACTER", "CHARSET", "COLLATE"):
            if word == "CHARACTER":
                reader.need("SET")
            if word in ("CHARACTER", "CHARSET", "COLLATE"):
                reader.name()
        nullable, default, after = True, None, None
        while word := reader.take(
            "NOT", "NULL", "DEFAULT", "COMMENT", "COLLATE", "VISIBLE", "INVISIBLE", "FIRST", "AFTER"
        ):
            if word == "NOT":
                reader.need("NULL")
                nullable = False
            elif word == "DEFAULT":
                default = _literal(reader)
            elif word == "COMMENT":
                _string(reader)
            elif word == "COLLATE":
                reader.name()
            elif word == "FIRST":
                after = ""
            elif word == "AFTER":
                after = reader.name()
        return nullable, default, after

    def _arguments(self) -> None:
        """Parse the arguments of a type, after the opening parenthesis."""
        reader = self.reader
        while not reader.sign(")"):
            if not reader.sign(","):
                token = reader.tokens[reader.at] if reader.at < len(reader.tokens) else None
                if token is None or not (token.word.isdecimal() or token.text in ("'", '"')):
                    raise UnreadableError
                reader.at += 1


def _string(reader: Reader) -> str:
    token = reader.tokens[reader.at] if reader.at < len(reader.tokens) else None
    if token is None or token.can_name or token.text not in ("'", '"'):
        raise UnreadableError
    reader.at += 1
    after = reader.tokens[reader.at] if reader.at < len(reader.tokens) else None
    if after is not None and not after.can_name and after.text in ("'", '"'):
        # The server joins neighbouring strings.
        raise UnreadableError
    return token.literal


def _literal(reader: Reader) -> SqlLiteral:
    """Parse a constant. Only constants that mean the same in every session are accepted."""
    if reader.take("NULL"):
        return SqlLiteral(None)
    if reader.take("TRUE"):
        return SqlLiteral("1")
    if reader.take("FALSE"):
        return SqlLiteral("0")
    token = reader.tokens[reader.at] if reader.at < len(reader.tokens) else None
    if token is not None and not token.can_name and token.text in ("'", '"'):
        text = _string(reader)
        is_known = {reader.statement.charset, reader.statement.literals_charset} <= {*_CHARSETS}
        if not is_known or not text.isascii() or not text.isprintable() or any(sign in text for sign in "\\'\""):
            raise UnreadableError
        return SqlLiteral(text, quoted=True)
    minus = "-" if reader.sign("-") else ""
    whole = reader.name()
    fraction = f".{reader.name()}" if reader.sign(".") else ""
    if not whole.isdecimal() or not (fraction[1:] or "0").isdecimal() or not whole.isascii():
        raise UnreadableError
    return SqlLiteral(f"{minus}{whole}{fraction}")
