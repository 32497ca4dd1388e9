"""Tables, columns and keys: records (`core.records`), which go into the manifest as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any

from airflow_provider_cdc.core.options.run import AS_DECLARED, TableOptions
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.errors import ConfigurationError


@total_ordering
class TableName:
    """A schema-qualified table name. Its text, also in records, is ``schema.table``, unquoted."""

    # A dataclass would be an object of two fields in a record, and not this text.
    def __init__(self, schema: str, name: str) -> None:
        self._parts = schema, name

    @property
    def schema(self) -> str:
        return self._parts[0]

    @property
    def name(self) -> str:
        return self._parts[1]

    @property
    def part(self) -> str:
        """Of which part of the table it names the copies; empty: of all of it."""
        return ""

    def __str__(self) -> str:
        return ".".join(self._parts)

    def __repr__(self) -> str:
        return f"TableName{self._parts!r}"

    # Parts of one table differ and have an order, whichever of the two classes a name is of.
    def __eq__(self, other: object) -> bool:
        return self._identity == other._identity if isinstance(other, TableName) else NotImplemented

    def __lt__(self, other: TableName) -> bool:
        return self._identity < other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[str, ...]:
        return (*self._parts, self.part)

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read ``schema.table``.

        :raises ConfigurationError: the text is not of that form.
        """
        schema, dot, name = text.partition(".")
        if not (dot and schema and name):
            raise ConfigurationError(
                f"{text!r} does not name a table", hint="write it as schema.table, for example shop.orders"
            )
        return cls(schema, name)


class CopyName(TableName):
    """The name of the copies of a table, or of some part of it: another one for each part (`Selection.part`).

    Its text is that of the table. That of copies of whole tables is the table's name.
    """

    def __init__(self, table: TableName, part: str) -> None:
        super().__init__(table.schema, table.name)
        self._part = part

    @classmethod
    def of(cls, table: TableName, selection: Selection) -> TableName:
        return table if selection.whole else cls(table, selection.part)

    @property
    def part(self) -> str:
        return self._part

    def __repr__(self) -> str:
        return f"CopyName{(self.schema, self.name, self._part)!r}"


KNOWN_AT_POSITION = "known_at_position"
"""In a table's details: what its source found to hold at the table's position, in words of its own. It goes on to hold
as long as the log has nothing that a copy cannot be rolled forward by."""


@dataclass(frozen=True)
class Column:
    """One column, in the order the table stores it.

    ``type`` is the type as the source declares it (``decimal(10,2) unsigned``), ``details`` what else the source's
    table of types needs to read a value (a character set, an OID, …): JSON scalars only.
    """

    name: str
    type: str
    nullable: bool
    details: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table's schema at the initial position, and what is known of its size.

    ``key`` names the columns of the primary key, else of a unique key without NULLs, in key order; it is empty for a
    keyless table. ``key_index`` is the name of the index behind it. ``rows`` and ``bytes`` are the source's own
    estimates: they steer the plan and the progress display and never the result. ``details`` is what else the source
    needs to find the table's rows, and to know it again: JSON. ``options`` are how it is read and published.
    ``cascades_from`` are other tables (or this one) whose changes reach its rows without being logged; ``key`` of these
    are the columns that foreign keys refer to. ``selection`` is the part of it that is copied.
    """

    name: TableName
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    key_index: str = ""
    rows: int = 0
    bytes: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)
    options: TableOptions = AS_DECLARED
    cascades_from: tuple[Table, ...] = ()
    selection: Selection = WHOLE

    @property
    def copy_name(self) -> TableName:
        """What its copies are called in the lake."""
        return CopyName.of(self.name, self.selection)

    @property
    def published_columns(self) -> list[str]:
        """The columns of its copies."""
        return self.selection.published([column.name for column in self.columns], self.key)

    @property
    def as_read(self) -> Table:
        """The table with those columns alone that are asked of the server: the key's, the published ones, and those
        that the condition looks at. Images in the log have all of its columns."""
        if not self.selection.columns:
            return self
        looked_at = self.selection.where.columns if self.selection.where is not None else ()
        read = {*self.published_columns, *looked_at}
        return replace(self, columns=tuple(column for column in self.columns if column.name in read))

    @property
    def keyless(self) -> bool:
        return not self.key

    @property
    def needs_one_position(self) -> bool:
        """Whether its rows can be rewound only if all of them were read at one exact position: it has no key, or the
        log lacks changes."""
        return self.keyless or bool(self.cascades_from)

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")

    def identifies(self, name: str) -> bool:
        """Whether the column is part of what tells rows apart: of the key, or of the whole row if there is no key."""
        return self.keyless or name in self.key

    def same_shape(self, other: Table) -> bool:
        """Whether both have the same columns and key, whatever their sizes."""
        return (self.name, self.columns, self.key) == (other.name, other.columns, other.key)


Parts = Callable[[TableName], Selection]
"""Which part of each table a run copies."""


def whole_tables(table: TableName) -> Selection:
    """`Parts` of a run that copies whole tables."""
    return WHOLE
