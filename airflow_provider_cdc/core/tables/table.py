"""Tables, columns and keys. The manifest contains them, so all of them are records (`core.storage.records`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import total_ordering
from typing import Any

from airflow_provider_cdc.core.options.run import AS_DECLARED, TableOptions
from airflow_provider_cdc.core.storage.uri import safe_name
from airflow_provider_cdc.core.tables.selection import WHOLE, Selection
from airflow_provider_cdc.errors import ConfigurationError


@total_ordering
class TableName:
    """A schema-qualified table name. As text, for example in records, it is ``schema.table``, without quotes."""

    # Do not make this class a dataclass, because a record would then store a name as an object with two fields, and not
    # as text.
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
        """The digest of the copied part of the table; empty: the whole table."""
        return ""

    def __str__(self) -> str:
        return ".".join(self._parts)

    def __repr__(self) -> str:
        return f"TableName{self._parts!r}"

    # Names of different parts of one table are not equal, and can be sorted. A `TableName` and a `CopyName` can also be
    # compared with each other in this way.
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
        """Parse ``schema.table``.

        :raises ConfigurationError: the text does not have this form.
        """
        schema, dot, name = text.partition(".")
        if not (dot and schema and name):
            raise ConfigurationError(
                f"{text!r} does not name a table", hint="write the table as schema.table, for example shop.orders"
            )
        return cls(schema, name)


class CopyName(TableName):
    """The name of the copies of a part of a table. Each part has a different name (`Selection.part`).

    Its text is the table's name. Copies of a whole table have the table's name itself.
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


ORIGIN = ("_source", "_schema", "_table")
"""The origin columns of a merged table: the connection, the schema and the table from which a row was copied."""
KNOWN_AT_POSITION = "known_at_position"
"""A key in `Table.details`. The value is facts that the source found at the table's position, in the source's own
notation. These facts stay true as long as the log has no event that prevents rolling a copy forward."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    ``type`` is the type as the source declares it (``decimal(10,2) unsigned``). ``details`` has other facts that the
    source needs to read a value (a character set, an OID, …), as JSON scalars only.
    """

    name: str
    type: str
    nullable: bool
    details: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True)
class CarriedField:
    """The values of a present column in rows from before a schema change: the values of the column ``was``, or, if
    ``was`` is empty, one constant. ``constant`` is the value's bytes in the log, in hexadecimal digits (None: NULL)."""

    name: str
    was: str = ""
    constant: str | None = None


@dataclass(frozen=True)
class Era:
    """The columns that a table had until a statement changed them.

    The statement lies in the log between the places ``begins`` and ``ends``, in the notation of the source.
    ``statement`` describes it in words. ``fields`` has one entry for each present column, in order.
    """

    columns: tuple[Column, ...]
    begins: str
    ends: str
    statement: str
    fields: tuple[CarriedField, ...]


@dataclass(frozen=True)
class Evolution:
    """The schema changes of a table since its last copy, in the order of the log, and its present ``columns``."""

    eras: tuple[Era, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class MergedColumn:
    """A column of a merged table.

    ``type`` is the type as the source declares it, and ``published`` the Arrow type as text. ``collation`` is the
    collation of a key column, if the source has one. ``nullable``: every column outside of the key may be null.
    """

    name: str
    type: str
    published: str
    nullable: bool
    collation: str = ""


@dataclass(frozen=True)
class Shard:
    """The merged table in which a table's rows are published, together with the rows of other tables (its shards).

    All shards of a merged table have the same ``columns`` and the same ``key``, in this order. ``origin`` has the
    values of the origin columns (`ORIGIN`) of this shard's rows, or is empty. ``origin_in_key`` says whether the origin
    columns belong to the key of the merged table.
    """

    merged: TableName
    columns: tuple[MergedColumn, ...]
    key: tuple[str, ...]
    origin: dict[str, str] = field(default_factory=dict)
    origin_in_key: bool = False

    @property
    def origin_columns(self) -> tuple[str, ...]:
        return ORIGIN if self.origin else ()


@dataclass(frozen=True)
class Table:
    """A table's schema at the initial position, and the estimates of its size.

    ``columns`` are in the order in which the table stores them. ``key`` names the columns of the primary key, in key
    order. Without a primary key, it names the columns of a unique key without NULLs. For a keyless table, ``key`` is
    empty. ``key_index`` is the name of the key's index. ``rows`` and ``bytes`` are the source's own estimates, which
    affect the plan and the progress display, but never the result. ``details`` has other facts, as JSON, with which the
    source finds the table's rows and recognizes the table. ``options`` say how the table is read and published.
    ``cascades_from`` are the tables (maybe including this table) whose changes cascade to this table's rows without an
    entry in the log. The ``key`` of such a table has the columns that foreign keys refer to. ``selection`` is the part
    of the table that is copied. ``eras`` are the schema changes between the base copy and the position, for a table
    that is rolled forward over them. ``shard`` is set if the rows are published in a merged table.
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
    eras: tuple[Era, ...] = ()
    shard: Shard | None = None

    @property
    def lake_name(self) -> TableName:
        """The name of the table of the lake: of the merged table, or of the table itself."""
        return self.name if self.shard is None else self.shard.merged

    @property
    def copy_name(self) -> TableName:
        """The name of the table's copies in the lake. The shards of a merged table have one copy together."""
        return CopyName.of(self.lake_name, self.selection)

    @property
    def published_key(self) -> tuple[str, ...]:
        """The columns of the key of the table's copies."""
        in_key = self.shard is not None and self.shard.origin_in_key
        return (*self.key, *(ORIGIN if in_key else ()))

    @property
    def of_base(self) -> Table:
        """The table as the base copy has it."""
        return self.in_era(self.eras[0]) if self.eras else self

    def in_era(self, era: Era) -> Table:
        """The table with the columns that it had in one of its ``eras``."""
        return replace(self, columns=era.columns, eras=())

    @property
    def published_columns(self) -> list[str]:
        """The columns of the table's copies."""
        return self.selection.published([column.name for column in self.columns], self.key)

    @property
    def as_read(self) -> Table:
        """The table with only the columns that are read from the server: the key columns, the published columns, and
        the columns in the condition. Row images in the log have all columns."""
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
        """Whether the rewind needs all rows to be read at one exact position. This is necessary if the table has no
        key, or if the log lacks some changes."""
        return self.keyless or bool(self.cascades_from)

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")

    def identifies(self, name: str) -> bool:
        """Return whether the column identifies rows. This is true if it is in the key, or if the table has no key."""
        return self.keyless or name in self.key

    def same_shape(self, other: Table) -> bool:
        """Return whether both tables have the same name, columns and key. The sizes are not compared."""
        return (self.name, self.columns, self.key) == (other.name, other.columns, other.key)


Parts = Callable[[TableName], Selection]
"""A function that returns the part of a table that a run copies."""


def whole_tables(table: TableName) -> Selection:
    """Select the whole table. A run that copies whole tables uses this function as `Parts`."""
    return WHOLE


# Names of folders, which are safe in every file system, in URIs and in Hadoop paths.


NAME_BYTES = 255
"""The maximum number of bytes that file systems accept in one part of a path."""


def folder_name(table: TableName) -> str:
    """Return the folder name of a table. The name is safe in file systems, URIs and Hadoop paths, and is different for
    each table.

    The name is ``schema.table``. Bytes other than ASCII letters, digits, ``_ - $`` are written as ``~`` and two
    hexadecimal digits. A name that is too long for a file system is shortened, and ends in ``~~`` and a digest of the
    whole name. No other name has this ending. For copies of a part of a table, ``~part-`` and the part's digest follow
    the name. This is unambiguous, because no encoded table name has a ``p`` after a ``~``.
    """
    name, more = f"{safe_name(table.schema)}.{safe_name(table.name)}", f"~part-{table.part}" if table.part else ""
    if len(name) + len(more) <= NAME_BYTES:
        return name + more
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    # Remove an incomplete ~XX at the end.
    shortened = re.sub(r"~.?$", "", name[: NAME_BYTES - len(digest) - 2 - len(more)])
    return f"{shortened}~~{digest}{more}"


# The layout of a table of the lake: its partitioning, and the order of its rows.


IDENTITY, BUCKET, TRUNCATE = "identity", "bucket", "truncate"
PERIODS = ("year", "month", "day", "hour")

_PARTITION_EXAMPLE = "write country, day(created), bucket(16, id) or truncate(4, name)"
_WITH_COLUMN = re.compile(rf"\s*({'|'.join((IDENTITY, *PERIODS))})\s*\((.+)\)\s*", re.DOTALL)
_WITH_NUMBER = re.compile(rf"\s*({BUCKET}|{TRUNCATE})\s*\(\s*([1-9]\d{{0,8}})\s*,(.+)\)\s*", re.DOTALL)
_SORT = re.compile(r"\s*(.+?)(?:\s+(asc|desc))?\s*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class PartitionField:
    """One field of a partitioning: a transform of a column. ``number`` is the argument of ``bucket`` and
    ``truncate``."""

    transform: str
    column: str
    number: int = 0

    def __str__(self) -> str:
        if self.transform == IDENTITY:
            return self.column
        number = f"{self.number}, " if self.number else ""
        return f"{self.transform}({number}{self.column})"


@dataclass(frozen=True)
class SortField:
    """One column of a table's sort order."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class Layout:
    """The layout of a table. If ``partition`` is empty, the table is not partitioned. If ``sort`` is empty, the rows
    have no order."""

    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()


PLAIN = Layout()


def layout_of(partition_by: Sequence[str], sort_by: Sequence[str]) -> Layout:
    """Parse the values of the options ``partition_by`` and ``sort_by`` for one table.

    :raises ConfigurationError: a text is not a valid partition field or sort field, or two texts name the same field.
    """
    partition = tuple(map(_partition_field, partition_by))
    if len({str(field) for field in partition}) < len(partition):
        raise ConfigurationError("it names a field twice", hint="name each field once")
    sort = tuple(map(_sort_field, sort_by))
    if len({field.column for field in sort}) < len(sort):
        raise ConfigurationError("it names a column twice", hint="name each column once")
    return Layout(partition, sort)


def _partition_field(text: str) -> PartitionField:
    if found := _WITH_NUMBER.fullmatch(text):
        return PartitionField(found[1], found[3].strip(), int(found[2]))
    if found := _WITH_COLUMN.fullmatch(text):
        return PartitionField(found[1], found[2].strip())
    if re.match(r"\s*\w+\s*\(", text):
        raise ConfigurationError(f"{text!r} is not a transform of a column", hint=_PARTITION_EXAMPLE)
    return PartitionField(IDENTITY, text.strip())


def _sort_field(text: str) -> SortField:
    found = _SORT.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{text!r} does not name a column", hint="write created, or created desc")
    return SortField(found[1], (found[2] or "").lower() == "desc")
