"""Reads and writes the files of a window's net change, and composes the net changes of segments into one net change.

The files are in ``delta/``. Recorded pieces of the log, and touched keys, have `NET_SCHEMA`. All others have
`TOWARDS_SCHEMA`: `towards` makes the changes free of direction, so that what applies them need not know whether a table
is rewound or rolled forward. As far as memory allows, the rows in a file are sorted by table and bucket (a hash of the
key). So a reader of one table, or of some buckets, skips most other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.kernels import Bytes, Int32s, Int64s, bytes_of, inner, kernel, same_bytes
from airflow_provider_cdc.core.run.results import DeltaResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.sources.api.window import BUCKETS, DELTA_SCHEMA, SegmentSummary
from airflow_provider_cdc.sources.log.netting import hash_key

# Groups changes by table and key, and finds the first and the last change of each group.


_LOW_HALF = (1 << 32) - 1
_FEWEST_SLOTS = 16


class KeyChanges(NamedTuple):
    """One entry for each table and key, in the order of their first occurrence.

    ``first`` and ``last`` are the row numbers of the first and the last change, and ``counts`` is the sum of the
    counts. All are ``int64``."""

    first: Int64s
    last: Int64s
    counts: Int64s


def same_keys(rows: pa.Table) -> KeyChanges:
    """Group the changes by table and key.

    :param rows: changes of `DELTA_SCHEMA`, none of them pending. ``order`` and ``suborder`` determine which change is
        first. If two changes have the same ``order`` and ``suborder``, their places in ``rows`` determine which change
        is first.
    """
    size = rows.num_rows
    first, last, counts = np.empty((3, size), np.int64)
    if not size:
        return KeyChanges(first, last, counts)
    # The keys of all rows may exceed the capacity of one `pa.binary` array.
    keys = rows["key"].cast(pa.large_binary()).combine_chunks()
    offsets: Int64s = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + size + 1].copy()
    slots: Int64s = np.zeros(max(_FEWEST_SLOTS, 1 << (2 * size - 1).bit_length()), np.int64)
    group_count = _group(
        bytes_of(keys.buffers()[2]),
        offsets,
        _numbers(rows["table"], np.int32),
        _numbers(rows["order"], np.int64),
        _numbers(rows["suborder"], np.int64),
        _numbers(rows["count"], np.int64),
        slots,
        first,
        last,
        counts,
    )
    return KeyChanges(first[:group_count], last[:group_count], counts[:group_count])


def _numbers(column: pa.ChunkedArray, kind: npt.DTypeLike) -> npt.NDArray[np.signedinteger]:
    # Copy the values, because kernels are compiled for writable arrays, and would be compiled again for read-only
    # arrays.
    return np.array(column.to_numpy(), kind)


@inner
def _earlier(orders: Int64s, suborders: Int64s, one: int, other: int) -> bool:
    """Return whether the change ``one`` is ordered before ``other``."""
    return bool(orders[one] < orders[other] or (orders[one] == orders[other] and suborders[one] < suborders[other]))


@kernel
def _group(
    data: Bytes,
    offsets: Int64s,
    tables: Int32s,
    orders: Int64s,
    suborders: Int64s,
    counts: Int64s,
    slots: Int64s,
    first: Int64s,
    last: Int64s,
    sums: Int64s,
) -> int:
    """Fill ``first``, ``last`` and ``sums``, and return the number of their entries.

    :param offsets: the offsets of the keys in ``data``.
    :param slots: an array of zeros. The number of slots is a power of two, and at least twice the number of rows. A
        used slot has the upper half of a key's hash in its upper half, and the number of the key's entry plus one in
        its lower half.
    """
    group_count = 0
    mask = len(slots) - 1
    for row in range(len(tables)):
        at = offsets[row]
        size = offsets[row + 1] - at
        hashed = hash_key(data, at, size, tables[row])
        tag = hashed & ~_LOW_HALF
        slot = hashed & mask
        one = -1
        while slots[slot] != 0:
            if (slots[slot] & ~_LOW_HALF) == tag:
                one = (slots[slot] & _LOW_HALF) - 1
                other = first[one]
                if (
                    tables[other] == tables[row]
                    and offsets[other + 1] - offsets[other] == size
                    and same_bytes(data, offsets[other], data, at, size)
                ):
                    break
            slot = (slot + 1) & mask
        if slots[slot] == 0:
            slots[slot] = tag | (group_count + 1)
            first[group_count] = last[group_count] = row
            sums[group_count] = counts[row]
            group_count += 1
            continue
        sums[one] += counts[row]
        if _earlier(orders, suborders, row, first[one]):
            first[one] = row
        if not _earlier(orders, suborders, row, last[one]):
            last[one] = row
    return group_count


_BUCKET = pa.field("bucket", pa.uint8(), nullable=False)
NET_SCHEMA = DELTA_SCHEMA.append(_BUCKET)
_COLUMNS = {"before": "was", "after": "now"}
TOWARDS_SCHEMA = pa.schema([field.with_name(_COLUMNS.get(field.name, field.name)) for field in NET_SCHEMA])
"""One net change towards X, the position of the run. The columns are those of `NET_SCHEMA`, except:

``now``
    the row at X. Null: there is none. Keyless tables: the row itself. Tables of which only keys are read: null, because
    their rows are read again.
``was``
    the row that a copy of an exact position must have. Null: it must have none. Null, too, for keyless tables and for
    tables that are rewound: they are no copies.
``count``
    keyless tables: the number of times that the row must be added; if it is negative, removed. Other tables: 0.
"""
_ARRAY_BYTES = 1 << 30
"""Half of the capacity of a `pa.binary` array, in bytes. No row is larger than this."""


@dataclass(frozen=True)
class Count:
    """The number of touched ``keys`` of a table, the number of these keys that have a row at X (``now``), and the
    number of these keys that have a row in the base copy (``was``)."""

    keys: int
    now: int = 0
    was: int = 0


NONE = Count(0)

Counts = dict[int, Count]
"""The counts of each touched table, by the table's index. A table without an entry was not touched."""

Decisions = Mapping[tuple[int, str], int]
"""The commit order of each prepared transaction that was committed. The key has the number of the segment that prepared
the transaction, and the transaction's id."""


@dataclass(frozen=True)
class NetChangeFiles:
    """The files with the net change of several segments, or of all windows, and the counts of their keys.

    The files have `TOWARDS_SCHEMA`."""

    files: tuple[StagedFile, ...]
    counts: Counts

    def keys(self, table: int) -> int:
        """Return the number of keys of a table (by its index) that the window touches."""
        return self.counts.get(table, NONE).keys

    def now(self, table: int) -> int:
        """Return the number of touched keys of a table that have a row at X."""
        return self.counts.get(table, NONE).now

    def was(self, table: int) -> int:
        """Return the number of touched keys of a table that must have a row in the base copy."""
        return self.counts.get(table, NONE).was

    def size(self) -> int:
        """Return the total size of the files in bytes."""
        return sum(file.bytes for file in self.files)


def bucket_ranges(count: int) -> list[tuple[int, int]]:
    """Divide all buckets into ``count`` ranges. Each range is a start and an exclusive stop."""
    edges = [BUCKETS * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def gathered(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Combine batches of `DELTA_SCHEMA` into tables. A table exceeds ``limit`` bytes by at most one batch."""
    together: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        together.append(batch)
        size += batch.nbytes
        if size >= limit:
            yield pa.Table.from_batches(together, DELTA_SCHEMA)
            together, size = [], 0
    if together:
        yield pa.Table.from_batches(together, DELTA_SCHEMA)


def in_buckets(rows: pa.Table) -> pa.Table:
    """Return the changes with their buckets, sorted by table and bucket."""
    bucket = pa.chunked_array([row_bytes.buckets(keys, BUCKETS) for keys in rows["key"].chunks], pa.uint8())
    return _sorted(rows.append_column(_BUCKET, bucket))


def towards(rows: pa.Table, keyless: Sequence[int], *, forward: bool) -> pa.Table:
    """Make changes free of direction: convert them from the names of `NET_SCHEMA` to those of `TOWARDS_SCHEMA`.

    :param rows: changes of one window, with or without buckets.
    :param keyless: the indices of the keyless tables.
    :param forward: whether the window ends at X, and not at the end of the reads.
    """
    tables = pa.array(keyless, pa.int32())
    schema = pa.schema([TOWARDS_SCHEMA.field(place) for place in range(rows.num_columns)])
    # Most batches have the changes of one table. Their images are not copied.
    return pa.Table.from_batches([_towards(one, tables, schema, forward) for one in rows.to_batches()], schema)


def _towards(rows: pa.RecordBatch, keyless: pa.Int32Array, schema: pa.Schema, forward: bool) -> pa.RecordBatch:
    before, none = rows["before"], pa.nulls(rows.num_rows, pa.binary())
    counts = rows["count"] if forward else pc.negate(rows["count"])
    if not forward:
        now, was = before, none
    else:
        # The image of a keyless table's row is its ``before``, whatever the change.
        is_keyless = pc.is_in(rows["table"], value_set=keyless)
        count = is_keyless.true_count
        if count in (0, rows.num_rows):
            now, was = (before, none) if count else (rows["after"], before)
        else:
            now, was = pc.if_else(is_keyless, before, rows["after"]), pc.if_else(is_keyless, none, before)
    columns = {**dict(zip(rows.schema.names, rows.columns, strict=True)), "now": now, "was": was, "count": counts}
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _sorted(rows: pa.Table) -> pa.Table:
    places = _places(rows)
    # Most tables are sorted already, and a copy would double the memory.
    if (places[:-1] <= places[1:]).all():
        return rows
    return _taken(rows, np.argsort(places, kind="stable"))


def _places(rows: pa.Table) -> Int64s:
    """Return a number for each row. The order of these numbers is by table, and then by bucket."""
    places: Int64s = rows["table"].to_numpy().astype(np.int64) * BUCKETS + rows["bucket"].to_numpy()
    return places


def portions(tables: Sequence[pa.Table], size: int) -> Iterator[pa.Table]:
    """Yield the changes of all ``tables`` in the order of table and bucket, so that all changes of a key are in the
    same portion.

    Each portion has as many buckets as fit into ``size`` rows, but at least one bucket. Work on small portions needs
    little additional memory, and this memory stays in the processor's cache.
    """
    tables = [_sorted(table_part) for table_part in tables]
    places = [_places(table_part) for table_part in tables]
    places_changed, counts = np.unique(np.concatenate([np.empty(0, np.int64), *places]), return_counts=True)
    ends = np.cumsum(counts)
    done = at = 0
    while at < len(places_changed):
        following = max(at + 1, int(np.searchsorted(ends, done + size, side="right")))
        cut = [
            np.searchsorted(file_places, [places_changed[at], places_changed[following - 1] + 1])
            for file_places in places
        ]
        yield pa.concat_tables(
            [table_part.slice(start, stop - start) for table_part, (start, stop) in zip(tables, cut, strict=True)]
        )
        done, at = int(ends[following - 1]), following


def read(
    run: Storage,
    files: Sequence[StagedFile],
    columns: Sequence[str],
    *,
    schema: pa.Schema = TOWARDS_SCHEMA,
    table: int | None = None,
    buckets: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read changes from files in batches of bounded size.

    :param schema: the schema of the files.
    :param table: read only the changes of the table with this index.
    :param buckets: read only the buckets from the first number up to the second number (exclusive).
    """
    if not files:
        return
    # Import it late: it is slow to import, and a run without changes does not need it.
    from pyarrow import dataset as ds

    condition = None
    if table is not None:
        condition = ds.field("table") == table
    if buckets is not None:
        within = (ds.field("bucket") >= buckets[0]) & (ds.field("bucket") < buckets[1])
        condition = within if condition is None else condition & within
    paths = [run.path(file.name) for file in files]
    dataset = ds.dataset(paths, schema=schema, format="parquet", filesystem=run.filesystem)
    for batch in dataset.to_batches(columns=list(columns), filter=condition):
        if batch.num_rows:
            yield batch


def match_prepared(summaries: Sequence[SegmentSummary]) -> tuple[Decisions, dict[str, str]]:
    """Match the transactions that one segment prepared with the commits in later segments.

    Transactions that were rolled back are left out. Transactions that are still prepared at the end of the window are
    also left out, because no read could see their changes.

    Returns the decisions. Also returns the transactions that were committed but that no segment prepared, each with the
    name of the segment that has the commit.
    """
    prepared: dict[str, int] = {}
    decisions: dict[tuple[int, str], int] = {}
    unmatched_commits: dict[str, str] = {}
    for summary in sorted(summaries, key=lambda summary: summary.segment.number):
        for xid, order in summary.decided.items():
            if xid in prepared:
                decisions[prepared.pop(xid), xid] = order
            else:
                unmatched_commits[xid] = summary.segment.name
        for xid in summary.rolled_back:
            prepared.pop(xid, None)
        prepared.update(dict.fromkeys(summary.prepared, summary.segment.number))
    return decisions, unmatched_commits


def resolve_pending(rows: pa.Table, segment: int, decisions: Decisions) -> pa.Table:
    """Resolve the pending changes of one segment. A change gets the order of its transaction's commit, or is dropped if
    ``decisions`` has no commit of the transaction."""
    if rows["pending"].null_count == rows.num_rows:
        return rows
    pending = rows["pending"].combine_chunks().dictionary_encode()
    orders = [decisions.get((segment, xid)) for xid in pending.dictionary.to_pylist()]
    decided = pa.array(orders, pa.int64()).take(pending.indices)
    keep = pc.or_(pending.is_null(), decided.is_valid())
    rows = rows.set_column(2, NET_SCHEMA.field("order"), pc.coalesce(decided, rows["order"].combine_chunks()))
    rows = rows.set_column(6, NET_SCHEMA.field("pending"), pa.nulls(rows.num_rows, pa.string()))
    return rows.filter(keep)


def compose(rows: pa.Table, keyless: Sequence[int], *, forward: bool) -> pa.Table:
    """Compose the changes of each table and key into one row, and sort these rows by table and bucket.

    The result has the ``now`` of the change next to X, the ``was`` of the change that is farthest from X, and the sum
    of the counts (``core.tables.net_change.net``).

    :param rows: changes of `TOWARDS_SCHEMA`, none of them pending.
    :param keyless: the indices of the keyless tables, whose rows with count 0 are dropped.
    :param forward: whether the window ends at X, so that the last change of a key is next to X.
    """
    changes = same_keys(rows)
    order = np.lexsort([rows[name].to_numpy()[changes.first] for name in ("bucket", "table")])
    nearest, farthest = (changes.last, changes.first) if forward else (changes.first, changes.last)
    place = rows.schema.get_field_index("was")
    was = _taken(rows.select([place]), farthest[order])
    result = _taken(rows.remove_column(place), nearest[order]).add_column(place, was.schema.field(0), was["was"])
    result = result.set_column(5, TOWARDS_SCHEMA.field("count"), pa.array(changes.counts[order]))
    return without_effect_dropped(result, keyless)


def last(rows: pa.Table) -> pa.Table:
    """Return the last change of each key of each table. This is for tables for which the log reader returns only
    keys."""
    return rows.take(pa.array(same_keys(rows).last))


def touched(rows: pa.Table) -> pa.Table:
    """Convert changes of `NET_SCHEMA` that have only keys to `TOWARDS_SCHEMA`. The rows at X are read again."""
    none = pa.nulls(rows.num_rows, pa.binary())
    columns = {name: rows[name] for name in TOWARDS_SCHEMA.names if name not in ("was", "now")}
    columns |= {"was": none, "now": none, "count": pa.array(np.zeros(rows.num_rows, np.int64))}
    return pa.table([columns[name] for name in TOWARDS_SCHEMA.names], schema=TOWARDS_SCHEMA)


def _taken(rows: pa.Table, places: Int64s) -> pa.Table:
    """Return the rows at ``places``, in that order. `pa.Table.take` concatenates all bytes of a column first, and fails
    if they exceed the capacity of one array."""
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if not pa.types.is_binary(field.type) or column.nbytes < _ARRAY_BYTES:
            columns.append(column.take(pa.array(places)))
            continue
        large = column.cast(pa.large_binary()).combine_chunks()
        sizes = pc.binary_length(large).fill_null(0).to_numpy()[places]
        portion = np.cumsum(sizes) // _ARRAY_BYTES
        edges = [0, *(np.flatnonzero(np.diff(portion)) + 1).tolist(), len(places)]
        parts = [large.take(pa.array(places[start:stop])).cast(pa.binary()) for start, stop in pairwise(edges)]
        columns.append(pa.chunked_array(parts, field.type))
    return pa.table(columns, schema=rows.schema)


def without_effect_dropped(rows: pa.Table, keyless: Sequence[int]) -> pa.Table:
    """Return ``rows`` without the rows of keyless tables that were added as often as they were removed."""
    if not keyless:
        return rows
    no_effect = pc.and_(pc.is_in(rows["table"], pa.array(keyless, pa.int32())), pc.equal(rows["count"], 0))
    return rows.filter(pc.invert(no_effect))


def of_tables(rows: pa.Table, tables: Sequence[int]) -> pa.Table:
    """Return the rows of these tables, given by their indices."""
    wanted = pc.is_in(rows["table"], pa.array(tables, pa.int32()))
    return rows if pc.all(wanted).as_py() else rows.filter(wanted)


def without_tables(rows: pa.Table, tables: Sequence[int]) -> pa.Table:
    """Return ``rows`` without the rows of these tables, given by their indices."""
    if not tables:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows["table"], pa.array(tables, pa.int32()))))


def count_by_table(rows: pa.Table) -> Counts:
    """Count the touched keys of each table.

    :param rows: changes of `TOWARDS_SCHEMA`.
    """
    totals = rows.group_by("table").aggregate([("key", "count"), ("now", "count"), ("was", "count")])
    return {row["table"]: Count(row["key_count"], row["now_count"], row["was_count"]) for row in totals.to_pylist()}


def add_counts(several: Iterable[Counts]) -> Counts:
    """Add up results of `count_by_table`."""
    total: Counts = {}
    for counts in several:
        for table, counts_of_table in counts.items():
            so_far = total.get(table, NONE)
            total[table] = Count(
                so_far.keys + counts_of_table.keys,
                so_far.now + counts_of_table.now,
                so_far.was + counts_of_table.was,
            )
    return total


def write_net_change(run: Storage, change: NetChangeFiles) -> str:
    """Record the net change of the extract_delta step in the run's folder, and return the name of the record."""
    return records.write_named(run, "delta/net", change)


def read_net_change(run: Run) -> NetChangeFiles:
    """Return the net change that the extract_delta step recorded.

    :raises ManifestError: the step is not done.
    """
    return records.read_named(NetChangeFiles, run.folder, run.result_of(DeltaResult).record)
