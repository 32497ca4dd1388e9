"""Metrics of runs, sent through Airflow's own metrics (StatsD, OpenTelemetry, Datadog).

Like Airflow's own metrics, each metric is sent twice. For backends with tags, the name is ``cdc.<name>``, with the tags
``dag_id`` and ``source`` (and ``error``). For backends that drop tags, the name is ``cdc.<name>.<dag_id>.<source>``
(and ``.<error>``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from airflow_provider_cdc.core.control import acts
from airflow_provider_cdc.core.run.results import ConsolidateResult, DeltaResult, SnapshotResult
from airflow_provider_cdc.core.run.run import Run

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """A metric. ``kind`` is ``counter`` or ``gauge``."""

    name: str
    kind: str
    unit: str
    help: str


METRICS = (
    Metric("published", "counter", "runs", "runs that were published"),
    Metric("errors", "counter", "tries", "failed tries of tasks, by the class of the error"),
    Metric("published_at_seconds", "gauge", "Unix time", "when the last run was published"),
    Metric("tables", "gauge", "tables", "tables that the last run published"),
    Metric("skipped_tables", "gauge", "tables", "tables that the last run left out (`On.table_error`)"),
    Metric("feed_gaps", "gauge", "tables", "tables whose changes begin anew at the last copy (`On.feed_gap`)"),
    Metric("rows", "gauge", "rows", "rows of the copies that the last run published"),
    Metric("rows_read", "gauge", "rows", "rows that the last run read from the tables"),
    Metric("bytes_read", "gauge", "bytes", "size of the files with these rows"),
    Metric("keys_in_window", "gauge", "keys", "keys with changes in the windows of the last run"),
    Metric("row_images", "gauge", "row images", "row images that the last run read from the log"),
    Metric("values_as_null", "gauge", "values", "values that no Arrow type holds, published as null"),
    Metric("files_scrubbed", "gauge", "files", "unchanged files that the last run read again, to find damage"),
    Metric("lock_seconds", "gauge", "seconds", "duration of the longest lock of the last run"),
    Metric("paused_seconds", "gauge", "seconds", "time for which operators had paused the last run"),
    Metric("slowed_seconds", "gauge", "seconds", "time for which the governor slowed or paused the last run"),
    Metric("snapshot_seconds", "gauge", "seconds", "duration of the snapshot step of the last run"),
    Metric("extract_delta_seconds", "gauge", "seconds", "duration of its extract_delta step"),
    Metric("consolidate_seconds", "gauge", "seconds", "duration of its consolidate step"),
)
"""All metrics. The metrics of a run are sent when it is published."""

_STRANGE = re.compile(r"[^A-Za-z0-9_-]")


def send_published(run: Run, dag_id: str, source_conn_id: str) -> None:
    """Send the metrics of a published run. An error while sending is only logged, because metrics are not part of the
    run."""
    try:
        for name, value in _numbers(run):
            _send(name, value, dag_id, source_conn_id)
    except Exception as error:
        _log.info("The metrics of the run were not sent: %s", error)


def send_error(error: str, dag_id: str, source_conn_id: str) -> None:
    """Count a failed try. An error while sending is only logged.

    :param error: the name of the error's class.
    """
    try:
        _send("errors", 1, dag_id, source_conn_id, error)
    except Exception as also:
        _log.info("The metric of the error was not sent: %s", also)


def _numbers(run: Run) -> Iterator[tuple[str, float]]:
    read, delta, done = run.result_of(SnapshotResult), run.result_of(DeltaResult), run.result_of(ConsolidateResult)
    yield "published", 1
    yield "published_at_seconds", datetime.fromisoformat(done.published_at).timestamp()
    yield "tables", len(done.published)
    yield "skipped_tables", len(done.skipped)
    yield "feed_gaps", len(done.feed_gaps)
    yield "rows", sum(done.rows.values())
    yield "rows_read", read.rows
    yield "bytes_read", sum(table_files.bytes for table_files in read.tables.values())
    yield "keys_in_window", sum(delta.keys.values())
    yield "row_images", delta.row_images
    nulled = (columns for by_table in (read.nulled, done.nulled) for columns in by_table.values())
    yield "values_as_null", sum(count for columns in nulled for count in columns.values())
    yield "files_scrubbed", done.scrubbed
    yield "lock_seconds", read.lock_seconds
    control = acts.read(run.folder)
    yield "paused_seconds", control.paused_seconds
    yield "slowed_seconds", control.slowed_seconds
    yield "snapshot_seconds", read.seconds
    yield "extract_delta_seconds", delta.seconds
    yield "consolidate_seconds", done.seconds


def _send(name: str, value: float, dag_id: str, source_conn_id: str, error: str = "") -> None:
    # This module is imported here, because the import is slow and DAG files are parsed continually.
    from airflow.providers.common.compat.sdk import Stats

    tags = {"dag_id": dag_id or "none", "source": source_conn_id or "none", **({"error": error} if error else {})}
    # A dot in a part would add a level to the metric's name.
    parts = [_STRANGE.sub("_", part) for part in tags.values()]
    counts = next(metric.kind for metric in METRICS if metric.name == name) == "counter"
    for stat, stat_tags in ((f"cdc.{name}", tags), (".".join(["cdc", name, *parts]), {})):
        if counts:
            Stats.incr(stat, int(value), tags=stat_tags)
        else:
            Stats.gauge(stat, value, tags=stat_tags)
