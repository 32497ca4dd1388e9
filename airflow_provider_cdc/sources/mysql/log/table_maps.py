"""The TABLE_MAP events of one log file. The kernel uses these events to find the table of a row event."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from airflow_provider_cdc.core.kernels.compile import Bytes, Int64s, kernel
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.mysql.decode.images import expected_table_map
from airflow_provider_cdc.sources.mysql.log.events import TableMap
from airflow_provider_cdc.sources.mysql.log.walk import Maps, find_map
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    MAP_AT,
    MAP_BYTES,
    MAP_NUMBER,
    MAP_PARENT,
    MAP_SERIAL,
    MAP_TABLE,
    MAP_WORDS,
    OTHER_SHAPE,
    UNTRACKED,
)


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
    """Registry of table maps. ``entries`` and ``bodies`` are the arrays of ``walk.Maps``; when they must grow, new
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
        """The current arrays, for ``walk.walk``. `register` may replace them."""
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
