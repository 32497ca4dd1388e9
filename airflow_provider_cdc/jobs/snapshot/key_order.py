"""Checks that each key in the rows that were read is in only one chunk, and in the right chunk.

Chunks are disjoint because their bounds increase, and the source has checked that the bounds increase. The check in
this module is independent of the source's check. It compares the least and the greatest key of each chunk, taken from
the arrays that are written. If a bound has another meaning in a read than in the source's check, neighbouring chunks
overlap.
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
"""A chunk's number, and the least and the greatest value of the first key column in the chunk. The values are converted
to integers or texts that sort in the same order."""


class KeyExtents:
    """The extents of the chunks that one task reads.

    :param column: the first key column; None: the values of this column cannot be compared here.
    """

    def __init__(self, column: str | None) -> None:
        self._column = column
        self._found: dict[int, Extent] = {}

    def add(self, chunk: int, rows: pa.RecordBatch) -> None:
        """Extend the extent of a chunk by these rows."""
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
    """Check that the keys of each chunk are below the keys of the next chunk.

    If the key has several columns, two chunks may share a value of the first key column.

    :param extents: extents of some of the table's chunks, in any order.
    :raises CopyMismatch: two chunks overlap.
    """
    for (before, _, greatest), (after, least, _) in pairwise(sorted(extents)):
        # All values of one column have the same type.
        disjoint = greatest < least  # type: ignore[operator]
        if disjoint or (greatest == least and before != after and len(table.key) > 1):
            continue
        raise CopyMismatch(
            f"chunks {before} and {after} overlap: in chunk {before}, {table.key[0]} goes up to {greatest}; in chunk "
            f"{after}, {table.key[0]} begins at {least}",
            where=str(table.name),
            hint="nothing was published; report this with the table's definition and the server's version",
        )


def _numbers(values: pa.Array) -> pa.Array:
    """Return dates and times as their integers, because Arrow cannot compare all of these types."""
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
