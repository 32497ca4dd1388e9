"""Begins runs on a history, without Airflow and without a server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from airflow_provider_cdc.core.options.run import StepOptions
from airflow_provider_cdc.core.positions.facts import Facts
from airflow_provider_cdc.core.run.commit_record import base_of, published_run
from airflow_provider_cdc.core.run.manifest import RunTable
from airflow_provider_cdc.core.run.run import Run, RunRestarted
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.core.tables.selection import Selection
from airflow_provider_cdc.jobs.begin.preparation import lake_format
from airflow_provider_cdc.sinks.registry import open_sink
from tests.jobs.history_source import HistorySource, at, tables
from tests.runs import manifest_of, run_folder


def begin_run(
    target: Storage,
    source: HistorySource,
    initial: int,
    run_id: str = "20260101T000000Z-00000000",
    bases: Mapping[str, str] | None = None,
    histories: Mapping[str, Any] | None = None,
    format: str = "parquet",
    **options: Any,
) -> Storage:
    """Write the manifest that lock_and_record would.

    :param bases: the run whose copy each table is rolled forward from, by the table's name; others are read.
    :param options: of `StepOptions`.
    """
    source.initial = initial
    bases = bases or {}
    scratch = run_folder(target, run_id).parent()
    run = run_folder(target, run_id)
    places = lake_format(format, open_sink(format, target), run_id, source).prepare(
        tables(), {table.name: Selection() for table in tables()}, {}
    )
    manifest = manifest_of(
        target,
        run_id,
        initial_position=str(at(initial)),
        identity=Facts({"server": "history"}),
        tables=tuple(
            RunTable(
                table,
                "lock" if table.keyless else "watermark",
                "",
                base=bases.get(str(table.name), ""),
                place=places.get(table.copy_name),
            )
            for table in tables()
        ),
        bases={base: base_of(published_run(scratch, base)) for base in bases.values()},
        options=StepOptions(chunk_rows=10, **options),
        histories=dict(histories or {}),
        lake_format=format,
        # These positions have no order, so the copies are ordered by the runs' times.
        created_at=f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}T00:00:00+00:00",
    )
    with suppress(RunRestarted):
        # A run that has its commit goes on.
        Run.create(manifest, after=Run.load(run) if Run.exists(run) else None)
    return run
