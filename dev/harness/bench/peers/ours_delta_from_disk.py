"""This package's log reader without the server: files of the binary log from disk to net changes. One process per file.

A server that sends two files at once uses the cores that two readers need. This measures the readers alone.
"""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_cdc.core.positions.gtid import GtidSet
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import LogSegment, TrackedTable
from airflow_provider_cdc.sources.mysql.log.dump import DATA_BYTES, RAW_BYTES
from airflow_provider_cdc.sources.mysql.log.segments import MysqlSegmentReader
from harness.bench.contender import Address, Order, Work
from harness.bench.peers.ours_delta import net_change
from harness.bench.recorded import recorded
from harness.bench.spark import CORES

_MAGIC_BYTES = 4


def prepare(address: Address) -> Work:
    settings = address.settings
    source = open_source(settings)
    pool = get_context("fork").Pool(CORES)
    with address.cursor() as cursor:
        cursor.execute("SELECT @@log_bin_basename")
        folder = Path(cursor.fetchone()[0]).parent

    def net(order: Order) -> dict[str, Any]:
        with recorded(source, order.table) as point:
            tracked = TrackedTable(0, point.tables[0])
            orders = [(settings, folder / name, tracked) for name in order.files]
            found = pool.starmap(_net, orders, chunksize=1)
            return {"rows": sum(one["images"] for one in found), "keys": sum(one["keys"] for one in found)}

    return net


def _net(settings: ConnectionSettings, path: Path, tracked: TrackedTable) -> dict[str, Any]:
    segment = LogSegment(0, path.name, _MAGIC_BYTES, None)
    with _FileDump(path) as dump:
        # The file is read like the dump that it replaces.
        reader = MysqlSegmentReader(lambda *_: dump, segment, GtidSet(), [tracked])  # type: ignore[arg-type]
        return net_change(open_source(settings), reader, tracked)


class _FileDump:
    """``sources.mysql.log.dump.Dump`` for a file. It reads as many bytes at a time as arrive from a socket."""

    def __init__(self, path: Path) -> None:
        self.data = np.empty(DATA_BYTES, np.uint8)
        self.at = self.end = self.bytes = 0
        self._file = path.open("rb", buffering=0)
        self._file.seek(_MAGIC_BYTES)

    def fill(self) -> bool:
        rest = self.end - self.at
        self.data[:rest] = self.data[self.at : self.end]
        size = self._file.readinto(memoryview(self.data.data)[rest : rest + RAW_BYTES])
        self.at, self.end = 0, rest + size
        self.bytes += size
        return bool(size)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _FileDump:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
