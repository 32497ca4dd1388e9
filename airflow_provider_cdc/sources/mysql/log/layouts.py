"""Layouts of the copied tables and of their parents (through foreign keys), as arrays for the kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s
from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.sources.api.window import TrackedTable
from airflow_provider_cdc.sources.mysql.decode.images import ImageLayout, image_layout
from airflow_provider_cdc.sources.mysql.log.positions.membership import SetArrays, set_arrays
from airflow_provider_cdc.sources.mysql.log.walk_state import (
    COLUMNS,
    COLUMNS_AT,
    FORWARD,
    JSON_COLUMNS,
    KEYS,
    KEYS_AT,
    LOOKED_AT,
    TABLE_WORDS,
    UPPER,
)
from airflow_provider_cdc.sources.mysql.tables.types import Family, column_types


class TableArrays(NamedTuple):
    """Layouts of several tables. ``words`` has an entry for each table (see ``walk_state``), which refers to the other
    arrays by index."""

    words: Int64s
    prefixes: Int32s
    widths: Int32s
    slots: Int32s
    key_prefixes: Int32s


@dataclass(frozen=True)
class Layouts:
    """``tables`` are the copied tables. ``parents`` are the parents whose changes reach copied tables through foreign
    keys. ``keyless`` has one ``uint8`` for each copied table. ``most_keys`` is the largest number of key columns of any
    of these tables."""

    tables: TableArrays
    parents: TableArrays
    keyless: Bytes
    most_keys: int
    sets: SetArrays


def parents_of(tracked: Sequence[TrackedTable]) -> list[TrackedTable]:
    """Return the parents whose cascades to a copied table are not logged; no parent occurs twice.

    The key of each parent consists of all its referenced columns. These columns must not change until all tables that
    the parent's changes reach have been read.
    """
    reached: dict[TableName, list[TrackedTable]] = defaultdict(list)
    parents: dict[TableName, Table] = {}
    for tracked_table in tracked:
        for parent in tracked_table.table.cascades_from:
            reached[parent.name].append(tracked_table)
            tracked_parent = parents.get(parent.name, parent)
            key = tuple(column.name for column in parent.columns if column.name in {*tracked_parent.key, *parent.key})
            parents[parent.name] = replace(parent, key=key)
    return [TrackedTable(-1, parent, _last(reached[name])) for name, parent in parents.items()]


def layouts(tracked: Sequence[TrackedTable], parents: Sequence[TrackedTable], initial: GtidSet) -> Layouts:
    """Return the layouts of ``tracked`` and ``parents``. Set 0 of ``sets`` is ``initial``; the other sets are the
    bounds of tables."""
    sets = [initial]
    return Layouts(
        _arrays(tracked, sets),
        _arrays(parents, sets),
        np.array([tracked_table.table.keyless for tracked_table in tracked], np.uint8),
        max((len(tracked_table.table.key) for tracked_table in [*tracked, *parents]), default=0),
        set_arrays(sets),
    )


def _last(children: Sequence[TrackedTable]) -> GtidSet | None:
    """Return the last of the positions at which the tables were read. None: one of the tables was not read at a
    position."""
    uppers = [GtidSet.expect(child.upper) for child in children if child.upper is not None]
    return reduce(or_, uppers) if len(uppers) == len(children) else None


def _number(sets: list[GtidSet], wanted: GtidSet) -> int:
    """Return the index of the bound ``wanted`` in ``sets``. If the bound is new, append it to ``sets``. The index is
    never 0."""
    if wanted not in sets[1:]:
        sets.append(wanted)
    return sets.index(wanted, 1)


def _arrays(tables: Sequence[TrackedTable], sets: list[GtidSet]) -> TableArrays:
    """Lay out tables, and add their bounds to ``sets``."""
    each = [image_layout(tracked_table.table) for tracked_table in tables]
    words = np.zeros(TABLE_WORDS * len(tables), np.int64)
    columns_at = keys_at = 0
    for index, (tracked_table, layout) in enumerate(zip(tables, each, strict=True)):
        row = words[TABLE_WORDS * index : TABLE_WORDS * (index + 1)]
        row[COLUMNS_AT], row[COLUMNS] = columns_at, len(layout.widths)
        row[KEYS_AT], row[KEYS] = keys_at, layout.keys
        row[JSON_COLUMNS] = sum(column.family is Family.JSON for column in column_types(tracked_table.table))
        row[UPPER] = _number(sets, GtidSet.expect(tracked_table.known_upper())) if tracked_table.bounded else 0
        row[FORWARD] = tracked_table.forward + (tracked_table.forward and tracked_table.changes)
        row[LOOKED_AT] = tracked_table.looked_at
        columns_at += len(layout.widths)
        keys_at += layout.keys
    return TableArrays(
        words,
        _joined([layout.prefixes for layout in each]),
        _joined([layout.widths for layout in each]),
        _joined([layout.slots for layout in each]),
        _joined([_key_prefixes(layout) for layout in each]),
    )


def _key_prefixes(layout: ImageLayout) -> Int32s:
    prefixes: Int32s = np.zeros(layout.keys, np.int32)
    keys = layout.slots >= 0
    prefixes[layout.slots[keys]] = layout.prefixes[keys]
    return prefixes


def _joined(arrays: list[Int32s]) -> Int32s:
    return np.concatenate([np.zeros(0, np.int32), *arrays])
