"""Generates the table of metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from airflow_provider_cdc.metrics import METRICS


def metric_table() -> Iterator[Sequence[str]]:
    yield "metric", "kind", "unit", "what it is"
    for metric in METRICS:
        yield f"`cdc.{metric.name}`", metric.kind, metric.unit, metric.help
