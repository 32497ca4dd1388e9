"""The copied tables, and the parents that they depend on, as the kernels want them: all their layouts in a few
arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.kernel import Bytes, Int32s, Int64s
from airflow_provider_cdc.core.table import Table, TableName
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


class TableArrays(NamedTuple):
    """Tables as kernels take them: ``words`` of each (``walk_state``), and the arrays that they point into."""

    words: Int64s
    prefixes: Int32s
    widths: Int32s
    slots: Int32s
    key_prefixes: Int32s


@dataclass(frozen=True)
class Layouts:
    """``tables`` are the copied ones, ``parents`` those that `parents_of` gives, in its order; ``keyless`` is
    ``uint8``, one for each copied table; ``most_keys``, of any of them."""

    tables: TableArrays
    parents: TableArrays
    keyless: Bytes
    most_keys: int
    sets: SetArrays


def parents_of(tracked: Sequence[TrackedTable]) -> list[Table]:
    """The tables whose changes reach one of ``tracked`` unlogged, each once; its key are all columns referred to."""
    found: dict[TableName, Table] = {}
    for one in tracked:
        for parent in one.table.cascades_from:
            known = found.get(parent.name, parent)
            key = tuple(column.name for column in parent.columns if column.name in {*known.key, *parent.key})
            found[parent.name] = replace(parent, key=key)
    return list(found.values())


def layouts(tracked: Sequence[TrackedTable], initial: GtidSet) -> Layouts:
    """Lay out ``tracked`` and its parents; set 0 of ``sets`` is ``initial``, the others are bounds of tables."""
    sets = [initial]
    tables = [one.table for one in tracked]
    parents = parents_of(tracked)
    uppers = [_number(sets, GtidSet.parse(one.upper)) if one.bounded else 0 for one in tracked]
    bounds = [_number(sets, bound) if (bound := _bound(parent.name, tracked)) is not None else 0 for parent in parents]
    return Layouts(
        _arrays(tables, uppers),
        _arrays(parents, bounds),
        np.array([table.keyless for table in tables], np.uint8),
        max((len(table.key) for table in [*tables, *parents]), default=0),
        set_arrays(sets),
    )


def _bound(parent: TableName, tracked: Sequence[TrackedTable]) -> GtidSet | None:
    """The transactions in which the parent must not change: those before some child of it was read; None: all."""
    children = [one for one in tracked if any(own.name == parent for own in one.table.cascades_from)]
    if not all(child.bounded for child in children):
        return None
    return reduce(or_, (GtidSet.parse(child.upper) for child in children))


def _number(sets: list[GtidSet], wanted: GtidSet) -> int:
    """The number of a bound among ``sets``, to which it is added; never 0."""
    if wanted not in sets[1:]:
        sets.append(wanted)
    return sets.index(wanted, 1)


def _arrays(tables: Sequence[Table], uppers: Sequence[int]) -> TableArrays:
    each = [image_layout(table) for table in tables]
    words = np.zeros(TABLE_WORDS * len(tables), np.int64)
    columns_at = keys_at = 0
    for index, (table, layout) in enumerate(zip(tables, each, strict=True)):
        row = words[TABLE_WORDS * index : TABLE_WORDS * (index + 1)]
        row[COLUMNS_AT], row[COLUMNS] = columns_at, len(layout.widths)
        row[KEYS_AT], row[KEYS] = keys_at, layout.keys
        row[JSON_COLUMNS] = sum(column.family is Family.JSON for column in column_types(table))
        row[UPPER] = uppers[index]
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
