"""Finds out which columns a tuple of the log has, for a table whose columns were changed since its base copy.

A Relation message has names and types, which may occur again after several changes, but no numbers of columns. So the
columns are found without them. A tuple has the columns of the base copy that were not dropped yet, in order, and after
them the first new columns: numbers increase with each new column, and no new column was dropped again. A statement that
drops a column locks the table until it is committed. So the place of its commit in the log decides for each transaction
whether it came before or after, and the number of fields gives the number of new columns.

Only the transaction that drops columns may have tuples of both kinds. If its tuples do not have one meaning, the table
is refused. The types are compared as well, with those of the base copy and the present ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from airflow_provider_cdc.core.positions.lsn import Lsn
from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.sources.postgres.catalog.column_evolution import DROPPED_AT, DROPPED_BY, number_of
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

    def places(self, found: Relation, commit: Lsn, xid: int) -> list[int | None]:
        """Return, for each present column, its place in the tuples of a relation. None: the tuples do not have it.

        :param commit: the beginning of the commit record of the transaction with the tuples.
        :param xid: the id of this transaction.
        :raises UnknownColumns: the columns of the tuples are not known.
        """
        meanings = list(self._meanings(len(found.columns), commit, str(xid)))
        if len(meanings) != 1:
            names = ", ".join(name for name, *_ in found.columns)
            raise UnknownColumns(f"it is not known which columns a row ({names}) has: {self._why(bool(meanings))}")
        (numbers,) = meanings
        for number, (name, oid, typmod) in zip(numbers, found.columns, strict=True):
            if self._names.get(number, name) != name or (oid, typmod) not in self._types[number]:
                raise UnknownColumns(f"the column {name} had a type that is neither of the copy nor of now")
        places = {number: place for place, number in enumerate(numbers)}
        return [places.get(number_of(column)) for column in self._present]

    def _why(self, several: bool) -> str:
        if not several:
            return "its columns are neither those of the copy nor the present ones"
        if unknown := [column.name for column in self._base if column.details.get(DROPPED_AT) == ""]:
            return (
                f"it is not known when {', '.join(unknown)} was dropped, because the server lacks the output plugin "
                "test_decoding, or because the ALTER TABLE came after a SAVEPOINT"
            )
        return "one transaction dropped columns, changed rows and may have added columns"

    def _meanings(self, count: int, commit: Lsn, xid: str) -> Iterator[Sequence[int]]:
        """Yield each list of columns, as numbers, that a tuple with ``count`` fields may have."""
        there: list[tuple[bool, ...]] = [_there(column, commit, xid) for column in self._base]
        if sum(len(options) > 1 for options in there) > _MOST_UNDECIDED:
            raise UnknownColumns("it is not known when each of its columns was dropped")
        for choice in product(*there):
            live = [number_of(column) for column, is_there in zip(self._base, choice, strict=True) if is_there]
            new = count - len(live)
            if 0 <= new <= len(self._new):
                yield live + [number_of(column) for column in self._new[:new]]


def _there(column: Column, commit: Lsn, xid: str) -> tuple[bool, ...]:
    """Return whether the table had a column of the base copy. Both answers: it is not known."""
    if DROPPED_BY not in column.details:
        return (True,)
    at = str(column.details[DROPPED_AT])
    if not at or column.details[DROPPED_BY] == xid:
        return True, False
    return (commit < Lsn.parse(at),)
