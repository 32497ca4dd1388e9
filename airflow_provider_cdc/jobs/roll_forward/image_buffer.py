"""Loads the log's images of a copy's touched rows, in portions that fit into memory.

The changes to a few files may be far larger than these files. So the size of each image is read first, and then the
images themselves, in the order in which they are requested. Each further portion needs another scan of the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.jobs.roll_forward.row_group_merge import Int64s

HELD_BYTES = 256 * 2**20
"""Bytes of images, or of added rows, that one task holds in memory at a time."""

Place = tuple[str, int]
"""A row group: the name of its file, and its number."""

_LARGE = pa.large_binary()


class Images:
    """The images of touched rows as the copy must have them, and as they are at the position of the run. The images are
    the log's own bytes.

    :param keys: the keys of each row group's touched rows, in the order of the row group. Each key occurs once, and
        ``changes`` contains every key.
    :param changes: reads the changes of the table: the columns ``key``, ``was`` and ``now``.
    """

    def __init__(self, keys: Mapping[Place, pa.BinaryArray], changes: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        ends = np.cumsum([0, *map(len, keys.values())]).tolist()
        self._places = dict(zip(keys, pairwise(ends), strict=True))
        self._keys = pa.chunked_array([*keys.values()], pa.binary())
        self._changes = changes
        self._first = self._end = 0
        self._held = pa.table({})
        self._lengths = self._look() if len(self._keys) else (np.empty(0, np.int64), np.empty(0, np.int64))
        self._ends = np.cumsum(sum(np.maximum(lengths_of_batch, 0) for lengths_of_batch in self._lengths))

    def lengths(self, place: Place) -> tuple[Int64s, Int64s]:
        """Return the length in bytes of each image in the copy and at the position of the run, and -1 where there is no
        image."""
        place_slice = slice(*self._places[place])
        was, now = self._lengths
        return was[place_slice], now[place_slice]

    def of(self, place: Place, start: int, stop: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Return the images in the copy and at the position of the run, for the touched rows of a row group from
        ``start`` up to ``stop`` (exclusive). Each of the two must fit into one binary array."""
        begin, _ = self._places[place]
        start, stop = begin + start, begin + stop
        if start < self._first or stop > self._end:
            self._load(start, stop)
        # Take a copy: the bytes of a slice may lie at offsets beyond the range of the smaller type, `pa.binary`.
        rows = self._held.take(pa.array(np.arange(start - self._first, stop - self._first))).combine_chunks()
        was, now = (rows[name].cast(pa.binary()).combine_chunks() for name in ("was", "now"))
        return was, now

    def _look(self) -> tuple[Int64s, Int64s]:
        """Return the lengths of all images. Keep the images in memory if all of them fit."""
        keys, was, now, held = [], [], [], []
        size = 0
        for batch in self._changes():
            batch_of_keys = batch.filter(pc.is_in(batch["key"], value_set=self._keys))
            keys.append(batch_of_keys["key"])
            was.append(_lengths_of(batch_of_keys["was"]))
            now.append(_lengths_of(batch_of_keys["now"]))
            size += batch_of_keys.nbytes
            if size <= HELD_BYTES:
                held.append(batch_of_keys)
            else:
                held.clear()
        if size <= HELD_BYTES:
            self._hold(held, self._keys)
            self._end = len(self._keys)
        places = pc.index_in(self._keys, value_set=pa.chunked_array(keys, pa.binary())).to_numpy()
        return np.concatenate(was)[places], np.concatenate(now)[places]

    def _load(self, start: int, stop: int) -> None:
        self._held = pa.table({})
        base_offset = int(self._ends[start - 1]) if start else 0
        self._first, self._end = (
            start,
            max(stop, int(np.searchsorted(self._ends, base_offset + HELD_BYTES, side="right"))),
        )
        keys = self._keys.slice(start, self._end - start)
        self._hold([batch.filter(pc.is_in(batch["key"], value_set=keys)) for batch in self._changes()], keys)

    def _hold(self, batches: Sequence[pa.RecordBatch], keys: pa.ChunkedArray) -> None:
        schema = pa.schema([("key", pa.binary()), ("was", _LARGE), ("now", _LARGE)])
        # All images together may be larger than one `pa.binary` array can be.
        images = pa.Table.from_batches([batch.select(schema.names).cast(schema) for batch in batches], schema)
        images = images.combine_chunks()
        self._held = images.select(["was", "now"]).take(pc.index_in(keys, value_set=images["key"]))


def _lengths_of(images: pa.BinaryArray) -> Int64s:
    lengths: Int64s = pc.binary_length(images).fill_null(-1).to_numpy().astype(np.int64)
    return lengths
