"""A file of the base copy. Some of its rows may have been deleted by position."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.core.parquet.position_deletes import Int64s, read_positions
from airflow_provider_cdc.core.run.staging import StagedFile, difference
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.errors import FileDamaged
from airflow_provider_cdc.jobs.consolidate.touched_rows import BoolArray, MarkedFile
from airflow_provider_cdc.jobs.roll_forward.hints import DAMAGED


class RolledFile(MarkedFile):
    """A file of the base copy. Rows that an earlier run deleted are never marked."""

    def __init__(self, folder: Storage, staged: StagedFile, published: pa.Schema) -> None:
        super().__init__(folder, staged, published)
        self._place = folder

    @cached_property
    def first_positions(self) -> Int64s:
        """The position of the first row of each row group, and the number of rows of the file."""
        metadata = self.parquet.metadata
        rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        return np.cumsum([0, *rows], dtype=np.int64)

    @cached_property
    def deleted(self) -> Int64s:
        """The sorted positions of the rows that earlier runs deleted.

        :raises FileDamaged: the delete file differs from its record.
        """
        return read_positions(self._place, self.staged, DAMAGED)

    def gone(self, group: int) -> BoolArray | None:
        if self.staged.deletes is None:
            return None
        first, end = self.first_positions[group : group + 2]
        start, stop = np.searchsorted(self.deleted, [first, end])
        mask: BoolArray = np.zeros(int(end - first), np.bool_)
        mask[self.deleted[start:stop] - first] = True
        return mask

    @property
    def marked(self) -> int:
        """The number of rows that are to be removed."""
        return sum(int(mask.sum()) for mask in self.marks.values())

    def deleted_and_marked(self) -> Int64s:
        """Return the sorted positions of the rows that earlier runs deleted, and of those that are to be removed."""
        marked = [np.flatnonzero(mask) + self.first_positions[group] for group, mask in self.marks.items()]
        return np.sort(np.concatenate([self.deleted, *marked]))

    def live(self, group: int) -> pa.Table:
        """Read the rows of a row group that earlier runs did not delete."""
        rows, gone = self.read(group), self.gone(group)
        return rows if gone is None else rows.filter(pa.array(~gone))

    def check_whole(self) -> None:
        """Read the whole file, and its deletes, and compare them with their records.

        :raises FileDamaged: a file differs from its record.
        """
        for part in self.staged.parts:
            if what := difference(self._place, part.name, part):
                raise FileDamaged(
                    f"a file of the copy that is rolled forward: {what}",
                    where=self._place.uri_of(part.name),
                    hint=DAMAGED,
                )
