"""The clocks of the machines that publish differ.

Iceberg's Java library refuses tables whose times go back by more than a minute, so Spark and Trino cannot read them.
"""

from __future__ import annotations

import datetime as datetimes
import json
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.sinks.catalogs import plain_catalog
from tests.sinks.test_contract import TABLES, Lake

NAMES = ("shop.orders", "shop.lines", "cdc.cdc_cuts")
MINUTE = 60_000


def ahead(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of this process ahead, as PyIceberg reads it."""
    now = time.time

    class Ahead(datetimes.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetimes.datetime.fromtimestamp(time.time(), tz)

    patch.setattr(time, "time", lambda: now() + seconds)
    patch.setattr("pyiceberg.table.update.datetime", Ahead)


def is_refused_by_java(lake: Lake, name: str) -> bool:
    """Whether the constructor of TableMetadata, in Java, refuses the present metadata of a table."""
    location = plain_catalog(lake.storage).load_table(name).metadata_location
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    updated = metadata["last-updated-ms"]
    for log in ("snapshot-log", "metadata-log"):
        times = [entry["timestamp-ms"] for entry in metadata[log]] + [updated]
        if any(after - before < -MINUTE for before, after in pairwise(times)):
            return True
    return False


def remove_first(lake: Lake, runs: list[Any]) -> None:
    lake.sink.withdraw([(runs[0].run_id, table) for table in TABLES])
    for table, change in zip(TABLES, runs[0].tables, strict=True):
        lake.sink.remove(runs[0].run_id, table, change.added)


@pytest.mark.slow
@pytest.mark.parametrize("then", [None, remove_first], ids=["publish", "remove"])
def test_a_clock_that_is_behind_leaves_tables_that_java_reads(
    lake: Lake, then: Callable[[Lake, list[Any]], None] | None
) -> None:
    first, newest = lake.stage(3), lake.stage(4)
    with pytest.MonkeyPatch.context() as patch:
        ahead(patch, 7200)
        lake.sink.publish(first)
        lake.sink.publish(newest)
    if then is None:
        newest = lake.stage(5, before=newest)
        lake.sink.publish(newest)
        assert lake.seen() == [[4, 4, 5, 5, 5]] * 2
    else:
        then(lake, [first])
        assert lake.seen() == [[4, 4, 4]] * 2
    assert [name for name in NAMES if is_refused_by_java(lake, name)] == []
