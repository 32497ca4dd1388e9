"""Values that no Arrow type holds, found while rows are read: whether they stop the run is not known yet.

A row that was written after the initial position is not in the copy: the rewind takes it out again. So with the policy
``error`` a reader notes such values, with a placeholder in their stead, and only those in rows that survive the rewind
stop the run (``jobs.survivors``). Not in columns that tell rows apart, where a placeholder would make two rows one:
there they stop the read at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from airflow_provider_cdc.errors import ValueNotRepresentable

MOST = 1000
"""More of them in one batch are no accident of the moment: they stop the read at once."""


@dataclass(frozen=True)
class OddValue:
    """One value that no Arrow type holds: the row of its batch, its column, and the error that it is unless the row
    goes."""

    row: int
    column: str
    error: ValueNotRepresentable


def note(
    odd: list[OddValue] | None,
    column: str,
    rows: np.ndarray[Any, Any],
    error: Callable[[int], ValueNotRepresentable],
) -> bool:
    """Note the odd values of one column of a batch.

    :param odd: where to; None: nowhere.
    :param column: its name.
    :param rows: one byte for each row of the batch, not 0 where the value is odd; one at least is.
    :param error: what the value in a row would be refused with.
    :returns: False if they cannot be noted, so that the first of them has to be raised.
    """
    found = np.flatnonzero(rows)
    if odd is None or len(found) > MOST:
        return False
    odd += [OddValue(row, column, error(row)) for row in map(int, found)]
    return True
