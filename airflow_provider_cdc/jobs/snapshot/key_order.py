"""What the rows themselves say of the chunks they were read in: no key lies in two chunks, or in the wrong one.

Chunks are disjoint because their bounds increase, which the source has checked. This is another check, which shares
nothing with that one: the least and the greatest key that each chunk was found to hold, seen in the arrays that are
written. If a bound means something else where it is read than where it was checked, neighbours overlap.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.errors import CopyMismatch

Extent: TypeAlias = tuple[int, int | str, int | str]
"""A chunk's number, and the least and the greatest value of the key's first column in it: ints or texts, which compare
as the values do."""


class KeyExtents:
    """The extents of the chunks that one task reads.

    :param column: the key's first column; None: its values have no order to go by.
    """

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._found: dict[int, Extent] = {}

    def add(self, chunk: int, rows: pa.RecordBatch) -> None:
        """Take note of rows of a chunk."""
        if self._column is None or not rows.num_rows:
            return
        ends = pc.min_max(_numbers(rows.column(self._column)))
        least, greatest = _comparable(ends["min"]), _comparable(ends["max"])
        if chunk in self._found:
            _, low, high = self._found[chunk]
            least, greatest = min((low, least)), max((high, greatest))
        self._found[chunk] = chunk, least, greatest

    @property
    def found(self) -> list[Extent]:
        return list(self._found.values())


def check_key_order(table: Table, extents: Iterable[Extent]) -> None:
    """Make sure that the keys of each chunk are below those of the next.

    Where the key has further columns, a value of the first one may be in two chunks.

    :param extents: of any of the table's chunks, in any order.
    :raises CopyMismatch: they are not.
    """
    for (before, _, greatest), (after, least, _) in pairwise(sorted(extents)):
        # The values of one column are all of one type.
        disjoint = greatest < least  # type: ignore[operator]
        if disjoint or (greatest == least and before != after and len(table.key) > 1):
            continue
        raise CopyMismatch(
            f"chunks {before} and {after} overlap: {table.key[0]} goes up to {greatest} in the one and begins at "
            f"{least} in the other",
            where=str(table.name),
            hint="nothing was published; report this with the table's definition and the server's version",
        )


def _numbers(values: pa.Array) -> pa.Array:
    """Dates and times as the numbers that they are: Arrow cannot compare them all."""
    if not pa.types.is_temporal(values.type):
        return values
    return values.view(pa.int32() if values.type.bit_width == 32 else pa.int64())


def _comparable(value: pa.Scalar) -> int | str:
    plain = value.as_py()
    if isinstance(plain, Decimal):
        sign, digits, _ = plain.as_tuple()
        number = int("".join(map(str, digits)))
        return -number if sign else number
    if isinstance(plain, str):
        plain = plain.encode()
    return plain.hex() if isinstance(plain, bytes) else int(plain)
