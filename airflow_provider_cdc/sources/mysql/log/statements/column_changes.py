"""Recognizes ALTER TABLE statements that change columns in a way that can be computed outside the server.

For such a statement, each row after it follows from the same row before it: a column is dropped or renamed, a column
gets another declaration, or a column is added with one constant for all rows. `PlacedChanges` decides from the
definitions of the tables whether the change can be carried.

The whole statement must be understood, as in `alter_table`, whose other parts are accepted beside these changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import TypeAlias

from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Evolution, Table, TableName
from airflow_provider_cdc.sources.mysql.log.statements.alter_table import Parts
from airflow_provider_cdc.sources.mysql.log.statements.grammar import Reader, Statement, UnreadableError
from airflow_provider_cdc.sources.mysql.log.statements.index_changes import IdentityEffect
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import TrackedNames, is_recomputed
from airflow_provider_cdc.sources.mysql.server.dialect import INSTANT_ANYWHERE, comment_number
from airflow_provider_cdc.sources.mysql.tables.labels import may_be_alike
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, decimal_groups

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
_INSTANT_SINCE = comment_number(INSTANT_ANYWHERE.since)
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
        return f"ALTER TABLE {', '.join(map(_described, self.changes))}"


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


def _described(change: Change) -> str:
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


# Decides whether a copy can be rolled forward over schema changes, and how its rows become rows of the present table.
#
# A column keeps its identity along the log: a renamed column is the same column, and a column that was dropped and
# added again is another one, even if both definitions are equal. The log alone tells this, because the definitions at
# both ends do not.
#
# The definition of a column at each place is known without interpreting types in statements: it is the definition in
# the base's record, or the present one. If a column was declared again, it has the first definition before the
# statement and the second one after it. A column with a definition that is neither of both makes the table unfit: a
# column that was added and changed or dropped again, or that was declared twice. The reader of the log compares each
# definition with the column types in the log.
#
# The result maps each earlier row to a present row. So the statements must, applied to the columns of the base, give
# exactly the present columns.


# The bytes that a constant default has in the log. All rows get it from the statement that adds the column.


_ASCII = ("ascii", "latin1", "utf8mb3", "utf8mb4")
"""Character sets in which ASCII text has the same bytes as in ASCII."""
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_INTEGER = re.compile(r"-?\d+", re.ASCII)


class NotConstant(Exception):
    """The reason why the bytes of a default are not known."""


def field_of(column: Column, added: Added) -> str | None:
    """Return the field of the new ``column`` in row images, in hexadecimal digits; None: NULL.

    :raises NotConstant: the default is no constant, or the bytes of a constant of this type are not known.
    """
    text = added.default.text if added.default is not None else None
    if text is None:
        if added.nullable:
            return None
        if added.default is not None:
            raise NotConstant("NULL is no value of it")
    kind = ColumnType.of(column)
    value = _value(column, kind, text, added.default is not None and added.default.quoted)
    length = len(value).to_bytes(kind.prefix, "little") if kind.prefix else b""
    return (length + value).hex()


def _value(column: Column, kind: ColumnType, text: str | None, quoted: bool) -> bytes:
    """Return the bytes of a value; ``text`` None: of the value that the server chooses for NOT NULL without default."""
    declared = column.type.partition("(")[0].partition(" ")[0]
    if kind.family is Family.NUMBER and kind.width and declared not in ("float", "double"):
        if text is not None and not _INTEGER.fullmatch(text):
            raise NotConstant("its default is not written as a whole number")
        return _integer(int(text or "0"), kind.width, kind.unsigned)
    if kind.family not in (Family.NUMBER, Family.DECIMAL) and text is not None and not quoted:
        raise NotConstant("its default is not written as a string")
    if kind.family is Family.TEXT and declared in ("varchar", "char") and kind.charset in _ASCII:
        if (text or "").endswith(" "):
            raise NotConstant("its default ends with a space")
        return (text or "").encode("ascii")
    if kind.family is Family.DECIMAL:
        return _decimal(Decimal(_number(text or "0")), kind.precision, kind.scale)
    if kind.family is Family.ENUM:
        if text is not None and may_be_alike(kind.labels):
            raise NotConstant("the server may take its default for another label")
        if text is None or text in kind.labels:
            return (1 + (kind.labels.index(text) if text is not None else 0)).to_bytes(kind.width, "little")
        raise NotConstant("its default is not written as one of its labels")
    if kind.family is Family.DATE and text is not None and (date := _DATE.fullmatch(text)):
        year, month, day = map(int, date.groups())
        return (year << 9 | month << 5 | day).to_bytes(3, "little")
    raise NotConstant(f"a default that is not NULL cannot be carried for the type {column.type}")


def _number(text: str) -> str:
    if not re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
        raise NotConstant("its default is not written as a decimal number")
    return text


def _integer(number: int, width: int, unsigned: bool) -> bytes:
    try:
        return number.to_bytes(width, "little", signed=not unsigned)
    except OverflowError as error:
        raise NotConstant("its default is outside the range of its type") from error


def _decimal(number: Decimal, precision: int, scale: int) -> bytes:
    """Return the bytes of a DECIMAL: groups of nine digits from the decimal point on, the first bit inverted, and all
    bits inverted for a negative number."""
    scaled = number.scaleb(scale)
    if scaled != scaled.to_integral_value() or abs(scaled) >= 10**precision:
        raise NotConstant("its default does not fit its type exactly")
    digits = f"{abs(int(scaled)):0{precision}d}"
    value = bytearray()
    for size, count in decimal_groups(precision, scale):
        value += int(digits[:count]).to_bytes(size, "big")
        digits = digits[count:]
    value[0] ^= 0x80
    return bytes(byte ^ 0xFF for byte in value) if scaled < 0 else bytes(value)


_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")


class NotCarried(Exception):
    """The reason why a table cannot be rolled forward over its schema changes."""


@dataclass(frozen=True)
class PlacedChanges:
    """The changes of a statement that lies in the log between the places ``begins`` and ``ends``."""

    changes: ColumnChanges
    begins: str
    ends: str


@dataclass
class _Identity:
    """One column along the log. ``base`` is its definition in the base copy; None: it was added later, by ``added``.
    ``declared`` is the number of the statement that declared it again. ``present`` is its present definition; None: it
    was dropped."""

    base: Column | None
    added: Added | None = None
    declared: int | None = None
    present: Column | None = None

    def at(self, number: int, name: str) -> Column:
        """Return the definition before the statement ``number``, when the column had this ``name``."""
        changed = self.declared is not None and self.declared < number
        definition = self.present if self.base is None or changed else self.base
        if definition is None:
            raise NotCarried(f"the column {name} was added or changed, and dropped again")
        return replace(definition, name=name)


@dataclass
class _Columns:
    """The columns at a place in the log: their identities and names, in order."""

    identities: list[_Identity]
    names: list[str] = field(default_factory=list)

    def find(self, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        # The server compares the names of columns without regard to case and to accents.
        alike = [number for number, other in enumerate(self.names) if other.lower() == name.lower()]
        if len(alike) != 1 or not name.isascii():
            raise NotCarried(f"the statement names a column {name} that is not known")
        return alike[0]


def evolution(base: Table, now: Table, placed: Sequence[PlacedChanges]) -> Evolution:
    """Return how the rows of a base copy become rows of the present table.

    :param placed: all statements that changed columns of the table since the base, in the order of the log.
    :raises NotCarried: the rows cannot be computed outside the server.
    """
    if not base.selection.whole:
        raise NotCarried("only a part of the table is copied (where, columns)")
    declares = any(isinstance(change, DeclaredColumn) for one in placed for change in one.changes.changes)
    if declares and any(column.details.get("generated") for column in base.columns):
        raise NotCarried("the values of generated columns may depend on the column that was declared again")
    columns = _Columns([_Identity(column) for column in base.columns], [column.name for column in base.columns])
    before: list[list[tuple[_Identity, str]]] = []
    for number, one in enumerate(placed):
        before.append(list(zip(columns.identities, columns.names, strict=True)))
        _apply(columns, one.changes, number)
    if columns.names != [column.name for column in now.columns]:
        raise NotCarried("the statements in the log do not lead to its present columns")
    for identity, column in zip(columns.identities, now.columns, strict=True):
        identity.present = column
        if identity.base is not None:
            _check_conversion(identity, column)
    _check_dates(base, before)
    _check_key(base, now, [*before, list(zip(columns.identities, columns.names, strict=True))])
    eras = []
    for number, (one, then) in enumerate(zip(placed, before, strict=True)):
        names = {id(identity): name for identity, name in then}
        eras.append(
            Era(
                tuple(identity.at(number, name) for identity, name in then),
                one.begins,
                one.ends,
                one.changes.described,
                tuple(_field(identity, names) for identity in columns.identities),
            )
        )
    return Evolution(tuple(eras), now.columns)


def _apply(columns: _Columns, statement: ColumnChanges, number: int) -> None:
    """Apply a statement. All its parts name the columns as they were before it."""
    then = _Columns(list(columns.identities), list(columns.names))
    dropped: set[int] = set()
    renamed: dict[int, str] = {}
    for change in statement.changes:
        if isinstance(change, Added):
            continue
        at = then.find(change.name if isinstance(change, Dropped) else change.was)
        if at in dropped or at in renamed:
            raise NotCarried(f"one statement changes the column {then.names[at]} twice")
        if isinstance(change, Dropped):
            dropped.add(at)
            continue
        renamed[at] = change.name if isinstance(change, Renamed) or change.name != change.was else then.names[at]
        if isinstance(change, DeclaredColumn):
            identity = then.identities[at]
            if identity.base is None or identity.declared is not None:
                raise NotCarried(f"the column {change.name} was declared more than once")
            identity.declared = number
    stays = [at for at in range(len(then.names)) if at not in dropped]
    columns.identities = [then.identities[at] for at in stays]
    columns.names = [renamed.get(at, then.names[at]) for at in stays]
    moved = {then.names[at].lower() for at in (*dropped, *renamed)} | {name.lower() for name in renamed.values()}
    for change in statement.changes:
        if not isinstance(change, Added):
            continue
        place = len(columns.names)
        if change.after == "":
            place = 0
        elif change.after is not None:
            if change.after.lower() in moved:
                raise NotCarried("one statement adds a column after a column that it changes")
            place = columns.find(change.after) + 1
        columns.identities.insert(place, _Identity(None, change))
        columns.names.insert(place, change.name)


def _check_dates(base: Table, before: Sequence[Sequence[tuple[_Identity, str]]]) -> None:
    """Check that no statement may have changed values of a new column. For columns of the base, the log's reader checks
    this (`alter_table`)."""
    for then in before:
        new = tuple(one.present for one, _ in then if one.base is None and one.present is not None)
        if is_recomputed(replace(base, columns=new)):
            raise NotCarried("a later statement may have changed the invalid dates of a new column")


def _check_key(base: Table, now: Table, steps: Sequence[Sequence[tuple[_Identity, str]]]) -> None:
    """Check that no statement changed a column of the key, not even its name."""
    if base.key != now.key or base.key_index != now.key_index:
        raise NotCarried("its key has changed")
    key = {column.name: column for column in base.columns if column.name in base.key}
    for then in steps:
        names = {name: identity for identity, name in then}
        for name, column in key.items():
            identity = names.get(name)
            if identity is None or identity.base != column or identity.declared is not None:
                raise NotCarried(f"a statement changed the column {name} of its key")


def _check_conversion(identity: _Identity, now: Column) -> None:
    """Check that each value of the column is the same value in the present definition."""
    assert identity.base is not None
    before = replace(identity.base, name=now.name)
    if before == now:
        return
    if identity.declared is None:
        raise NotCarried(f"the column {now.name} has changed, and no statement in the log declares it")
    if before.nullable and not now.nullable:
        raise NotCarried(f"the column {now.name} became NOT NULL, which may have changed rows")
    if before.details != now.details:
        raise NotCarried(f"the character set, the collation or another property of the column {now.name} has changed")
    one, other = ColumnType.of(before), ColumnType.of(now)
    if not _widens(before.type, now.type, one, other):
        raise NotCarried(f"the type of the column {now.name} has changed from {before.type} to {now.type}")


def _widens(before: str, now: str, one: ColumnType, other: ColumnType) -> bool:
    if before == now:
        return True
    if one.family is not other.family:
        return False
    kinds = [text.partition("(")[0].partition(" ")[0] for text in (before, now)]
    if one.family is Family.NUMBER:
        return all(kind in _INTEGERS for kind in kinds) and one.unsigned == other.unsigned and one.width <= other.width
    if one.family is Family.ENUM:
        # If the server copies the table row by row, it finds the label of each row by its text.
        return bool(one.labels) and other.labels[: len(one.labels)] == one.labels and not may_be_alike(one.labels)
    return kinds in (["varchar"] * 2, ["varbinary"] * 2) and one.metadata[::-1] <= other.metadata[::-1]


def _field(identity: _Identity, names: Mapping[int, str]) -> CarriedField:
    assert identity.present is not None
    present = identity.present
    if (was := names.get(id(identity))) is not None:
        return CarriedField(present.name, was)
    assert identity.added is not None
    if present.details.get("generated") or present.nullable != identity.added.nullable:
        raise NotCarried(f"the values of the new column {present.name} are not one constant")
    try:
        return CarriedField(present.name, constant=field_of(present, identity.added))
    except NotConstant as error:
        raise NotCarried(f"the new column {present.name}: {error}") from error
