"""The names of the copied tables, for looking up the names that statements use.

With ``lower_case_table_names``, the server converts names to lower case with its own conversion tables: İ becomes i,
and every character stays a single character. So two names are treated as equal if they are equal character by
character, ignoring case. All non-ASCII characters that have upper and lower case are treated as equal to each other,
and an ASCII letter to those of which it is the upper or lower case (İ, ı, ſ, and the sign of Kelvin). So
a run may stop because of a table with a similar name, but no table is missed. The same rule is used if the server
distinguishes upper and lower case.

The server does not reject every name that it cannot convert from one character set to another (`grammar.decode`):

- It replaces a character that it cannot convert with a question mark. It also logs names in this form. So a question
  mark is treated as equal to every non-ASCII character.
- For bytes that belong to no character, which are lone surrogates here, it writes a question mark, perhaps for several
  bytes, or it ends the name there. So from the first surrogate on, a name is treated as equal to every name that has a
  question mark there, and near its end, to the part of it before the surrogate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.mysql.tables.labels import parse
from airflow_provider_cdc.sources.mysql.tables.partitions import has_known_engine, has_rows_in_partitions_only
from airflow_provider_cdc.sources.mysql.tables.schema import may_lack_partitions


class TrackedNames:
    """Looks up names among the copied tables.

    :param key_indexes: for each table, the name of the index that is its key.
    :param recomputed: tables whose values may change when the server copies the table row by row.
    :param known_engines: tables that have been InnoDB tables since the beginning of the window.
    :param in_partitions: tables in which every row belonged to a partition at the beginning of the window.
    :param may_lack_partitions: tables with rows that may belong to no partition in some sessions.
    """

    def __init__(
        self,
        names: Iterable[TableName],
        key_indexes: Mapping[TableName, str] | None = None,
        recomputed: Collection[TableName] = (),
        known_engines: Collection[TableName] = (),
        in_partitions: Collection[TableName] = (),
        may_lack_partitions: Collection[TableName] = (),
    ) -> None:
        self._names = list(names)
        self._key_indexes = key_indexes or {}
        self._recomputed = recomputed
        self._known_engines = known_engines
        self._in_partitions = in_partitions
        self._may_lack_partitions = may_lack_partitions
        compared = [part for name in self._names for part in (name.schema, name.name, self.key_index(name))]
        self.only_ascii = all(part.isascii() and "?" not in part for part in compared)
        """Whether all names are ASCII, so that no name with other characters can be one of them."""
        self._by_name = {(name.schema.lower(), name.name.lower()): name for name in self._names}

    def find(self, schema: str, table: str) -> TableName | None:
        tracked_name = self._by_name.get((schema.lower(), table.lower()))
        if tracked_name is not None:
            return tracked_name
        return next(
            (name for name in self._names if alike(name.schema, schema) and alike(name.name, table)),
            None,
        )

    def is_named(self, names: Collection[str], schema: str) -> bool:
        """Return whether ``names`` has the name of a copied table, and the name of its schema unless the schema is
        ``schema``."""
        return any(
            any(alike(name.name, one) for one in names)
            and (alike(name.schema, schema) or any(alike(name.schema, one) for one in names))
            for name in self._names
        )

    def has(self, name: TableName) -> bool:
        """Return whether ``name`` is exactly the name of a copied table. Upper and lower case are different."""
        return name in self._names

    def key_index(self, name: TableName) -> str:
        """Return the name of the index that is the key of a copied table; empty if the table has no such index."""
        return self._key_indexes.get(name, "")

    def is_recomputed(self, name: TableName) -> bool:
        """Return whether values of the table may change when the server copies the table row by row."""
        return name in self._recomputed

    def has_known_engine(self, name: TableName) -> bool:
        """Return whether the table has been an InnoDB table since the beginning of the window."""
        return name in self._known_engines

    def has_rows_in_partitions_only(self, name: TableName) -> bool:
        """Return whether, at the beginning of the window, every row of the table belonged to a partition."""
        return name in self._in_partitions

    def may_lack_partitions(self, name: TableName) -> bool:
        """Return whether a row of the table may belong to no partition in some sessions."""
        return name in self._may_lack_partitions

    def first_in(self, schema: str) -> TableName | None:
        """Return any one of the copied tables in the schema. None: the schema has no copied table."""
        return next((name for name in self._names if alike(name.schema, schema)), None)


def alike(one: str, other: str) -> bool:
    """Return whether the server may treat both names as the same name."""
    if one.isascii() and other.isascii():
        return one.lower() == other.lower()
    for first, second in zip(one, other, strict=False):
        if _is_unknown(first) or _is_unknown(second):
            return all(_is_unknown(character) or character in _REPLACEMENTS for character in (first, second))
        if not _alike(first, second):
            return False
    rest = one[len(other) :] or other[len(one) :]
    return not rest or ("\udc80" <= rest[0] <= "\udcff" and len(rest) <= _MOST_INCOMPLETE and bool(one and other))


_REPLACEMENTS = frozenset("?\ufffd")
_MOST_INCOMPLETE = 3
"""The maximum number of bytes of an incomplete character, at which the server ends a name."""


def _is_unknown(character: str) -> bool:
    return "\ud800" <= character <= "\udfff"


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if one.isascii() and other.isascii():
        return one.lower() == other.lower()
    if "?" in (one, other):
        return True
    if one.isascii() or other.isascii():
        letter, character = (one, other) if one.isascii() else (other, one)
        return letter.isalpha() and letter.lower() in f"{character.lower()}{character.upper()}".lower()
    return _has_case(one) and _has_case(other)


def _has_case(character: str) -> bool:
    return character.lower() != character or character.upper() != character


# Facts about the copied tables, used to recognize statements that change no row of these tables.


_DATES = frozenset(["date", "datetime", "timestamp"])


def names_of(tables: Sequence[Table], others: Iterable[TableName] = ()) -> TrackedNames:
    """Return the names of the copied tables and of ``others``. For ``others``, no facts are known except the names."""
    return TrackedNames(
        [*(table.name for table in tables), *others],
        {table.name: table.key_index for table in tables},
        recomputed=[table.name for table in tables if is_recomputed(table)],
        known_engines=[table.name for table in tables if has_known_engine(table)],
        in_partitions=[table.name for table in tables if has_rows_in_partitions_only(table)],
        may_lack_partitions=[table.name for table in tables if may_lack_partitions(table)],
    )


def is_recomputed(table: Table) -> bool:
    """Return whether published values may change when the server copies the table row by row."""
    return any(
        column.details.get("generated") == "stored"
        # Only the policy ``string`` publishes dates that are not in the calendar. With any other policy, it does not
        # matter whether the server replaces dates that are not in the calendar.
        or (table.options.unrepresentable == "string" and getattr(parse(column.type), "name", "") in _DATES)
        for column in table.columns
    )
