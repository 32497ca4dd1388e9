"""Processes the rare messages of a slot. The kernel in ``walk.py`` processes the frequent messages.

The kernel stops at every message that it does not know or cannot process. If this module does not know the message
either, the run stops. This module does not depend on where the messages come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, bytes_of, kernel
from airflow_provider_cdc.core.positions.position import Lsn
from airflow_provider_cdc.core.tables.table import Column, Table, TableName
from airflow_provider_cdc.errors import (
    CdcError,
    ConfigurationError,
    DecodeError,
    ImageNotWhole,
    LogGone,
    SchemaChanged,
    UnknownEvent,
)
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.log.changes import ChangeLog
from airflow_provider_cdc.sources.log.delta import NetChange
from airflow_provider_cdc.sources.postgres.catalog.schema import columns_of, leaves
from airflow_provider_cdc.sources.postgres.catalog.schema_difference import DROPPED, number_of
from airflow_provider_cdc.sources.postgres.log import walk_state
from airflow_provider_cdc.sources.postgres.log.walk import MOST_RECORDS, find_relation, walk
from airflow_provider_cdc.sources.postgres.server import pgoutput
from airflow_provider_cdc.sources.postgres.server.pgoutput import RelationMessage, constant_field
from airflow_provider_cdc.sources.postgres.slots.waits import EndMark

# Finds out which columns a tuple of the log has, for a table whose columns were changed since its base copy.
#
# A Relation message has names and types, which may occur again after several changes, but no numbers of columns. So the
# columns are found without them. A tuple has the columns of the base copy that were not dropped yet, in order, and
# after them the first new columns: numbers increase with each new column, and no new column was dropped again.
#
# When a column was dropped is not known. So the number of fields and the columns that no statement has altered, which
# had the same names all the time, tell which columns a tuple has. If they leave more than one possibility, the table is
# refused. The types are compared as well, with those of the base copy and the present ones.


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

    def places(self, found: RelationMessage) -> list[int | None]:
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


_Read = TypeVar("_Read")

_NEW_RUN = "trigger a new run"
_LEAVE_ALONE = f"do not alter copied tables during a run; {_NEW_RUN}"
_REPORT = "report this with the server's version"
_ALWAYS = 2**63 - 1
_FIRST_RELATIONS = 64

_DAMAGE = {
    walk_state.BAD_LENGTH: "a message has an impossible length",
    walk_state.BAD_TUPLE: "a row is malformed",
    walk_state.BAD_COMMIT: "a transaction's commit is not after the previous one, or not at the announced position",
    walk_state.OUT_OF_PLACE: "a message occurs where no message of its kind is allowed",
    walk_state.NO_RELATION: "a row belongs to a table that the log has not described",
}


class LogWalker:
    """Computes the net change of rows from the messages of a slot, which are passed in batches.

    :param slot: the slot's name, for error messages.
    :param initial: transactions whose commit record begins before this position do not count.
    :param stop: transactions whose commit record begins at this position or later do not count.
    :param mark: a message that the run wrote into the log (`end_mark`). The messages of the slot must include it.

    ``state`` is the state of ``walk.walk``. After ``close``, ``change`` has the result.
    """

    def __init__(
        self, slot: str, initial: Lsn, stop: Lsn, tracked: Sequence[TrackedTable], mark: EndMark | None = None
    ) -> None:
        self._slot = slot
        self._tables = [tracked_table.table for tracked_table in tracked]
        self._indexes = {_oid(table): index for index, table in enumerate(self._tables)}
        self._leaves = {
            leaf.oid: (index, leaf)
            for index, table in enumerate(self._tables)
            for leaf in leaves(table)
            if leaf.oid != _oid(table)
        }
        self._orders: Int32s = np.empty(0, np.int32)
        self._constants: Bytes = np.empty(0, np.uint8)
        self._eras = {index: RelationColumns(table) for index, table in enumerate(self._tables) if table.eras}
        self._constant_places = {index: self._lay_out_constants(self._tables[index]) for index in self._eras}
        self._row: Bytes = np.empty(0, np.uint8)
        self._keys_only = {index for index, tracked_table in enumerate(tracked) if tracked_table.keys_only}
        self._columns_read = [{column.name for column in table.as_read.columns} for table in self._tables]
        self._puts_together = any(leaf.order for _, leaf in self._leaves.values()) or any(
            table.selection.columns or table.eras for table in self._tables
        )
        self._names = {table.name: index for index, table in enumerate(self._tables)}
        self._words: Int64s = np.zeros(walk_state.TABLE_WORDS * len(tracked), np.int64)
        self._key_columns = self._lay_out(tracked)
        self._relations: Int64s = np.zeros(2 * _FIRST_RELATIONS, np.int64)
        self._registered = 0
        most = max([0, *(len(table.columns) for table in self._tables), *(era.most for era in self._eras.values())])
        self._places: Int64s = np.zeros(2 * most, np.int64)
        self._new_places: Int64s = np.zeros(2 * most, np.int64)
        self.change = NetChange(np.array([table.keyless for table in self._tables], np.uint8))
        # A slot has one segment.
        self.changes = ChangeLog(tracked, 0, lambda commit, _: str(Lsn(commit)))
        self.state: Int64s = np.zeros(walk_state.STATE_WORDS, np.int64)
        self.state[walk_state.INITIAL] = int(initial)
        self.state[walk_state.STOP] = int(stop)
        self._mark = mark
        self.state[walk_state.MARKED] = int(mark.since) if mark is not None else _ALWAYS

    @property
    def where(self) -> str:
        """A description of the current transaction, for error messages."""
        commit = Lsn(int(self.state[walk_state.COMMIT]))
        if self.state[walk_state.PHASE] == walk_state.BETWEEN:
            return f"{self._slot}, after {commit}"
        return f"{self._slot}, transaction {self.state[walk_state.XID]} that commits at {commit}"

    def run(self, messages: pa.BinaryArray) -> bool:
        """Process a batch of messages.

        :returns: whether the end is reached. After the end, messages do not count.
        :raises ExactnessError: the log has something that makes an exact copy impossible.
        :raises DecodeError: the messages are malformed.
        """
        if messages.null_count:
            raise self._damaged("null instead of a message")
        _, offsets, values = messages.buffers()
        data = bytes_of(values)
        ends: Int32s = bytes_of(offsets).view(np.int32)[messages.offset :][: len(messages) + 1]
        if self._puts_together and len(messages):
            longest = int(np.diff(ends).max()) + len(self._places) + 2 * len(self._constants)
            self._row = np.empty(max(len(self._row), longest), np.uint8)
        self.state[walk_state.AT] = 0
        while True:
            code = self._walk(data, ends)
            if code in (walk_state.MORE, walk_state.DONE):
                return code == walk_state.DONE
            if code == walk_state.NO_ROOM:
                none: Int64s = np.empty(0, np.int64)
                self.change.reserve(MOST_RECORDS, int(self.state[walk_state.WANTED]), none)
                continue
            if code == walk_state.NO_ROOM_FOR_CHANGES:
                self.changes.reserve(int(self.state[walk_state.WANTED]))
                continue
            at = int(self.state[walk_state.AT])
            message = data[int(ends[at]) : int(ends[at + 1])].tobytes()
            if code != walk_state.ODD:
                raise self._error(code, message)
            self._odd(message)
            self.state[walk_state.AT] += 1

    def close(self) -> None:
        """Finish, because there are no more messages.

        :raises DecodeError: the messages end within a transaction.
        :raises LogGone: the mark did not occur.
        """
        if self.state[walk_state.PHASE] != walk_state.BETWEEN:
            raise self._damaged("the log ends within a transaction")
        if self._mark is not None:
            raise LogGone(
                "the log has changed since the tables were read: it no longer contains the mark that the run wrote",
                where=f"replication slot {self._slot}, before {Lsn(int(self.state[walk_state.STOP]))}",
                hint="the server lost a part of its log: the disk or the machine was restored to an earlier state, or "
                f"the server crashed with fsync=off. {_NEW_RUN}",
            )

    def _walk(self, data: Bytes, ends: Int32s) -> int:
        return int(
            walk(
                data, ends, self.state, self._relations, self._orders, self._constants, self._row, self._words,
                self._key_columns, self._places, self._new_places, self.change.arrays, self.changes.arrays,
            )
        )  # fmt: skip

    def _lay_out(self, tracked: Sequence[TrackedTable]) -> Int32s:
        """Fill ``tables`` of the kernel, and return ``key_columns``."""
        key_columns: list[int] = []
        for index, tracked_table in enumerate(tracked):
            names = [column.name for column in tracked_table.table.columns]
            words = self._words[walk_state.TABLE_WORDS * index :]
            words[walk_state.COLUMNS] = len(names)
            words[walk_state.KEYS_AT], words[walk_state.KEYS] = len(key_columns), len(tracked_table.table.key)
            words[walk_state.KEYS_ONLY] = tracked_table.keys_only
            words[walk_state.FORWARD] = tracked_table.forward + (tracked_table.forward and tracked_table.changes)
            words[walk_state.UPPER] = (
                int(Lsn.expect(tracked_table.known_upper())) if tracked_table.table.keyless else _ALWAYS
            )
            key_columns += [names.index(name) for name in tracked_table.table.key]
        return np.array(key_columns, np.int32)

    def _odd(self, message: bytes) -> None:
        """Process a message that the kernel leaves to the caller."""
        kind = message[0]
        if kind == pgoutput.STREAM_ABORT and self.state[walk_state.PHASE] == walk_state.BETWEEN:
            # PostgreSQL 18 sends this message for some transactions that were rolled back, although it has sent no
            # other message of the transaction. If a transaction is larger than logical_decoding_work_mem, the server
            # drops its collected changes, and then treats its savepoints as streamed. No change was sent, so there is
            # nothing to undo. Within an open transaction, this message is rejected as an unknown message.
            if len(message) != pgoutput.STREAM_ABORT_BYTES:
                raise self._damaged(_DAMAGE[walk_state.BAD_LENGTH])
            return
        if kind == pgoutput.MESSAGE:
            if self._mark is not None and self._mark.is_in(self._read(pgoutput.message_of, message)):
                self._mark = None
            return
        if kind not in (pgoutput.RELATION, pgoutput.TRUNCATE):
            raise UnknownEvent(f"unknown message type {chr(kind)!r}", where=self.where, hint=_REPORT)
        if self.state[walk_state.PHASE] != walk_state.OPEN:
            raise self._damaged(_DAMAGE[walk_state.OUT_OF_PLACE])
        if kind == pgoutput.RELATION:
            self._relation(self._read(pgoutput.relation, message))
        else:
            self._truncate(self._read(pgoutput.truncated, message))

    def _relation(self, found: pgoutput.RelationMessage) -> None:
        """Register a relation that is a copied table, or a leaf of a copied table.

        The log describes a relation before its first change, and again after each alteration. The description may be in
        a transaction that does not count.
        """
        index = self._indexes.get(found.oid)
        if index is not None:
            table = self._tables[index]
            if table.details.get("kind") == "p" and not table.details.get("as_root", True):
                raise ConfigurationError(
                    "the publication now publishes the partitioned table as a whole. When the run began, it published "
                    "the partitions",
                    where=f"{table.name} at {self.where}",
                    hint=_LEAVE_ALONE,
                )
            if index in self._eras and found.name == table.name:
                self._check_identity(found, index, str(table.name))
                self._register(found.oid, index | self._carried(found, index))
                return
            self._check(found, index, table.name, table.columns, str(table.name))
        elif found.oid in self._leaves:
            index, leaf = self._leaves[found.oid]
            table = self._tables[index]
            name = TableName(leaf.schema, leaf.name)
            self._check(found, index, name, columns_of(table, leaf), f"{table.name}, partition {name}")
        elif found.name in self._names:
            raise SchemaChanged(
                "another table now has the name of this table", where=f"{found.name} at {self.where}", hint=_LEAVE_ALONE
            )
        self._register(found.oid, walk_state.UNTRACKED if index is None else index | self._order_of(found, index))

    def _order_of(self, found: pgoutput.RelationMessage, index: int) -> int:
        """Return the number to add to a table's index. The number makes the kernel reorder or leave out a relation's
        columns.

        If the number is not 0, ``orders`` has the order of the columns. The values of columns that are not read are
        left out.
        """
        names = [column.name for column in self._tables[index].columns]
        sent = {name: place for place, (name, *_) in enumerate(found.columns)}
        places = [sent[name] if name in self._columns_read[index] else walk_state.NOT_READ for name in names]
        return self._ordered(len(found.columns), places)

    def _ordered(self, fields: int, places: Sequence[int]) -> int:
        if places == [*range(fields)]:
            return 0
        begins = (len(self._orders) + 1) << 32
        self._orders = np.append(self._orders, np.array([fields, *places], np.int32))
        return begins

    def _carried(self, found: pgoutput.RelationMessage, index: int) -> int:
        """Return the number of `_order_of` for a table whose columns were changed since its base copy. The kernel then
        makes rows of the present table."""
        try:
            places = self._eras[index].places(found)
        except UnknownColumns as error:
            table = self._tables[index]
            raise SchemaChanged(str(error), where=f"{table.name} at {self.where}", hint=_LEAVE_ALONE) from None
        constants = self._constant_places[index]
        return self._ordered(
            len(found.columns),
            [constant if place is None else place for place, constant in zip(places, constants, strict=True)],
        )

    def _lay_out_constants(self, table: Table) -> list[int]:
        """Add the constants of a table's new columns to ``constants``. Return what stands for each present column in
        ``orders`` if a tuple does not have the column."""
        places = []
        for one in table.eras[0].fields:
            if one.constant is None:
                places.append(walk_state.NOT_READ)
                continue
            places.append(walk_state.CONSTANT - len(self._constants))
            field: Bytes = np.frombuffer(constant_field(one), np.uint8)
            self._constants = np.append(self._constants, field)
        return places

    def _check(
        self, found: pgoutput.RelationMessage, index: int, name: TableName, columns: Sequence[Column], what: str
    ) -> None:
        """Stop the run if a relation differs from the recorded relation."""
        sent = {name for name, *_ in found.columns}
        # A publication may leave out columns that are not read.
        expected = [
            (column.name, int(column.details["oid"]), int(column.details["typmod"]))
            for column in columns
            if column.name in sent or column.name in self._columns_read[index]
        ]
        if found.name != name:
            change = f"it is now called {found.name}"
        elif list(found.columns) != expected:
            names = {column[0] for column in set(found.columns) ^ set(expected)} or {"their order"}
            change = f"its columns have changed ({', '.join(sorted(names))})"
        else:
            self._check_identity(found, index, what)
            return
        raise SchemaChanged(change, where=f"{what} at {self.where}", hint=_LEAVE_ALONE)

    def _check_identity(self, found: pgoutput.RelationMessage, index: int, name: str) -> None:
        if index in self._keys_only:
            if missing := sorted(set(self._tables[index].key) - found.identifying):
                raise SchemaChanged(
                    "the log does not have the key of old rows: the replica identity of the table lacks "
                    f"{', '.join(missing)}",
                    where=f"{name} at {self.where}",
                    hint="make the key the replica identity of the table and of each of its partitions, then "
                    f"{_NEW_RUN}",
                )
            return
        if found.identity != pgoutput.FULL:
            raise SchemaChanged(
                "the log does not have whole old rows: the replica identity is not FULL",
                where=f"{name} at {self.where}",
                hint=f"ALTER TABLE … REPLICA IDENTITY FULL (the table and each of its partitions), then {_NEW_RUN}",
            )

    def _register(self, oid: int, index: int) -> None:
        if 4 * (self._registered + 1) > len(self._relations):
            grown: Int64s = np.zeros(2 * len(self._relations), np.int64)
            for relation_id, table in self._relations.reshape(-1, 2).tolist():
                if relation_id:
                    _enter(grown, relation_id - 1, table)
            self._relations = grown
        self._registered += _enter(self._relations, oid, index)

    def _truncate(self, oids: Sequence[int]) -> None:
        for oid in oids:
            table = self._table_of(oid)
            if table is not None and self.state[walk_state.COUNTS]:
                raise SchemaChanged(
                    "TRUNCATE of a table that is being copied",
                    where=f"{table.name} at {self.where}",
                    hint=f"do not truncate copied tables during a run; {_NEW_RUN}",
                )

    def _error(self, code: int, message: bytes) -> CdcError:
        if code in _DAMAGE:
            return self._damaged(_DAMAGE[code])
        table = self._table_of(int.from_bytes(message[1:5], "big"))
        assert table is not None
        where = f"{table.name} at {self.where}"
        if code == walk_state.NOT_WHOLE:
            return ImageNotWhole(
                "a change was logged without the whole old row: the replica identity is not FULL",
                where=where,
                hint=f"ALTER TABLE … REPLICA IDENTITY FULL (the table and each of its partitions), then {_NEW_RUN}",
            )
        return SchemaChanged(
            "a row has other columns than the table that is being copied", where=where, hint=_LEAVE_ALONE
        )

    def _table_of(self, oid: int) -> Table | None:
        if oid in self._leaves:
            return self._tables[self._leaves[oid][0]]
        return self._tables[self._indexes[oid]] if oid in self._indexes else None

    def _damaged(self, message: str) -> DecodeError:
        return DecodeError(message, where=self.where, hint=_REPORT)

    def _read(self, parse: Callable[[bytes], _Read], message: bytes) -> _Read:
        """Return ``parse(message)``. If the parser raises an error, add the current transaction to the error."""
        try:
            return parse(message)
        except DecodeError as error:
            raise self._damaged(error.message) from error


def _oid(table: Table) -> int:
    """Return the table's OID, as recorded in its schema."""
    return int(table.columns[0].details["relation"])


@kernel
def _enter(relations: Int64s, oid: int, index: int) -> int:
    """Map an OID to the tracked table ``index``. Return 1 if the OID is new."""
    entry = find_relation(relations, oid)
    added = 1 if relations[entry] == 0 else 0
    relations[entry] = oid + 1
    relations[entry + 1] = index
    return added
