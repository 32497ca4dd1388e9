"""Decides whether a copy can be rolled forward over schema changes, and how its rows become rows of the present table.

A column keeps its identity along the log: a renamed column is the same column, and a column that was dropped and added
again is another one, even if both definitions are equal. The log alone tells this, because the definitions at both ends
do not.

The definition of a column at each place is known without interpreting types in statements: it is the definition in the
base's record, or the present one. If a column was declared again, it has the first definition before the statement and
the second one after it. A column with a definition that is neither of both makes the table unfit: a column that was
added and changed or dropped again, or that was declared twice. The reader of the log compares each definition with the
column types in the log.

The result maps each earlier row to a present row. So the statements must, applied to the columns of the base, give
exactly the present columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Evolution, Table
from airflow_provider_cdc.sources.mysql.log.statements.column_changes import (
    Added,
    ColumnChanges,
    DeclaredColumn,
    Dropped,
    Renamed,
)
from airflow_provider_cdc.sources.mysql.log.statements.tracked_names import is_recomputed
from airflow_provider_cdc.sources.mysql.tables.labels import may_be_alike
from airflow_provider_cdc.sources.mysql.tables.types import ColumnType, Family, decimal_groups

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
