"""Decides whether a copy can be rolled forward over schema changes, and how its rows become rows of the present table.

The catalog has no history. But a table never uses the number of a column for another column. So the columns of the base
copy and the present columns are matched by their numbers, however often they were renamed, and a column that was
dropped and added again is another column.

Only changes that did not rewrite the table are accepted (the caller compares the files). So a row that no transaction
has changed since the copy is stored as it was, and the catalog has the value of each column that the row lacks: the
missing value, which the statement that added the column computed. Later defaults do not change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.core.tables.table import CarriedField, Column, Era, Evolution, Table
from airflow_provider_cdc.sources.postgres.catalog.types import arrow_schema, base_type

DROPPED = "dropped_at"
"""A key of `Column.details` in an `Era`, for a column that was dropped later, at an unknown position."""

_TEXTS = (25, 1043)
"""text and varchar: the server converts one to the other without a change."""
_WITH_PRECISION = (1083, 1114, 1184)
"""time, timestamp, and timestamp with time zone."""
_NUMERIC = 1700
_NO_LIMIT = 2**31


class NotCarried(Exception):
    """The reason why a table cannot be rolled forward over its schema changes."""


def number_of(column: Column) -> int:
    """Return the number of a column. The table never uses it for another column."""
    return int(column.details["number"])


def evolution(base: Table, now: Table, missing: Mapping[int, str], begins: str) -> Evolution:
    """Return how the rows of a base copy become rows of the present table. The table has the same file.

    :param missing: the missing values of columns, as texts, by the number of the column.
    :param begins: the position of the base, in words.
    :raises NotCarried: the rows cannot be computed outside the server.
    """
    if not base.selection.whole:
        raise NotCarried("only a part of the table is copied (where, columns)")
    for column in (*base.columns, *now.columns):
        if column.details.get("generated"):
            raise NotCarried(f"it has a generated column ({column.name})")
    before = {number_of(column): column for column in base.columns}
    after = {number_of(column): column for column in now.columns}
    last = max(before, default=0)
    fields, said = [], []
    for number, column in after.items():
        was = before.get(number)
        if was is None:
            if number < last:
                raise NotCarried(f"the column {column.name} is not in the record of the copy")
            fields.append(CarriedField(column.name, constant=_constant(column, missing.get(number))))
            said.append(f"ADD {column.name}")
            continue
        said += _changes(base, was, column)
        fields.append(CarriedField(column.name, was.name))
    said += [f"DROP {column.name}" for number, column in before.items() if number not in after]
    if base.key != now.key or base.key_index != now.key_index or not {*base.key} <= {one.was for one in fields}:
        raise NotCarried("its key has changed")
    if not said:
        return Evolution((), now.columns)
    columns = tuple(
        column if number in after else replace(column, details={**column.details, DROPPED: ""})
        for number, column in before.items()
    )
    return Evolution((Era(columns, begins, begins, ", ".join(said), tuple(fields)),), now.columns)


def _constant(column: Column, missing: str | None) -> str | None:
    """Return the value of a new column in earlier rows, as `CarriedField.constant`."""
    if missing is None:
        if not column.nullable:
            raise NotCarried(f"the new column {column.name} is NOT NULL, and the catalog has no value for earlier rows")
        return None
    return missing.encode().hex()


def _changes(base: Table, was: Column, now: Column) -> list[str]:
    """Return the changes of a column, in words."""
    changes = []
    if was.name != now.name:
        changes.append(f"RENAME {was.name} TO {now.name}")
    if was.nullable and not now.nullable:
        raise NotCarried(f"the column {now.name} became NOT NULL")
    if was.nullable != now.nullable:
        changes.append(f"ALTER {now.name} DROP NOT NULL")
    if was.type != now.type:
        _check_type(base, was, now)
        changes.append(f"ALTER {now.name} TYPE {now.type}")
    elif _described(was) != _described(now):
        raise NotCarried(f"the type {now.type} of the column {now.name} was altered")
    if changes and was.name in base.key:
        raise NotCarried(f"the column {was.name} of its key was altered")
    return changes


def _described(column: Column) -> dict[str, str | int | bool]:
    return {name: detail for name, detail in column.details.items() if name != "version"}


def _check_type(base: Table, was: Column, now: Column) -> None:
    """Check that each value of the column is the same value, with the same text, in its present type."""
    described = f"the type of the column {now.name} has changed from {was.type} to {now.type}"
    if {was.details["kind"], now.details["kind"]} != {"base"}:
        raise NotCarried(described)
    (oid, typmod), (oid_now, typmod_now) = base_type(was), base_type(now)
    if (oid in _TEXTS and oid_now in _TEXTS) or (oid == oid_now and oid in _WITH_PRECISION):
        widens = _limit(typmod) <= _limit(typmod_now)
    elif oid == oid_now == _NUMERIC:
        # The lower half of the modifier has the scale.
        widens = min(typmod, typmod_now) >= 0 and (typmod - 4) & 0xFFFF == (typmod_now - 4) & 0xFFFF
        widens = widens and typmod <= typmod_now
    else:
        widens = False
    before, after = (
        arrow_schema(replace(base, columns=(column,), key=(), eras=())).field(0).type for column in (was, now)
    )
    decimals = pa.types.is_decimal(before) and pa.types.is_decimal(after)
    if not widens or (before != after and not decimals):
        raise NotCarried(described)


def _limit(typmod: int) -> int:
    return typmod if typmod >= 0 else _NO_LIMIT
