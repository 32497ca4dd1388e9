"""The memory in which kernels compute net changes. The memory starts small and grows with the number of keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.core.kernels import (
    Bytes,
    Int64s,
)
from airflow_provider_cdc.sources.log.netting import (
    FILLED,
    USED,
    WASTED,
    Net,
    compact,
    last_rows_of,
    list_records,
    rehash,
)

_FIRST_WORDS = 1 << 16
_FIRST_SLOTS = 1 << 12
_USUAL_WORDS = 1 << 26
"""The usual size of the arena after it has grown the first time: 512 MiB of addresses. Addresses take no memory until
they are used."""


class NetChange:
    """The memory of the hash table. It starts small and grows with the number of keys.

    ``arena`` is ``int64``, and ``bytes`` is the same memory as ``uint8``. `netting` describes ``slots`` and ``state``.
    """

    def __init__(self, keyless: Bytes) -> None:
        self.keyless = keyless
        self._memory: Int64s = np.empty(_FIRST_WORDS, np.int64)
        self.arena = self._memory
        self.bytes: Bytes = self.arena.view(np.uint8)
        self.slots: Int64s = np.zeros(_FIRST_SLOTS, np.int64)
        self.state: Int64s = np.zeros(4, np.int64)

    @property
    def arrays(self) -> Net:
        """Return the arrays for kernels. `reserve` replaces them."""
        return Net(self.arena, self.bytes, self.slots, self.state)

    @property
    def used_bytes(self) -> int:
        """The size of the keys and rows in the hash table, in bytes."""
        return 8 * int(self.state[USED])

    def clear(self) -> None:
        """Drop all changes. The memory stays allocated, and the orders of later changes continue from the dropped
        changes."""
        self.slots[:] = 0
        self.state[[USED, WASTED, FILLED]] = 0

    def has_slots(self, records: int) -> bool:
        """Return whether the hash table has enough slots for ``records`` more records."""
        return 2 * (int(self.state[FILLED]) + records) <= len(self.slots)

    def reserve(self, records: int, words: int, marks: Int64s) -> None:
        """Make room for more records. ``marks`` has places of records in the arena, in words. The method updates these
        places, so that they still refer to the same records."""
        compact(self.arena, self.state, self.keyless, marks)
        # Leave half of the arena free, so that the arena need not grow again soon.
        needed = 2 * int(self.state[USED]) + words
        if needed > len(self.arena):
            self._extend(max(needed, 2 * len(self.arena)))
        rehash(self.arrays)
        while 4 * (int(self.state[FILLED]) + records) > len(self.slots):
            self.slots = np.zeros(2 * len(self.slots), np.int64)
            self.state[FILLED] = 0
        if self.state[FILLED] == 0:
            rehash(self.arrays)

    def _extend(self, words: int) -> None:
        if words > len(self._memory):
            try:
                memory: Any = np.empty(max(words, _USUAL_WORDS), np.int64)
            except MemoryError:
                # This system counts reserved addresses as used memory (vm.overcommit_memory=2, ulimit -v), so reserve
                # only the words that are needed now.
                memory = np.empty(words, np.int64)
            memory[: self.state[USED]] = self.arena[: self.state[USED]]
            self._memory = memory
        self.arena = self._memory[:words]
        self.bytes = self.arena.view(np.uint8)

    def records(self) -> tuple[Int64s, Int64s]:
        """Return the records that have an effect, sorted by group, and the groups of these records."""
        none: Int64s = np.empty(0, np.int64)
        record_count = list_records(self.arena, self.state, self.keyless, none, none)
        records: Int64s = np.empty(record_count, np.int64)
        groups: Int64s = np.empty(record_count, np.int64)
        list_records(self.arena, self.state, self.keyless, records, groups)
        by_group = np.argsort(groups, kind="stable")
        return records[by_group], groups[by_group]

    def last_rows(self, records: Int64s) -> Int64s:
        """Return, for each key of ``records``, the record with the last row of this key. Only for tables that are
        rolled forward."""
        rows: Int64s = np.empty(len(records), np.int64)
        last_rows_of(self.arrays, records, rows)
        return rows
