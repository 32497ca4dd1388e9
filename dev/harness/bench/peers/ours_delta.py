"""This package's log reader: files of the binary log to net changes, with the rows before in Arrow. One process per
file."""

from __future__ import annotations

import os
from multiprocessing import get_context
from typing import Any

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings, SegmentReader, Source
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.mysql.log.segments import log_segments
from airflow_provider_cdc.sources.mysql.server.log_history import LogPlace
from harness.bench.contender import Address, Order, Work
from harness.bench.processes import peak_mb
from harness.bench.recorded import recorded
from harness.bench.spark import CORES


def prepare(address: Address) -> Work:
    settings = address.settings
    source = open_source(settings)
    pool = get_context("fork").Pool(CORES)

    def net(order: Order) -> dict[str, Any]:
        with recorded(source, order.table) as point:
            (table,) = point.tables
            # Read each file separately, although a run may read several files together.
            segments = log_segments(settings, GtidSet(), LogPlace.parse(source.bound_reads().log_end))
            orders = [
                (settings, segment, TrackedTable(0, table)) for segment in segments if segment.name in order.files
            ]
            found = pool.starmap(_net, orders, chunksize=1)
            return {
                "rows": sum(one["images"] for one in found),
                "keys": sum(one["keys"] for one in found),
                "worker_peak_mb": max(one["peak_mb"] for one in found),
            }

    return net


def _net(settings: ConnectionSettings, segment: LogSegment, tracked: TrackedTable) -> dict[str, Any]:
    source = open_source(settings)
    with source.read_segment(segment, GtidSet(), [tracked]) as reader:
        return net_change(source, reader, tracked)


def net_change(source: Source, reader: SegmentReader, tracked: TrackedTable) -> dict[str, Any]:
    """Read a whole segment, and decode the rows before."""
    keys = 0
    for batch in reader:
        keys += batch.num_rows
        source.decode_images(tracked.table, batch["before"].drop_null())
    return {"images": reader.summary.row_images, "keys": keys, "peak_mb": peak_mb(os.getpid())}
