"""Records the values that no Arrow type holds, while rows are decoded. During decoding, it is not yet known whether
these values stop the run.

A row that was written after the initial position is not in the copy: the rewind removes it. A row that does not fulfil
the table's condition is not copied either. So with the policy ``error``, a reader notes such values, and replaces them
by a placeholder. Only values in rows that are copied and survive the rewind stop the run
(``jobs.changes.filter_images``, ``jobs.reads``). In key columns, a placeholder could make two
rows equal, so such a value in a key column stops the read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.tables.published import plain_value
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ValueNotRepresentable

MOST = 1000
"""The maximum number of values that no Arrow type holds, for each column of a batch. If there are more such values,
they are not a temporary accident, so the read stops at once."""
_SHOWN = 60
"""The maximum number of characters of a key's value in a message."""

Refusal = Callable[[int], ValueNotRepresentable]
"""A function that returns the error for the value in the row with the given number."""


@dataclass(frozen=True)
class OddValue:
    """One value that no Arrow type holds: the number of its row in the batch, and its column.

    ``refusal`` creates the error that is raised if the row stays in the copy. If ``refusal`` is None, the policy
    publishes another value instead. Such a value is noted only because conditions treat it as null.
    """

    row: int
    column: str
    refusal: Refusal | None

    @property
    def stops(self) -> bool:
        """Whether the value stops the run if its row is published."""
        return self.refusal is not None

    @property
    def error(self) -> ValueNotRepresentable:
        assert self.refusal is not None
        return self.refusal(self.row)


def note(odd: list[OddValue] | None, column: str, rows: np.ndarray[Any, Any], refusal: Refusal | None) -> None:
    """Note the odd values of one column of a batch, or raise the error of the first odd value.

    :param odd: the list to which the odd values are added. None: raise the error of the first odd value.
    :param column: the name of the column.
    :param rows: one byte for each row of the batch. The byte is not 0 if the value in this row is odd. At least one
        value is odd.
    :param refusal: see `OddValue`.
    :raises ValueNotRepresentable: ``odd`` is None.
    """
    row_numbers = np.flatnonzero(rows)
    if odd is not None:
        odd += [OddValue(row, column, refusal) for row in map(int, row_numbers)]
    elif refusal is not None:
        raise refusal(int(row_numbers[0]))


def check_noted(table: Table, rows: pa.RecordBatch, odd: Collection[OddValue]) -> None:
    """Raise an error if noted values of a batch must stop the read at once, before it is known which rows are copied.

    :raises ValueNotRepresentable: a noted value identifies rows. Or a column has more than `MOST` noted values, and the
        table has no condition that could exclude rows.
    """
    # In a keyless table with a condition, values identify a row only after the condition has selected the row.
    by_condition = table.selection.where is not None
    of_column: dict[str, list[OddValue]] = {}
    for value in odd:
        if value.stops:
            of_column.setdefault(value.column, []).append(value)
    for column, values in of_column.items():
        apart = column in table.key or (table.keyless and not by_condition)
        if apart or (len(values) > MOST and not by_condition):
            raise naming_key(table, rows, odd, values[0])


def naming_key(table: Table, rows: pa.RecordBatch, odd: Collection[OddValue], value: OddValue) -> ValueNotRepresentable:
    """Return the error of ``value``. The error names the key of the row, but no other value of the row, because other
    values must not appear in a log.

    :param rows: the batch, with the columns of the key.
    :param odd: all odd values of the batch.
    """
    error = value.error
    placeholders = {odd_value.column for odd_value in odd if odd_value.row == value.row}
    names = [name for name in table.key if name not in placeholders]
    if names:
        shown = " and ".join(f"{name} = {_shown(rows.column(name)[value.row])}" for name in names)
        error.message = f"{error.message}; the row is the one where {shown}"
    return error


def _shown(value: pa.Scalar) -> str:
    plain = plain_value(value)
    text = f"x'{plain.hex()}'" if isinstance(plain, bytes) else repr(plain) if isinstance(plain, str) else str(plain)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
