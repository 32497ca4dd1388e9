"""Turns row images in recorded pieces of the log into images of the present tables (`jobs.restart.carried_pieces`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.tables.table import Column, Table
from airflow_provider_cdc.sources.api.source import Source

_ROWS = 16_384
"""Number of images that are carried at a time. New columns make them larger, and an array holds at most 2 GiB."""


@dataclass(frozen=True)
class CarriedImages:
    """The earlier columns of tables in segments of the log. Spark sends this object to executors.

    ``tables`` has the present tables, by their indices in the run. ``columns`` has, for each segment, the columns of
    the tables whose columns were others."""

    source: Source
    tables: Mapping[int, Table]
    columns: Mapping[int, Mapping[int, tuple[Column, ...]]]

    def of_present(self, rows: pa.Table, segment: int) -> pa.Table:
        """Return the changes of a segment with images of the present tables.

        :param rows: changes of `net_change_files.NET_SCHEMA`, with the indices in the run.
        """
        for index, columns in self.columns.get(segment, {}).items():
            is_own = pc.equal(rows["table"], index)
            own = rows.filter(is_own)
            for name in ("before", "after"):
                place = own.schema.get_field_index(name)
                parts = [part.slice(at, _ROWS) for part in own[name].chunks for at in range(0, len(part), _ROWS)]
                chunks = [self.source.carry_images(self.tables[index], columns, part) for part in parts]
                own = own.set_column(place, own.schema.field(place), pa.chunked_array(chunks, pa.binary()))
            rows = pa.concat_tables([rows.filter(pc.invert(is_own)), own])
        return rows
