"""Values that no Arrow type holds, found while rows are decoded: whether they stop the run is not known yet.

A row that was written after the initial position is not in the copy: the rewind takes it out again. A row for which the
condition of a part does not hold is not copied at all. So with the policy ``error`` a reader notes such values, with a
placeholder in their stead. Only those in rows that are copied and survive the rewind stop the run (``jobs.selected``,
``jobs.survivors``). In the columns of a key a placeholder would make two rows one: there they stop the read at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import ValueNotRepresentable

MOST = 1000
"""More of them in one batch are no accident of the moment: they stop the read at once."""
_SHOWN = 60
"""Characters of a key's value that a message shows."""

Refusal = Callable[[int], ValueNotRepresentable]
"""What the value in a row would be refused with."""


@dataclass(frozen=True)
class OddValue:
    """One value that no Arrow type holds: the row of its batch, and its column.

    ``refusal`` makes the error that it is unless the row goes. None: the policy says what is published in its stead,
    and the value is noted only because conditions take it for null.
    """

    row: int
    column: str
    refusal: Refusal | None

    @property
    def stops(self) -> bool:
        """Whether it stops the run if its row is published."""
        return self.refusal is not None

    @property
    def error(self) -> ValueNotRepresentable:
        assert self.refusal is not None
        return self.refusal(self.row)


def note(odd: list[OddValue] | None, column: str, rows: np.ndarray[Any, Any], refusal: Refusal | None) -> None:
    """Note the odd values of one column of a batch, or raise the error of the first of them.

    :param odd: where to; None: nowhere.
    :param column: its name.
    :param rows: one byte for each row of the batch, not 0 where the value is odd; one at least is.
    :param refusal: see `OddValue`.
    :raises ValueNotRepresentable: they cannot be noted.
    """
    row_numbers = np.flatnonzero(rows)
    if odd is not None:
        odd += [OddValue(row, column, refusal) for row in map(int, row_numbers)]
    elif refusal is not None:
        raise refusal(int(row_numbers[0]))


def check_noted(table: Table, rows: pa.RecordBatch, odd: Collection[OddValue]) -> None:
    """Make sure that what was noted of a batch that was read may wait until it is known which of its rows are copied.

    :raises ValueNotRepresentable: a value that tells rows apart is among them; or so many are that they are no accident
        of the moment, and no condition leaves rows out.
    """
    # Which rows of a keyless table are copied is known before they are told apart.
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
    """The error of ``value``, which says the key of its row. The rest of a row is nobody's business in a log.

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
    try:
        plain = value.as_py()
    except (OverflowError, ValueError):
        # Python's dates begin with the year 1.
        plain = value.cast(pa.string()).as_py()
    text = f"x'{plain.hex()}'" if isinstance(plain, bytes) else repr(plain) if isinstance(plain, str) else str(plain)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
