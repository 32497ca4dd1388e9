"""The net change of the window as files, and how the net changes of its segments become one.

Files of changes have `NET_SCHEMA` and lie under ``delta/``. Within a file rows are sorted by table and bucket, a hash
of the key, as far as memory allows; so who wants one table, or some buckets, skips most of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from airflow_provider_cdc.core.kernels.compile import Int64s
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.jobs.changes.same_keys import same_keys
from airflow_provider_cdc.sources.api.window import BUCKETS, DELTA_SCHEMA, SegmentSummary

NET_SCHEMA = DELTA_SCHEMA.append(pa.field("bucket", pa.uint8(), nullable=False))
_ARRAY_BYTES = 1 << 30
"""Half of what an array of binary holds. No row has more."""


@dataclass(frozen=True)
class Count:
    """How many ``keys`` are touched, of how many there is a row before, and of how many one after (0 unless the table
    is rolled forward)."""

    keys: int
    befores: int
    afters: int = 0


NONE = Count(0, 0)

Counts = dict[int, Count]
"""By the table's index; what is not in it is not touched."""

Decisions = Mapping[tuple[int, str], int]
"""The order at which a prepared transaction was committed, by the segment that prepared it and its id."""


@dataclass(frozen=True)
class NetChange:
    """The files that hold the net change of several segments, or of the whole window, and what is in them."""

    files: tuple[StagedFile, ...]
    counts: Counts

    def keys(self, table: int) -> int:
        """How many keys of a table, by its index, the window touches."""
        return self.counts.get(table, NONE).keys

    def befores(self, table: int) -> int:
        """How many of them had a row before the window."""
        return self.counts.get(table, NONE).befores

    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.bytes for file in self.files)


def bucket_ranges(count: int) -> list[tuple[int, int]]:
    """All buckets in ``count`` ranges, each from one up to another."""
    edges = [BUCKETS * number // count for number in range(count + 1)]
    return list(pairwise(edges))


def gathered(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.Table]:
    """Batches of `DELTA_SCHEMA`, several of them as one table, which has ``limit`` bytes or a batch more."""
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
    """Changes of `DELTA_SCHEMA` as those of `NET_SCHEMA`, sorted by table and bucket."""
    bucket = pa.chunked_array([row_bytes.buckets(keys, BUCKETS) for keys in rows["key"].chunks], pa.uint8())
    return _sorted(rows.append_column(NET_SCHEMA.field("bucket"), bucket))


def _sorted(rows: pa.Table) -> pa.Table:
    places = _places(rows)
    # Most are, and a copy would take as much memory again.
    if (places[:-1] <= places[1:]).all():
        return rows
    return _taken(rows, np.argsort(places, kind="stable"))


def _places(rows: pa.Table) -> Int64s:
    """A number for each row's table and bucket, which grows with both."""
    places: Int64s = rows["table"].to_numpy().astype(np.int64) * BUCKETS + rows["bucket"].to_numpy()
    return places


def portions(tables: Sequence[pa.Table], size: int) -> Iterator[pa.Table]:
    """The changes of all ``tables``, of one table and bucket after the other, with all of a key together: as many
    buckets at a time as have ``size`` rows, or one.

    Whoever works on a few rows at a time needs little memory beside them, and that stays in the processor's cache.
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
    table: int | None = None,
    buckets: tuple[int, int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Changes from files, in batches of bounded size; of one table only, or of the buckets from one up to another."""
    if not files:
        return
    condition = None
    if table is not None:
        condition = ds.field("table") == table
    if buckets is not None:
        within = (ds.field("bucket") >= buckets[0]) & (ds.field("bucket") < buckets[1])
        condition = within if condition is None else condition & within
    paths = [run.path(file.name) for file in files]
    dataset = ds.dataset(paths, schema=NET_SCHEMA, format="parquet", filesystem=run.filesystem)
    for batch in dataset.to_batches(columns=list(columns), filter=condition):
        if batch.num_rows:
            yield batch


def decide(summaries: Sequence[SegmentSummary]) -> tuple[Decisions, dict[str, str]]:
    """What became of the transactions that one segment prepared and a later one decided.

    Those that were rolled back, or are still prepared at the end of the window, are left out: their changes were
    visible to no read.

    Returns the decisions; and of each transaction that no segment prepared, but one committed, the name of that one.
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


def settle(rows: pa.Table, segment: int, decisions: Decisions) -> pa.Table:
    """Changes of one segment, none of them pending: each counts at the order of its commit, or is dropped."""
    if rows["pending"].null_count == rows.num_rows:
        return rows
    pending = rows["pending"].combine_chunks().dictionary_encode()
    orders = [decisions.get((segment, xid)) for xid in pending.dictionary.to_pylist()]
    decided = pa.array(orders, pa.int64()).take(pending.indices)
    keep = pc.or_(pending.is_null(), decided.is_valid())
    rows = rows.set_column(2, NET_SCHEMA.field("order"), pc.coalesce(decided, rows["order"].combine_chunks()))
    rows = rows.set_column(6, NET_SCHEMA.field("pending"), pa.nulls(rows.num_rows, pa.string()))
    return rows.filter(keep)


def compose(rows: pa.Table, keyless: Sequence[int]) -> pa.Table:
    """One row per table and key, of one table and bucket after the other: the first one's ``before``, the last one's
    ``after``, and the sum of the counts (``core.net_change.net``).

    :param rows: changes of `NET_SCHEMA`, none of them pending.
    :param keyless: the tables whose rows without a count are no change.
    """
    changes = same_keys(rows)
    order = np.lexsort([rows[name].to_numpy()[changes.first] for name in ("bucket", "table")])
    result = _taken(rows, changes.first[order])
    result = result.set_column(5, NET_SCHEMA.field("count"), pa.array(changes.counts[order]))
    if rows["after"].null_count < rows.num_rows:
        after = _taken(rows.select(["after"]), changes.last[order])
        result = result.set_column(7, NET_SCHEMA.field("after"), after["after"])
    return without_effect_dropped(result, keyless)


def last(rows: pa.Table) -> pa.Table:
    """One row per table and key, of tables of which only the keys are read: that of its last change."""
    return rows.take(pa.array(same_keys(rows).last))


def _taken(rows: pa.Table, places: Int64s) -> pa.Table:
    """The rows at ``places``, in that order. `pa.Table.take` would lay all bytes of a column end to end first, and may
    find that one array does not hold them."""
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
    """``rows`` without those of keyless tables that were added as often as they were removed."""
    if not keyless:
        return rows
    no_effect = pc.and_(pc.is_in(rows["table"], pa.array(keyless, pa.int32())), pc.equal(rows["count"], 0))
    return rows.filter(pc.invert(no_effect))


def count_by_table(rows: pa.Table) -> Counts:
    """How many keys of each table are touched."""
    totals = rows.group_by("table").aggregate([("key", "count"), ("before", "count"), ("after", "count")])
    return {
        row["table"]: Count(row["key_count"], row["before_count"], row["after_count"]) for row in totals.to_pylist()
    }


def add_counts(several: Iterable[Counts]) -> Counts:
    """The sum of what `count_by_table` gave."""
    total: Counts = {}
    for counts in several:
        for table, counts_of_table in counts.items():
            so_far = total.get(table, NONE)
            total[table] = Count(
                so_far.keys + counts_of_table.keys,
                so_far.befores + counts_of_table.befores,
                so_far.afters + counts_of_table.afters,
            )
    return total
