"""The task that reads touched rows again by their keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.parquet.writer import QUICKEST
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.staging import StagedFile, Staging
from airflow_provider_cdc.core.run.table_files import table_files
from airflow_provider_cdc.core.tables import row_bytes
from airflow_provider_cdc.core.tables.published import published_columns
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CopyMismatch, SourceUnavailable, ValueNotRepresentable
from airflow_provider_cdc.jobs.changes import net_change_files
from airflow_provider_cdc.jobs.changes.filter_images import copied
from airflow_provider_cdc.jobs.runtime.skipped import reason
from airflow_provider_cdc.jobs.runtime.turn import ReadTurn
from airflow_provider_cdc.sources.api.source import Source
from airflow_provider_cdc.sources.api.unrepresentable import naming_key

LOOKUP_KEYS = 1000
LOOKUP_BYTES = 2**20
"""Limits for the number and the bytes of the keys in one statement. Every statement has at least one key."""
_NO_KEYS = net_change_files.NET_SCHEMA.empty_table()


@dataclass
class FoundAgain:
    """The result of one task. ``files`` has the files with the rows, by the table's index. The ``doubtful`` files have
    the keys (`NET_SCHEMA`) that another pass must read. ``refused`` says why tables cannot be copied."""

    incarnation: str = ""
    files: dict[int, tuple[StagedFile, ...]] = field(default_factory=dict)
    doubtful: tuple[StagedFile, ...] = ()
    nulled: dict[int, dict[str, int]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadAgain:
    """A task that reads rows again by their keys. Spark sends this object to executors.

    ``keys`` are files of `NET_SCHEMA`. ``view`` is the incarnation of the server whose exported snapshot is used to
    read the rows. If ``view`` is empty, the current rows are read. In such a read, a key is doubtful if its rows
    contradict the log, and doubtful keys get the order ``order``. ``skips`` says whether the step continues if a table
    cannot be copied. If so, a read in the exported snapshot reports the table in its result.
    """

    staging: Staging
    source: Source
    tables: tuple[RunTable, ...]
    keys: tuple[StagedFile, ...]
    view: str
    order: int
    skips: bool = False

    @contextmanager
    def session(self) -> Iterator[ReadAgain]:
        """Return a task for several orders that uses as few sessions as possible."""
        with self.source.one_session() as source:
            try:
                yield replace(self, source=source)
            finally:
                ReadTurn(self.staging.folder).leave()

    def _let_go(self) -> None:
        """Close the sessions of this task."""
        self.source.close_idle()

    def __call__(self, buckets: tuple[int, int]) -> FoundAgain:
        """Read the rows whose keys are in a range of buckets (the end is exclusive)."""
        if not self.view:
            ReadTurn(self.staging.folder, self._let_go).wait()
        with self.staging.reading():
            rows = pa.Table.from_batches(
                net_change_files.read(
                    self.staging.folder,
                    self.keys,
                    net_change_files.NET_SCHEMA.names,
                    schema=net_change_files.NET_SCHEMA,
                    buckets=buckets,
                ),
                net_change_files.NET_SCHEMA,
            )
        rows = net_change_files.last(rows)
        rows_again = FoundAgain()
        doubtful = []
        for index in pc.unique(rows["table"]).to_pylist():
            table_rows = rows.filter(pc.equal(rows["table"], index)).combine_chunks()
            try:
                doubtful.append(self._table(index, table_rows, rows_again))
            except ValueNotRepresentable as error:
                # Skip the table only when reading in the exported snapshot. If an earlier pass skipped the table, its
                # keys would not be read again.
                if not (self.skips and self.view):
                    raise
                rows_again.refused[index] = reason(error)
        if not self.view and (remaining_rows := pa.concat_tables([_NO_KEYS, *doubtful])).num_rows:
            remaining_rows = remaining_rows.set_column(
                2,
                net_change_files.NET_SCHEMA.field("order"),
                pa.array([self.order] * remaining_rows.num_rows, pa.int64()),
            )
            with self.staging.writer("delta/doubtful", net_change_files.NET_SCHEMA, QUICKEST) as writer:
                writer.write(remaining_rows.sort_by([("table", "ascending"), ("bucket", "ascending")]))
            rows_again.doubtful = tuple(writer.files)
        return rows_again

    def _table(self, index: int, keys: pa.Table, found: FoundAgain) -> pa.Table:
        """Read the rows of one table, and return the doubtful keys.

        :raises CopyMismatch: the exported snapshot contradicts the log.
        :raises SourceUnavailable: the server was restarted.
        """
        table = self.tables[index].table
        files = table_files(self.staging, self.tables[index], self.source.arrow_schema(table))
        doubtful = []
        with files.writer("chunks", "part-again") as writer, self.source.key_reader(table) as reader:
            for some in _portions(keys):
                wrong = np.zeros(some.num_rows, np.bool_)
                seen = np.zeros(some.num_rows, np.int64)
                wanted_keys = some["key"].chunk(0)
                for batch in reader.find(some["before"].chunk(0)):
                    # The source may also return rows whose keys have other bytes, but are equal in the source's
                    # collation. Such rows belong to other keys.
                    places = pc.index_in(row_bytes.encode(batch, table.key), value_set=wanted_keys)
                    found_there, stopping_values = copied(table, batch, reader.odd)
                    for value in stopping_values:
                        place = places[value.row].as_py()
                        if place is not None and self.view:
                            raise naming_key(table, batch, [value], value)
                        if place is not None:
                            wrong[place] = True
                    seen += np.bincount(places.drop_null().to_numpy(), minlength=some.num_rows)
                    asked_mask = places.is_valid()
                    wanted_rows = asked_mask if found_there is None else pc.and_(asked_mask, found_there)
                    writer.write(published_columns(table, batch).filter(wanted_rows))
                # A row that exists according to the log must be found exactly once, and no other row may be found.
                wrong |= seen != some["count"].to_numpy()
                if self.view and wrong.any():
                    raise CopyMismatch(
                        "the log and the search by keys contradict each other for "
                        f"{format_count(int(wrong.sum()), 'row')}: the search did not find a row that exists, or "
                        "it found a deleted row",
                        where=str(table.name),
                        hint=f"check the index {table.key_index} with amcheck, REINDEX the index, and trigger a new "
                        "run. (An update of the operating system may have changed the sort order of the index's "
                        "collation.)",
                    )
                doubtful.append(some.filter(pa.array(wrong)))
            incarnation = reader.wait_until_durable()
        if found.incarnation not in ("", incarnation) or (self.view and incarnation != self.view):
            raise SourceUnavailable("the server was restarted meanwhile", where=str(table.name), hint="retry the task")
        found.incarnation = incarnation
        found.files[index] = tuple(writer.files)
        if reader.nulled:
            found.nulled[index] = dict(reader.nulled)
        return pa.concat_tables(doubtful)


def _portions(keys: pa.Table) -> Iterator[pa.Table]:
    """Divide ``keys`` into portions. One statement reads each portion."""
    ends = np.cumsum(pc.binary_length(keys["before"]).to_numpy())
    start = 0
    while start < keys.num_rows:
        base_offset = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, base_offset + LOOKUP_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + LOOKUP_KEYS, keys.num_rows))
        yield keys.slice(start, stop - start).combine_chunks()
        start = stop
