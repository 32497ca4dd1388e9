"""Compares the rows of a table on two sides: by digests first, then by the keys of the buckets that differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from airflow_provider_cdc.core.digest.digest import Digest, UInt64s, row_hashes
from airflow_provider_cdc.core.kernels import Int64s, kernel
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.published import plain_value
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.verify.request import Difference
from airflow_provider_cdc.jobs.verify.rows import RangeRows, RowsToRead

# Digests of the rows of a table, by bucket: a bucket has the keys whose hash has the same last bits.
#
# If all buckets of two tables have equal digests, the tables have the same rows. Otherwise, the differing buckets show
# where to search for the differing rows. If they have too many rows to search, their rows are divided again, by the
# next bits of the hash.


# Kernels that sum the hashes of rows by bucket. `core.digest.digest` defines the hash.


_1 = np.uint64(1)


@kernel
def add(buckets: Int64s, low: UInt64s, high: UInt64s, counts: Int64s, lows: UInt64s, highs: UInt64s) -> None:
    """Add the hashes ``low`` + 2**64 ``high`` of rows to the sums of their buckets, modulo 2**128."""
    for row in range(len(buckets)):
        bucket = buckets[row]
        counts[bucket] += 1
        total = lows[bucket] + low[row]
        highs[bucket] += high[row]
        if total < low[row]:
            highs[bucket] += _1
        lows[bucket] = total


@kernel
def add_sums(lows: UInt64s, highs: UInt64s, low: UInt64s, high: UInt64s) -> None:
    """Add the sums ``low`` + 2**64 ``high`` to the sums of the same buckets, modulo 2**128."""
    for bucket in range(len(lows)):
        total = lows[bucket] + low[bucket]
        highs[bucket] += high[bucket]
        if total < low[bucket]:
            highs[bucket] += _1
        lows[bucket] = total


BoolArray = npt.NDArray[np.bool_]
_BITS = 12
BUCKETS = 1 << _BITS


@dataclass(frozen=True)
class BucketPlaces:
    """The rows whose bucket at each level is one of the given buckets. Without levels: all rows."""

    levels: tuple[tuple[int, ...], ...] = ()

    def mask(self, hashes: UInt64s) -> BoolArray:
        """Return which rows are in these places, from the hashes of their keys."""
        found = np.ones(len(hashes), np.bool_)
        for level, buckets in enumerate(self.levels):
            found &= np.isin(buckets_of(hashes, level), buckets)
        return found

    def divided(self, buckets: Sequence[int]) -> BucketPlaces:
        """Return the rows of these places in some buckets of the next level."""
        return BucketPlaces((*self.levels, tuple(buckets)))


ALL = BucketPlaces()


def _zeros() -> UInt64s:
    return np.zeros(BUCKETS, np.uint64)


@dataclass
class BucketDigests:
    """The number of rows and the sum of their hashes, for each bucket. ``left_out`` counts the rows that were left out
    because their keys were touched."""

    counts: Int64s = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    lows: UInt64s = field(default_factory=_zeros)
    highs: UInt64s = field(default_factory=_zeros)
    left_out: int = 0

    def add(self, rows: pa.RecordBatch, key: Sequence[str], places: BucketPlaces = ALL) -> None:
        """Add the rows that are in ``places``, by their buckets of the next level.

        :param key: the columns of the key; empty: the table has no key.
        """
        if not rows.num_rows:
            return
        low, high = row_hashes(rows)
        keys = key_hashes(rows, key, low)
        if places.levels:
            wanted = places.mask(keys)
            low, high, keys = low[wanted], high[wanted], keys[wanted]
        buckets = buckets_of(keys, len(places.levels))
        add(buckets, low, high, self.counts, self.lows, self.highs)

    def merge(self, other: BucketDigests) -> None:
        """Add the rows of ``other``."""
        self.counts += other.counts
        add_sums(self.lows, self.highs, other.lows, other.highs)
        self.left_out += other.left_out

    def differing(self, other: BucketDigests) -> list[int]:
        """Return the buckets whose rows differ."""
        differ = (self.counts != other.counts) | (self.lows != other.lows) | (self.highs != other.highs)
        return [int(bucket) for bucket in np.flatnonzero(differ)]

    @property
    def total(self) -> Digest:
        """The digest of all rows."""
        sums = (int(low) | int(high) << 64 for low, high in zip(self.lows, self.highs, strict=True))
        return Digest(int(self.counts.sum()), sum(sums) % (1 << 128))


def key_hashes(rows: pa.RecordBatch, key: Sequence[str], low: UInt64s) -> UInt64s:
    """Return the hash of the key of each row.

    :param key: the columns of the key. If the table has no key, the whole row is its key.
    :param low: the low 64 bits of the hash of each row.
    """
    return row_hashes(rows.select(list(key)))[0] if key else low


def buckets_of(hashes: UInt64s, level: int) -> Int64s:
    """Return the bucket of each key at a level, from the hashes of the keys."""
    return (hashes >> np.uint64(_BITS * level) & np.uint64(BUCKETS - 1)).astype(np.int64)


TASKS_PER_SLOT = 4
SEARCHED_ROWS = 500_000
"""The number of rows of differing buckets that are searched for differing keys. The driver holds their hashes."""
_SHOWN_ROWS = 3
_SHOWN_CHARACTERS = 500

Rows = Iterable[tuple[pa.RecordBatch, int]]


@dataclass(frozen=True)
class Side:
    """The rows of a table on one side: in files, or as a stream that only the driver can read."""

    reading: RowsToRead
    pieces: tuple[RangeRows, ...] = ()
    stream: Callable[[], Iterable[pa.RecordBatch]] | None = None


@dataclass(frozen=True)
class Comparison:
    """What differs. ``rows`` and ``digests`` are those of both sides."""

    rows: tuple[int, int]
    digests: tuple[str, str]
    rows_left_out: tuple[int, int]
    differences: tuple[Difference, ...]
    keys_differing: int
    parts_unsearched: int


class _Work(Protocol):
    """Work on the rows of one side, which is sent to executors."""

    reading: RowsToRead

    def of(self, rows: Rows) -> Any: ...


@dataclass(frozen=True)
class _OnFiles:
    work: _Work

    def __call__(self, pieces: tuple[RangeRows, ...]) -> Any:
        return self.work.of(self.work.reading.pieces(pieces))


@dataclass(frozen=True)
class _Digest:
    reading: RowsToRead
    places: BucketPlaces = ALL

    def of(self, rows: Rows) -> BucketDigests:
        digests = BucketDigests()
        for batch, left_out in rows:
            digests.add(batch, self.reading.key, self.places)
            digests.left_out += left_out
        return digests


@dataclass(frozen=True)
class _Hashes:
    """Returns the keys and the hashes of the rows in some places."""

    reading: RowsToRead
    places: BucketPlaces

    def of(self, rows: Rows) -> list[tuple[bytes, int, int]]:
        found: list[tuple[bytes, int, int]] = []
        key = self.reading.key or tuple(self.reading.schema.names)
        for batch, _ in rows:
            low, high = row_hashes(batch)
            wanted = np.flatnonzero(self.places.mask(key_hashes(batch, self.reading.key, low)))
            if len(wanted):
                keys = row_bytes.encode(batch.take(pa.array(wanted)), key).to_pylist()
                found += zip(keys, low[wanted].tolist(), high[wanted].tolist(), strict=True)
        return found


@dataclass(frozen=True)
class _Fetch:
    """Returns the rows with some keys: their number, and the first of them as text."""

    reading: RowsToRead
    keys: pa.BinaryArray

    def of(self, rows: Rows) -> dict[bytes, tuple[int, list[dict[str, str | None]]]]:
        found: dict[bytes, tuple[int, list[dict[str, str | None]]]] = {}
        key = self.reading.key or tuple(self.reading.schema.names)
        for batch, _ in rows:
            keys = row_bytes.encode(batch, key)
            wanted = pc.is_in(keys, value_set=self.keys)
            rows_wanted = batch.filter(wanted)
            for at, own in enumerate(keys.filter(wanted).to_pylist()):
                count, shown = found.get(own, (0, []))
                if len(shown) < _SHOWN_ROWS:
                    shown.append({name: _text(rows_wanted[name][at]) for name in batch.schema.names})
                found[own] = count + 1, shown
        return found


def _digests(spark: SparkSession, side: Side, places: BucketPlaces, done: Callable[[], None]) -> BucketDigests:
    """Return the digests of the rows of one side that are in ``places``."""
    total = BucketDigests()
    for one in _over(spark, f"digest: {side.reading.label}", side, _Digest(side.reading, places), done):
        total.merge(one)
    return total


def digest_of(spark: SparkSession, side: Side, done: Callable[[], None]) -> Digest:
    """Return the digest of all rows of one side."""
    return _digests(spark, side, ALL, done).total


def compare(
    spark: SparkSession, left: Side, right: Side, shown: int, done: Callable[[], None] = lambda: None
) -> Comparison:
    """Compare all rows of both sides.

    :param shown: the greatest number of differing keys to name.
    :param done: is called from time to time.
    """
    sides = (left, right)
    digests = tuple(_digests(spark, side, ALL, done) for side in sides)
    differing = digests[0].differing(digests[1])
    searched, unsearched = _searched(differing, *digests)
    places = ALL.divided(searched)
    if unsearched:
        # Among so many rows, few may differ: divide these rows again.
        places = ALL.divided(differing)
        finer = tuple(_digests(spark, side, places, done) for side in sides)
        searched, unsearched = _searched(finer[0].differing(finer[1]), *finer)
        places = places.divided(searched)
    hashes = [_hashes(spark, side, places, done) for side in sides] if searched else [{}, {}]
    keys = sorted(key for key in hashes[0].keys() | hashes[1].keys() if hashes[0].get(key) != hashes[1].get(key))
    return Comparison(
        rows=(digests[0].total.rows, digests[1].total.rows),
        digests=(digests[0].total.hex, digests[1].total.hex),
        rows_left_out=(digests[0].left_out, digests[1].left_out),
        differences=tuple(_named(spark, sides, keys[:shown], done)),
        keys_differing=len(keys),
        parts_unsearched=unsearched,
    )


def _searched(differing: Sequence[int], one: BucketDigests, other: BucketDigests) -> tuple[tuple[int, ...], int]:
    """Return the buckets to search, and the number of the other differing buckets."""
    rows = 0
    searched: list[int] = []
    for bucket in differing:
        rows += int(one.counts[bucket] + other.counts[bucket])
        if searched and rows > SEARCHED_ROWS:
            break
        searched.append(bucket)
    return tuple(searched), len(differing) - len(searched)


def _hashes(
    spark: SparkSession, side: Side, places: BucketPlaces, done: Callable[[], None]
) -> dict[bytes, Counter[tuple[int, int]]]:
    """Return the hashes of the rows of each key."""
    found: dict[bytes, Counter[tuple[int, int]]] = defaultdict(Counter)
    title = f"find differing keys: {side.reading.label}"
    for some in _over(spark, title, side, _Hashes(side.reading, places), done):
        for key, low, high in some:
            found[key][low, high] += 1
    return dict(found)


def _named(
    spark: SparkSession, sides: Sequence[Side], keys: Sequence[bytes], done: Callable[[], None]
) -> Iterator[Difference]:
    if not keys:
        return
    wanted = pa.array(keys, pa.binary())
    rows = [_fetched(spark, side, wanted, done) for side in sides]
    names = sides[0].reading.key or tuple(sides[0].reading.schema.names)
    for key in keys:
        (count, left), (other_count, right) = (found.get(key, (0, [])) for found in rows)
        kind = "repeated"
        columns: tuple[str, ...] = ()
        if not count or not other_count:
            kind = "missing" if count else "extra"
        elif count == other_count == 1:
            kind, columns = "changed", tuple(name for name in left[0] if left[0][name] != right[0][name])
        one = (left or right)[0]
        own = {name: one[name] for name in names}
        yield Difference(kind, own, tuple(left), tuple(right), (count, other_count), columns)


def _fetched(
    spark: SparkSession, side: Side, keys: pa.BinaryArray, done: Callable[[], None]
) -> dict[bytes, tuple[int, list[dict[str, str | None]]]]:
    total: dict[bytes, tuple[int, list[dict[str, str | None]]]] = {}
    for some in _over(spark, f"fetch differing rows: {side.reading.label}", side, _Fetch(side.reading, keys), done):
        for key, (count, rows) in some.items():
            so_far, shown = total.get(key, (0, []))
            total[key] = so_far + count, [*shown, *rows][:_SHOWN_ROWS]
    return total


def _over(spark: SparkSession, title: str, side: Side, work: Any, done: Callable[[], None]) -> list[Any]:
    """Do the work on all rows of a side, and return the results of its parts."""
    if side.stream is not None:
        return [work.of(side.reading.batches(side.stream()))]
    slots = max(1, int(spark.sparkContext.defaultParallelism))
    tasks = min(len(side.pieces), slots * TASKS_PER_SLOT)
    largest_first = sorted(side.pieces, key=lambda piece: -piece.bytes)
    orders = [tuple(largest_first[task::tasks]) for task in range(tasks)]
    return run_tasks(spark, title, orders, _OnFiles(work), meanwhile=done)


def _text(scalar: pa.Scalar) -> str | None:
    """Return a value as text; None: it is null."""
    if not scalar.is_valid:
        return None
    value = plain_value(scalar)
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"
