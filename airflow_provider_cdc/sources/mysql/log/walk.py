"""The kernel that reads binary log events, and its table maps. The kernel handles the frequent events, so that Python
does no work per event.

The kernel follows the transactions, decides by their GTIDs which of them count, keeps track of the table maps, and adds
the rows of the copied tables to the net change (``netting.py``). The kernel leaves rare events to the caller. It
verifies the checksum of such an event and returns ``ODD``, with the event at ``state[AT]``. In a pass that adds no rows
to the net change (``ONLY_LOOKS``), the kernel does not verify the checksums of row events, because the later read of
the rows verifies them. This reduces the CPU time of the pass to a quarter.

Formats: https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int64s,
    inner,
    kernel,
    load8,
    load16,
    load32,
    load64,
    same_bytes,
)
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.log.changes import SegmentChanges
from airflow_provider_cdc.sources.log.netting import Net
from airflow_provider_cdc.sources.mysql.decode.images import expected_table_map
from airflow_provider_cdc.sources.mysql.log.commits import (
    SetArrays,
    commit_time,
    contains,
    find_tsid,
    set_untagged,
    tagged_gtid,
)
from airflow_provider_cdc.sources.mysql.log.dump import crc32
from airflow_provider_cdc.sources.mysql.log.events import TableMap
from airflow_provider_cdc.sources.mysql.log.row_events import (
    KeyRanges,
    TableArrays,
    hides_cascades,
    is_rows,
    keeps_keys,
    net_rows,
)
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    AT,
    BAD_CHECKSUM,
    BAD_GTID,
    BAD_LENGTH,
    BAD_POSITION,
    BEGUN,
    BETWEEN,
    CHANGES,
    CHECKSUM,
    COMMITTED,
    DONE,
    IGNORED,
    MAP_AT,
    MAP_BYTES,
    MAP_NUMBER,
    MAP_PARENT,
    MAP_SERIAL,
    MAP_TABLE,
    MAP_WORDS,
    MORE,
    NUMBER,
    ODD,
    ONLY_LOOKS,
    OPEN,
    OTHER_SHAPE,
    OTHERS_CASCADES,
    OUT_OF_PLACE,
    PHASE,
    POSITION,
    RELIES,
    REPLICA,
    ROW,
    SERIAL,
    SHAPE,
    SOURCE,
    STOP,
    TABLE_WORDS,
    TRACKED,
    TRANSACTIONS,
    UNTRACKED,
    UPPER,
    WRITTEN_HERE,
    XA,
)
from airflow_provider_cdc.sources.mysql.server.log_protocol import (
    APPEND_BLOCK,
    ARTIFICIAL,
    BEGIN_LOAD_QUERY,
    DELETE_FILE,
    END_AT,
    FLAGS_AT,
    GTID,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    IGNORABLE,
    INTVAR,
    KIND_AT,
    LENGTH_AT,
    LOW_HALF,
    MAX_EVENT_BYTES,
    QUERY,
    QUERY_POST_HEADER_BYTES,
    RAND,
    ROWS_QUERY,
    SERVER_AT,
    TABLE_MAP,
    TAGGED_GTID,
    TRANSACTION_CONTEXT,
    USER_VAR,
    VIEW_CHANGE,
    XID,
)

_GTID_BYTES = 25
"""Total size in bytes of the first three fields of a GTID event: flags, UUID, transaction number."""


def _word(text: bytes) -> int:
    return int.from_bytes(text, "little")


_BEGI, _N = _word(b"BEGI"), _word(b"N")
_COMM, _IT = _word(b"COMM"), _word(b"IT")
_SAVEPOIN, _T_AND_SPACE = _word(b"SAVEPOIN"), _word(b"T ")


@inner
def _advance(state: Int64s, length: int) -> None:
    state[AT] += length
    if state[POSITION] >= 0:
        state[POSITION] += length


class Maps(NamedTuple):
    """The TABLE_MAP events seen so far: ``entries`` (see ``walk_state``), and the bodies that the entries point to."""

    entries: Int64s
    bodies: Bytes


@inner
def find_map(maps: Int64s, number: int) -> int:
    """Return the index in ``maps`` of the entry for a table number. If the table number has no entry, return the index
    of the free entry to use."""
    mask = len(maps) // MAP_WORDS - 1
    entry = number & mask
    while maps[entry * MAP_WORDS] != 0 and maps[entry * MAP_WORDS] != number + 1:
        entry = (entry + 1) & mask
    return entry * MAP_WORDS


@inner
def _is_irrelevant(kind: int) -> bool:
    """Return whether events of this type can be skipped. They contain values or files for a statement that follows,
    comments, or bookkeeping of group replication."""
    return kind in (
        INTVAR, RAND, USER_VAR, BEGIN_LOAD_QUERY, APPEND_BLOCK, DELETE_FILE, IGNORABLE, ROWS_QUERY,
        TRANSACTION_CONTEXT, VIEW_CHANGE,
    )  # fmt: skip


@inner
def _is_begin(data: Bytes, text: int, size: int) -> bool:
    return size == 5 and load32(data, text) == _BEGI and load8(data, text + 4) == _N


@inner
def _is_commit(data: Bytes, text: int, size: int) -> bool:
    return size == 6 and load32(data, text) == _COMM and load16(data, text + 4) == _IT


@inner
def _is_savepoint(data: Bytes, text: int, size: int) -> bool:
    return size > 10 and load64(data, text) == _SAVEPOIN and load16(data, text + 8) == _T_AND_SPACE


@kernel
def walk(
    data: Bytes,
    end: int,
    state: Int64s,
    tsid: Bytes,
    sets: SetArrays,
    crc_tables: Bytes,
    maps: Maps,
    tables: TableArrays,
    parents: TableArrays,
    ranges: KeyRanges,
    net: Net,
    changes: SegmentChanges,
) -> int:
    """Process the events in ``data[state[AT]:end]`` as long as they are complete and of a kind handled here.

    :param tsid: ``uint8[TSID_BYTES]``, the source (UUID and tag) of the current transaction.
    :param sets: set 0 is the initial position.
    :param parents: tables whose keys must not change in the transactions up to the bound of the table.
    :returns: one of the codes of ``walk_state``.
    """
    # Take the arrays from the tuples outside the loop, because each such access updates a reference count.
    entries, bodies, tsids = maps.entries, maps.bodies, sets.tsids
    words, parent_words = tables.words, parents.words
    checksum = state[CHECKSUM]
    while True:
        if state[STOP] >= 0 and state[POSITION] >= state[STOP]:
            return DONE if state[POSITION] == state[STOP] else BAD_POSITION
        at = state[AT]
        if end - at < HEADER_BYTES:
            return MORE
        length = load32(data, at + LENGTH_AT)
        if length < HEADER_BYTES + checksum or length > MAX_EVENT_BYTES:
            return BAD_LENGTH
        if length > end - at:
            return MORE
        body = at + HEADER_BYTES
        body_end = at + length - checksum
        kind = load8(data, at + KIND_AT)
        # Do not verify the checksum twice: it was verified at the first row of the event, or the later read of the rows
        # verifies it.
        compared = state[ROW] != 0 or (state[ONLY_LOOKS] and is_rows(kind))
        if checksum and not compared and load32(data, body_end) != crc32(crc_tables, data, at, body_end):
            return BAD_CHECKSUM
        if kind in (HEARTBEAT, HEARTBEAT_V2):  # heartbeats are not in the file
            state[AT] += length
            continue
        in_file = state[POSITION] >= 0 and not load16(data, at + FLAGS_AT) & ARTIFICIAL
        if in_file and load32(data, at + END_AT) != (state[POSITION] + length) & LOW_HALF:
            return BAD_POSITION

        phase = state[PHASE]
        if kind in (GTID, TAGGED_GTID):
            if phase != BETWEEN or state[POSITION] < 0:
                return OUT_OF_PLACE
            if kind == GTID:
                if body + _GTID_BYTES > body_end:
                    return BAD_GTID
                set_untagged(tsid, data, body + 1)
                number = load64(data, body + 17)
            else:
                number = tagged_gtid(data, body, body_end, tsid)
            if number < 1:
                return BAD_GTID
            source = find_tsid(tsids, tsid, state[SOURCE])
            ignored = contains(sets, 0, source, number)
            state[SOURCE] = source
            state[NUMBER] = number
            if state[CHANGES]:
                state[COMMITTED] = commit_time(data, body, body_end, kind, state[REPLICA] != 0)
            state[IGNORED] = 1 if ignored else 0
            if state[REPLICA] and not ignored and load32(data, at + SERVER_AT) == state[REPLICA]:
                return WRITTEN_HERE
            state[TRANSACTIONS] += 0 if ignored else 1
            state[SERIAL] += 1
            state[TRACKED] = 0
            state[XA] = -1
            state[PHASE] = BEGUN
        elif kind == QUERY:
            if body + QUERY_POST_HEADER_BYTES > body_end:
                return BAD_LENGTH
            text = body + QUERY_POST_HEADER_BYTES + 1 + load8(data, body + 8) + load16(data, body + 11)
            size = body_end - text
            if size < 0:
                return BAD_LENGTH
            if _is_begin(data, text, size):
                if phase != BEGUN:
                    return OUT_OF_PLACE
                state[PHASE] = OPEN
            elif _is_commit(data, text, size):
                if phase != OPEN:
                    return OUT_OF_PLACE
                state[PHASE] = BETWEEN
            elif phase < OPEN or not _is_savepoint(data, text, size):
                return ODD
        elif kind == XID:
            if phase != OPEN:
                return OUT_OF_PLACE
            state[PHASE] = BETWEEN
        elif kind == TABLE_MAP or is_rows(kind):
            if phase < OPEN:
                return OUT_OF_PLACE
            if not state[IGNORED] or state[XA] >= 0:
                if body + 8 > body_end:
                    return BAD_LENGTH
                entry = find_map(entries, load32(data, body) | load16(data, body + 4) << 32)
                if kind == TABLE_MAP:
                    if (
                        entries[entry] == 0
                        or entries[entry + MAP_BYTES] != body_end - body
                        or not same_bytes(data, body, bodies, entries[entry + MAP_AT], body_end - body)
                    ):
                        return ODD
                    entries[entry + MAP_SERIAL] = state[SERIAL]
                else:
                    table = entries[entry + MAP_TABLE]
                    if entries[entry] == 0 or entries[entry + MAP_SERIAL] != state[SERIAL]:
                        return OUT_OF_PLACE
                    parent = entries[entry + MAP_PARENT]
                    if table == OTHER_SHAPE or parent == OTHER_SHAPE:
                        return SHAPE
                    if state[RELIES] and state[ROW] == 0 and hides_cascades(data, body, kind):
                        return OTHERS_CASCADES
                    if parent >= 0 and state[ROW] == 0:
                        upper = parent_words[parent * TABLE_WORDS + UPPER]
                        # Whether a transaction that was prepared up to the bound counts is not known yet. A transaction
                        # that was prepared after the bound does not count, because it commits even later.
                        if upper == 0 or contains(sets, upper, state[SOURCE], state[NUMBER]):
                            code = keeps_keys(data, kind, body_end, state, parent, parents, ranges)
                            if code != MORE:
                                return code
                    if table >= 0 and state[XA] < 0:
                        upper = words[table * TABLE_WORDS + UPPER]
                        if upper and not contains(sets, upper, state[SOURCE], state[NUMBER]):
                            table = UNTRACKED
                    if table >= 0:
                        code = net_rows(data, kind, body_end, state, tsid, table, tables, ranges, net, changes)
                        if code != MORE:
                            return code
        elif not _is_irrelevant(kind):
            return ODD
        _advance(state, length)


# The TABLE_MAP events of one log file. The kernel uses these events to find the table of a row event.


@kernel
def _entry(maps: Int64s, number: int) -> int:
    return find_map(maps, number)


class _Shapes:
    """The column types and metadata that the TABLE_MAP events of some tables must have."""

    def __init__(self, tables: Sequence[TrackedTable]) -> None:
        self._indexes = {tracked_table.table.name: index for index, tracked_table in enumerate(tables)}
        self._expected = [expected_table_map(tracked_table.table) for tracked_table in tables]

    def find(self, table_map: TableMap) -> int:
        """Return the index of the table that ``table_map`` declares, ``UNTRACKED`` or ``OTHER_SHAPE``."""
        index = self._indexes.get(table_map.name, UNTRACKED)
        if index >= 0 and (table_map.types, table_map.metadata) != self._expected[index]:
            return OTHER_SHAPE
        return index


class TableMaps:
    """Registry of table maps. ``entries`` and ``bodies`` are the arrays of `Maps`; when they must grow, new
    arrays replace them."""

    def __init__(self, tracked: Sequence[TrackedTable], parents: Sequence[TrackedTable]) -> None:
        self._tables = _Shapes(tracked)
        self._parents = _Shapes(parents)
        self._names: dict[int, TableName] = {}
        self._used = 0
        self.entries: Int64s = np.zeros(256 * MAP_WORDS, np.int64)
        self.bodies: Bytes = np.empty(1 << 16, np.uint8)

    @property
    def arrays(self) -> Maps:
        """The current arrays, for `walk`. `register` may replace them."""
        return Maps(self.entries, self.bodies)

    def register(self, table_map: TableMap, body: bytes, serial: int) -> None:
        """Register a table map from the transaction with the number ``serial``. It replaces an earlier table map with
        the same table number."""
        is_registered = table_map.number in self._names
        self._names[table_map.number] = table_map.name
        if not is_registered and 2 * len(self._names) > len(self.entries) // MAP_WORDS:
            self._grow_entries()
        entry = _entry(self.entries, table_map.number)
        at = int(self.entries[entry + MAP_AT])
        if not is_registered or len(body) > self.entries[entry + MAP_BYTES]:
            at = self._room_for(len(body))
        self.bodies[at : at + len(body)] = np.frombuffer(body, np.uint8)
        self.entries[entry + MAP_NUMBER] = table_map.number + 1
        self.entries[entry + MAP_TABLE] = self._tables.find(table_map)
        self.entries[entry + MAP_PARENT] = self._parents.find(table_map)
        self.entries[entry + MAP_AT] = at
        self.entries[entry + MAP_BYTES] = len(body)
        self.entries[entry + MAP_SERIAL] = serial

    def name(self, number: int) -> TableName:
        """Return the table that has this number."""
        return self._names[number]

    def _room_for(self, size: int) -> int:
        at = self._used
        self._used += size
        if self._used > len(self.bodies):
            bodies: Bytes = np.empty(2 * self._used, np.uint8)
            bodies[:at] = self.bodies[:at]
            self.bodies = bodies
        return at

    def _grow_entries(self) -> None:
        old = self.entries.reshape(-1, MAP_WORDS)
        self.entries = np.zeros(2 * len(self.entries), np.int64)
        for row in old[old[:, MAP_NUMBER] != 0]:
            entry = _entry(self.entries, int(row[MAP_NUMBER]) - 1)
            self.entries[entry : entry + MAP_WORDS] = row
