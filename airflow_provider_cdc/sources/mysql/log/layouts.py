"""The copied tables as the kernel in ``walk.py`` wants them: all their layouts in a few arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.kernel import Bytes, Int32s, Int64s
from airflow_provider_cdc.sources.mysql.decode.images import ImageLayout, image_layout
from airflow_provider_cdc.sources.mysql.log.membership import SetArrays, set_arrays
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    COLUMNS,
    COLUMNS_AT,
    JSON_COLUMNS,
    KEYS,
    KEYS_AT,
    TABLE_WORDS,
    UPPER,
)
from airflow_provider_cdc.sources.mysql.types import Family, column_types
from airflow_provider_cdc.sources.window import TrackedTable


@dataclass(frozen=True)
class Layouts:
    """``tables`` and the arrays it points into, as ``walk`` takes them; ``keyless`` is ``uint8``, one for each
    table."""

    tables: Int64s
    prefixes: Int32s
    widths: Int32s
    slots: Int32s
    key_prefixes: Int32s
    keyless: Bytes
    most_keys: int
    sets: SetArrays


def layouts(tracked: Sequence[TrackedTable], initial: GtidSet) -> Layouts:
    """Lay out ``tracked``; set 0 of ``sets`` is ``initial``, the others are the bounds of keyless tables."""
    each = [image_layout(one.table) for one in tracked]
    words = np.zeros(TABLE_WORDS * len(tracked), np.int64)
    sets = [initial]
    columns_at = keys_at = 0
    for index, (one, layout) in enumerate(zip(tracked, each, strict=True)):
        row = words[TABLE_WORDS * index : TABLE_WORDS * (index + 1)]
        row[COLUMNS_AT], row[COLUMNS] = columns_at, len(layout.widths)
        row[KEYS_AT], row[KEYS] = keys_at, layout.keys
        row[JSON_COLUMNS] = sum(column.family is Family.JSON for column in column_types(one.table))
        columns_at += len(layout.widths)
        keys_at += layout.keys
        if one.table.keyless:
            upper = GtidSet.parse(one.upper)
            if upper not in sets[1:]:
                sets.append(upper)
            row[UPPER] = sets.index(upper, 1)
    return Layouts(
        words,
        _joined([layout.prefixes for layout in each]),
        _joined([layout.widths for layout in each]),
        _joined([layout.slots for layout in each]),
        _joined([_key_prefixes(layout) for layout in each]),
        np.array([one.table.keyless for one in tracked], np.uint8),
        max((layout.keys for layout in each), default=0),
        set_arrays(sets),
    )


def _key_prefixes(layout: ImageLayout) -> Int32s:
    prefixes: Int32s = np.zeros(layout.keys, np.int32)
    keys = layout.slots >= 0
    prefixes[layout.slots[keys]] = layout.prefixes[keys]
    return prefixes


def _joined(arrays: list[Int32s]) -> Int32s:
    return np.concatenate([np.zeros(0, np.int32), *arrays])
