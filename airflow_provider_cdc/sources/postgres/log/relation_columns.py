"""Finds out which columns a tuple of the log has, for a table whose columns were changed since its base copy.

A Relation message has names and types, which may occur again after several changes, but no numbers of columns. So the
columns are found without them. A tuple has the columns of the base copy that were not dropped yet, in order, and after
them the first new columns: numbers increase with each new column, and no new column was dropped again.

When a column was dropped is not known. So the number of fields and the columns that no statement has altered, which had
the same names all the time, tell which columns a tuple has. If they leave more than one possibility, the table is
refused. The types are compared as well, with those of the base copy and the present ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.sources.postgres.catalog.column_evolution import DROPPED, number_of
from airflow_provider_cdc.sources.postgres.log.pgoutput import Relation

_MOST_UNDECIDED = 8


class UnknownColumns(Exception):
    """The reason why the columns of a tuple are not known."""


class RelationColumns:
    """The columns that a table with `Table.eras` had since its base copy."""

    def __init__(self, table: Table) -> None:
        (era,) = table.eras
        self._fields, self._present = era.fields, table.columns
        self._base = era.columns
        known = {number_of(column) for column in era.columns}
        self._new = [column for column in table.columns if number_of(column) not in known]
        self._types: dict[int, set[tuple[int, int]]] = {}
        for column in (*era.columns, *table.columns):
            types = self._types.setdefault(number_of(column), set())
            types.add((int(column.details["oid"]), int(column.details["typmod"])))
        # Columns that no statement has altered. Other columns may have had any name in between.
        versions = {number_of(column): column.details["version"] for column in era.columns}
        self._names = {
            number_of(column): column.name
            for column in table.columns
            if versions.get(number_of(column)) == column.details["version"]
        }
        self.most = len(self._base) + len(self._new)

    def places(self, found: Relation) -> list[int | None]:
        """Return, for each present column, its place in the tuples of a relation. None: the tuples do not have it.

        :raises UnknownColumns: the columns of the tuples are not known.
        """
        meanings = [
            numbers
            for numbers in self._meanings(len(found.columns))
            if all(
                self._names.get(number, name) == name for number, (name, *_) in zip(numbers, found.columns, strict=True)
            )
        ]
        if len(meanings) != 1:
            names = ", ".join(name for name, *_ in found.columns)
            raise UnknownColumns(f"it is not known which columns a row ({names}) has: {self._why(bool(meanings))}")
        (numbers,) = meanings
        for number, (name, oid, typmod) in zip(numbers, found.columns, strict=True):
            if (oid, typmod) not in self._types[number]:
                raise UnknownColumns(f"the column {name} had a type that is neither of the copy nor of now")
        places = {number: place for place, number in enumerate(numbers)}
        return [places.get(number_of(column)) for column in self._present]

    def _why(self, several: bool) -> str:
        if not several:
            return "its columns are neither those of the copy nor the present ones"
        dropped = ", ".join(column.name for column in self._base if DROPPED in column.details)
        return f"the log does not show when {dropped} was dropped, and the other columns do not show it, either"

    def _meanings(self, count: int) -> Iterator[Sequence[int]]:
        """Yield each list of columns, as numbers, that a tuple with ``count`` fields may have."""
        there = [(True, False) if DROPPED in column.details else (True,) for column in self._base]
        if sum(len(options) > 1 for options in there) > _MOST_UNDECIDED:
            raise UnknownColumns("too many of its columns were dropped")
        for choice in product(*there):
            live = [number_of(column) for column, is_there in zip(self._base, choice, strict=True) if is_there]
            new = count - len(live)
            if 0 <= new <= len(self._new):
                yield live + [number_of(column) for column in self._new[:new]]
