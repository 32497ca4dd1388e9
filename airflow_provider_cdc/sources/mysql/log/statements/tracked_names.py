"""The copied tables, to look names up as a statement writes them.

With ``lower_case_table_names`` the server folds names by tables of its own, in which İ becomes i and every character
stays one. So two names are alike here if they are so character by character, without regard to case, and a character
beyond ASCII that has two cases is like any other that has: that stops a run for some tables that only look alike, and
misses none. Where case counts, the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_provider_cdc.core.tables.table import TableName


class TrackedNames:
    """Looks names up among those of the copied tables.

    :param key_indexes: the name of the index behind each table's key.
    :param recomputed: the tables of which a value may become another when the server copies them row by row.
    :param known_engines: the tables that were InnoDB's from the beginning of the window.
    :param in_partitions: the tables that had no row there that belongs to none of their partitions.
    :param may_lack_partitions: the tables of which a session may find no partition for a row.
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
        self._by_name = {(name.schema.lower(), name.name.lower()): name for name in self._names}

    def find(self, schema: str, table: str) -> TableName | None:
        tracked_name = self._by_name.get((schema.lower(), table.lower()))
        if tracked_name is not None:
            return tracked_name
        return next(
            (name for name in self._names if alike(name.schema, schema) and alike(name.name, table)),
            None,
        )

    def has(self, name: TableName) -> bool:
        """Whether it is a copied table, letter by letter."""
        return name in self._names

    def key_index(self, name: TableName) -> str:
        """The index behind the key of a copied table; empty if there is none."""
        return self._key_indexes.get(name, "")

    def is_recomputed(self, name: TableName) -> bool:
        """Whether a copy of it, row by row, may have other values."""
        return name in self._recomputed

    def has_known_engine(self, name: TableName) -> bool:
        """Whether it was InnoDB's from the beginning of the window."""
        return name in self._known_engines

    def has_rows_in_partitions_only(self, name: TableName) -> bool:
        """Whether it had no row at the beginning of the window that belongs to none of its partitions."""
        return name in self._in_partitions

    def may_lack_partitions(self, name: TableName) -> bool:
        """Whether a session that computes the partitions of its rows may find none for some."""
        return name in self._may_lack_partitions

    def first_in(self, schema: str) -> TableName | None:
        """Some copied table of the schema."""
        return next((name for name in self._names if alike(name.schema, schema)), None)


def alike(one: str, other: str) -> bool:
    """Whether the server may take both for the same name."""
    if one.isascii() and other.isascii():
        return one.lower() == other.lower()
    return len(one) == len(other) and all(map(_alike, one, other))


def _alike(one: str, other: str) -> bool:
    if one == other:
        return True
    if one.isascii() and other.isascii():
        return one.lower() == other.lower()
    return all(character.isascii() or _has_case(character) for character in (one, other))


def _has_case(character: str) -> bool:
    return character.lower() != character or character.upper() != character
