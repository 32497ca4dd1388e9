"""Parts: the orders of the snapshot step. A part is a sequence of neighbouring chunks of one table, for one task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.parquet.writer import FILE_BYTES
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.tables.chunk import Chunk
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.core.tables.value_range import ValueRange
from airflow_provider_cdc.errors import CopyMismatch, naming
from airflow_provider_cdc.jobs.runtime.progress import PARTS, PartPiece, log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.sources.api.source import Source

PARTS_PER_SLOT = 4
SMALLEST_PART_BYTES = 8 * 2**20
"""The smallest useful size of a part with its own task. A task for a smaller part would cost more time than another
core saves."""
TABLE_CHUNKS, RUN_CHUNKS = 10_000, 50_000
"""The maximum number of chunks of a table, and of a run. More chunks would cost more time than they save, whatever the
value of `chunk_rows` is."""
_PLANNERS = 4


@dataclass(frozen=True)
class Part:
    """A sequence of neighbouring chunks of one table. ``table`` is an index into the run's tables. ``weight`` is an
    estimate of the bytes to read. The estimate only affects scheduling and progress."""

    number: int
    table: int
    chunks: tuple[Chunk, ...]
    weight: int

    def __str__(self) -> str:
        return f"part {self.number} ({self.chunks[0]} to {self.chunks[-1].number})"

    @property
    def name(self) -> str:
        return f"part-{self.number:06}"

    @property
    def within(self) -> ValueRange | None:
        """The values that the part has, if a keyless table is divided by values."""
        first, last = self.chunks[0].within, self.chunks[-1].within
        return None if first is None or last is None else first.up_to(last)


def piece_of_part(part: Part, tables: Sequence[RunTable]) -> PartPiece:
    """Return the piece of work of a part."""
    expected = sum(chunk.rows for chunk in part.chunks) or tables[part.table].table.rows
    return PartPiece(f"{PARTS}/{part.name}.json", part.weight, expected or 0)


def cut(source: Source, tables: Sequence[RunTable], chunk_rows: int, slots: int) -> list[Part]:
    """Divide tables into parts. Tables that are rolled forward have no parts.

    :param chunk_rows: the approximate number of rows of a chunk.
    :param slots: the number of tasks that run at the same time.
    """
    total = sum(entry.table.rows for entry in tables if entry.is_read)

    def planned(own: Sequence[RunTable]) -> list[list[Chunk]]:
        with source.one_session() as mine:
            return [_planned(mine, entry, _bounded(entry, chunk_rows, total)) for entry in own]

    with ThreadPoolExecutor(_PLANNERS) as planners:
        shares = list(planners.map(planned, [tables[start::_PLANNERS] for start in range(_PLANNERS)]))
    chunks = [shares[index % _PLANNERS][index // _PLANNERS] for index in range(len(tables))]
    return plan_parts(tables, chunks, slots)


def _planned(source: Source, entry: RunTable, chunk_rows: int) -> list[Chunk]:
    if not entry.is_read:
        return []
    with naming(str(entry.table.name)):
        return retry(f"plan {entry.table.name}", lambda: source.plan_chunks(entry.table, chunk_rows))


def _bounded(entry: RunTable, chunk_rows: int, total: int) -> int:
    """Return the number of rows per chunk. With this number, neither the table nor the run (``total`` rows) has too
    many chunks."""
    rows = max(chunk_rows, -(-entry.table.rows // TABLE_CHUNKS), -(-total // RUN_CHUNKS))
    if rows > chunk_rows and entry.table.rows > chunk_rows:
        log(f"plan: {entry.table.name} is read in chunks of {rows:,} rows: {chunk_rows:,} would give too many chunks")
    return rows


def bundle(parts: Sequence[Part], tables: Sequence[RunTable], slots: int) -> list[int]:
    """Return, for each Spark task, how many neighbouring ``parts`` it reads. Only small parts are read together.

    A part that may wait for a lock has its own task, so that no other part waits for the lock. But all ranges of
    values of a table are read by one task, which takes the lock once.
    """
    most = -(-len(parts) // (slots * PARTS_PER_SLOT))
    sizes: list[int] = []
    weight = 0
    before: Part | None = None
    for part in parts:
        weight += part.weight
        alone = any(
            joined_part is None or tables[joined_part.table].consistency == "lock" for joined_part in (before, part)
        )
        same_table = before is not None and before.table == part.table
        in_one_lock = same_table and part.within is not None and tables[part.table].consistency == "lock"
        if not in_one_lock and (alone or weight > SMALLEST_PART_BYTES or sizes[-1] >= most):
            sizes.append(0)
            weight = part.weight
        sizes[-1] += 1
        before = part
    return sizes


def plan_parts(tables: Sequence[RunTable], chunks: Sequence[Sequence[Chunk]], slots: int) -> list[Part]:
    """Group each table's chunks into parts. The largest part is first. If a large part began last, the other cores
    would have to wait for it.

    A table that must be read at one exact position (it has no key, or the log lacks changes) is one part, which one
    session reads, unless several sessions share one exported snapshot (``exported``). If it is divided by values, each
    part has whole ranges, so that a later try may read the other parts at another position (`units`).

    :param chunks: the chunks of each table, in key order.
    :param slots: the number of tasks that run at the same time.
    """
    weights = [_weights(entry, chunk_weight) for entry, chunk_weight in zip(tables, chunks, strict=True)]
    total = sum(sum(chunk_weight) for chunk_weight in weights)
    limit = min(FILE_BYTES, max(SMALLEST_PART_BYTES, total // (slots * PARTS_PER_SLOT)))
    groups: list[tuple[int, int, tuple[Chunk, ...]]] = []
    for index, entry in enumerate(tables):
        if not entry.is_read:
            continue
        by_value = bool(chunks[index]) and chunks[index][0].within is not None
        if entry.table.needs_one_position and entry.consistency != "exported" and not by_value:
            groups.append((sum(weights[index]), index, tuple(chunks[index])))
            continue
        together: list[Chunk] = []
        weight = 0
        for chunk, chunk_weight in zip(chunks[index], weights[index], strict=True):
            inside = chunk.within is not None and chunk.within == together[-1].within if together else False
            if together and not inside and weight + chunk_weight > limit:
                groups.append((weight, index, tuple(together)))
                together, weight = [], 0
            together.append(chunk)
            weight += chunk_weight
        groups.append((weight, index, tuple(together)))
    groups.sort(key=partial(_turn, tables))
    return [Part(number, index, chunk_weight, weight) for number, (weight, index, chunk_weight) in enumerate(groups)]


def _turn(tables: Sequence[RunTable], group: tuple[int, int, tuple[Chunk, ...]]) -> tuple[int, int, float]:
    """Return the place of a part in the order of the reads.

    Tables with unlogged cascades come first, because the run stops if a parent table changes before the read. The parts
    of a table that one task reads under a lock come together, and early, because no other task can help it. Tables
    that count only as a whole come last, and one after the other. So if the run is killed, as little as possible of
    what it has read is of a table that is not finished.
    """
    weight, index, chunks = group
    table = tables[index].table
    first = -1 if table.cascades_from else 0
    if tables[index].consistency == "lock" and chunks[0].within is not None:
        return first, 1 + index, chunks[0].number
    if table.cascades_from:
        return first, 0, -weight
    if tables[index].consistency == "exported" and table.keyless and chunks[0].within is None:
        return 2, index, -weight
    return 1, 0, -weight


def _weights(entry: RunTable, chunks: Sequence[Chunk]) -> list[int]:
    """Return the estimated bytes of each chunk, at least 1."""
    rows = sum(chunk.rows for chunk in chunks)
    if not rows:
        # A table that is rolled forward has no chunks.
        return [max(1, entry.table.bytes // max(1, len(chunks)))] * len(chunks)
    per_row = max(1.0, entry.table.bytes / max(1, entry.table.rows, rows))
    return [max(1, round(chunk.rows * per_row)) for chunk in chunks]


# Checks that each key in the rows that were read is in only one chunk, and in the right chunk.
#
# Chunks are disjoint because their bounds increase, and the source has checked that the bounds increase. The check in
# this module is independent of the source's check. It compares the least and the greatest key of each chunk, taken from
# the arrays that are written. If a bound has another meaning in a read than in the source's check, neighbouring chunks
# overlap.


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
