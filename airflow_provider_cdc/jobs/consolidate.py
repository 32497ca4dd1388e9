"""The consolidate step: rewinds what the window touched, and publishes all tables at once.

The step has four moments, and a try that begins after a crash goes on from the last one that was reached:

1. ``staged.json`` fixes the files that count, for all tables. Until then the rewinding may be done again.
2. All files are put in place. Nobody reads them yet.
3. The manifest says that the step is done: the commit. From here on the run is published, whatever happens.
4. Every ``_latest.json`` points to the run, and the work files are removed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.manifest import Manifest
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.extract_delta import TASK_ID as EXTRACT_DELTA
from airflow_provider_cdc.jobs.extract_delta import NetChange, read_net_change
from airflow_provider_cdc.jobs.net import BUCKETS, bucket_ranges
from airflow_provider_cdc.jobs.nulled import add_nulled, say_nulled
from airflow_provider_cdc.jobs.progress import Progress, say, table
from airflow_provider_cdc.jobs.rewind import Outcome, Restore, Rewind, RewindTask
from airflow_provider_cdc.jobs.snapshot import TASK_ID as SNAPSHOT
from airflow_provider_cdc.jobs.snapshot import read_table_files
from airflow_provider_cdc.jobs.step import Step, run_step
from airflow_provider_cdc.jobs.survivors import check_survivors
from airflow_provider_cdc.jobs.tasks import run_tasks
from airflow_provider_cdc.sinks.base import StagedFile, folder_name
from airflow_provider_cdc.sinks.parquet import ParquetSink
from airflow_provider_cdc.sources import open_source
from airflow_provider_cdc.sources.base import ConnectionSettings

TASK_ID = "consolidate"
STAGED = "staged.json"
IS_LATEST = "latest.json"
"""Table → whether this run's copy of it was its latest one when it was announced."""
WORK_FOLDERS = ("chunks", "delta", "staged")
TASKS_PER_SLOT = 4
REWIND_BYTES = 64 * 2**20
"""Bytes of files below which another task costs more than it saves: most files are ruled out by their footers."""
RESTORE_ROWS = 250_000
"""Likewise, of rows to be put back."""


def consolidate(spark: SparkSession, run: Storage, settings: ConnectionSettings) -> dict[str, Any]:
    """Make every table what it was at the initial position, and publish all of them.

    Returns what the manifest records: ``published`` (table → URI), ``rows``, ``rewound`` (touched keys), by table;
    ``nulled``, by table and column, the values that were put back as null because no Arrow type holds them (the
    snapshot step has those that were read); ``files_rewritten``, ``files_adopted``, ``published_at``, ``seconds``.

    :raises CopyMismatch: the rows that were read contradict the log.
    :raises ValueNotRepresentable: values that no Arrow type holds would be published.
    :raises PublishIncomplete: publishing stopped half-way; call it again.
    """
    found = run_step(TASK_ID, spark, run, settings, _consolidate)
    manifest = Manifest.load(run)
    _announce(run, manifest, found)
    _clean(run)
    if not manifest.options.get("keep_slot", False):
        _release(settings, manifest)
    return found


def _consolidate(step: Step) -> dict[str, Any]:
    names = [entry.table.name for entry in step.tables]
    step.sink.check_source(names, step.manifest.source, step.manifest.initial_position)
    step.found(EXTRACT_DELTA)
    # Read back what was written: of two tries at the same time, both go on with what the last one fixed.
    if (staged := _staged(step)) is None:
        _stage(step)
        staged = step.run.read_json(STAGED)
    # Another try, thought dead, may have been quicker: its files are published, and must not be touched.
    if (found := Manifest.load(step.run).steps.get(TASK_ID)) is not None:
        return found
    files = {name: [StagedFile.from_json(file) for file in own] for name, own in staged["files"].items()}
    published = {
        str(entry.table.name): step.sink.place(
            step.run, entry.table.name, step.manifest.run_id, files[str(entry.table.name)]
        )
        for entry in step.tables
    }
    found = {
        "published": published,
        "rows": {name: sum(file.rows for file in own) for name, own in files.items()},
        "rewound": staged["rewound"],
        "nulled": staged["nulled"],
        "files_rewritten": staged["files_rewritten"],
        "files_adopted": staged["files_adopted"],
        "published_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    rows = [(name, found["rows"][name], found["rewound"][name], len(own)) for name, own in files.items()]
    say(table(("table", "rows", "keys rewound", "files"), rows))
    say_nulled("consolidate: put back as null", found["nulled"])
    say(f"consolidate: {found['files_rewritten']} files rewritten, {found['files_adopted']} adopted as they were")
    return found


def _staged(step: Step) -> dict[str, Any] | None:
    """What an earlier try of this step fixed."""
    if not step.run.exists(STAGED):
        return None
    staged: dict[str, Any] = step.run.read_json(STAGED)
    return staged if staged["stamp"] == step.stamp else None


def _stage(step: Step) -> None:
    """Rewind, and fix the files that count."""
    change = read_net_change(step.run, step.found(EXTRACT_DELTA)["record"])
    read = read_table_files(step.run, step.found(SNAPSHOT)["record"])
    odd = {index: own for index, entry in enumerate(step.tables) if (own := read[str(entry.table.name)].odd)}
    check_survivors(step.run, change.files, odd)
    files = [read[str(entry.table.name)].files for entry in step.tables]
    orders = _orders(step, change, files)
    touched = sum(change.keys.values())
    searched = sum(len(order.files) for order in orders if isinstance(order, Rewind))
    say(f"consolidate: {touched:,} keys touched; looking for them in {searched} files")
    progress = Progress("consolidate", "tasks", len(orders), len(orders))
    outcomes = run_tasks(
        step.spark,
        "rewind",
        orders,
        RewindTask(step.run, step.source, step.sink, tuple(step.tables), change),
        lambda outcome: progress.add(1, sum(file.rows for file in outcome.written), 1),
    )
    staged = {
        "stamp": step.stamp,
        "files": {
            str(entry.table.name): [file.to_json() for file in own]
            for entry, own in zip(step.tables, _final_files(step, files, outcomes), strict=True)
        },
        "rewound": {str(entry.table.name): change.keys.get(index, 0) for index, entry in enumerate(step.tables)},
        "nulled": add_nulled((str(step.tables[outcome.table].table.name), outcome.nulled) for outcome in outcomes),
        "files_rewritten": sum(outcome.replaced for outcome in outcomes),
        "files_adopted": sum(len(own) for own in files) - sum(outcome.replaced for outcome in outcomes),
    }
    step.run.write_json(STAGED, staged)


def _orders(step: Step, change: NetChange, files: Sequence[Sequence[StagedFile]]) -> list[Rewind | Restore]:
    """The orders for tables with touched keys, the heaviest first."""
    orders: list[Rewind | Restore] = []
    for index, entry in enumerate(step.tables):
        if not change.keys.get(index):
            continue
        if entry.table.keyless:
            orders.append(Rewind(index, tuple(files[index])))
            continue
        # Touched keys often lie close together: files that neighbour each other go to different tasks.
        size = sum(file.bytes for file in files[index])
        tasks = min(len(files[index]), step.slots * TASKS_PER_SLOT, 1 + size // REWIND_BYTES)
        orders += [Rewind(index, tuple(files[index][task::tasks])) for task in range(tasks)]
        if befores := change.befores.get(index):
            tasks = min(BUCKETS, step.slots * TASKS_PER_SLOT, 1 + befores // RESTORE_ROWS)
            orders += [Restore(index, buckets) for buckets in bucket_ranges(tasks)]
    return sorted(orders, key=_weight, reverse=True)


def _weight(order: Rewind | Restore) -> float:
    # What is to be restored is known to be work; of the files most may turn out to be untouched.
    return sum(file.bytes for file in order.files) if isinstance(order, Rewind) else math.inf


def _final_files(
    step: Step, files: Sequence[Sequence[StagedFile]], outcomes: Sequence[Outcome]
) -> list[list[StagedFile]]:
    final: list[list[StagedFile]] = [[] for _ in step.tables]
    rewound = {outcome.table for outcome in outcomes}
    for outcome in outcomes:
        final[outcome.table] += [*outcome.adopted, *outcome.written]
    for index, entry in enumerate(step.tables):
        if index not in rewound:
            final[index] += files[index]
        if not final[index]:
            # Readers see the schema of a table without rows, too.
            schema = step.source.arrow_schema(entry.table)
            name = f"staged/{folder_name(entry.table.name)}/part-empty.parquet"
            final[index].append(step.sink.write_empty(step.run, name, schema))
        final[index].sort(key=lambda file: file.base_name)
    return final


def _announce(run: Storage, manifest: Manifest, found: Mapping[str, Any]) -> None:
    """Announce each table's copy, and leave in the run's folder which of them is its table's latest now."""
    sink = ParquetSink(run.parent().parent())
    is_latest: dict[str, bool] = {}
    for entry in manifest.tables:
        name = str(entry.table.name)
        latest = {
            "run_id": manifest.run_id,
            "path": found["published"][name],
            manifest.position_key: manifest.initial_position,
            "position": manifest.initial_position,
            "recorded_at": manifest.created_at,
            "source": manifest.source,
            "rows": found["rows"][name],
            "published_at": found["published_at"],
        }
        is_latest[name] = sink.announce(entry.table.name, latest)
        if not is_latest[name]:
            say(f"consolidate: WARNING: {name} is published, but a newer copy than this run's stays the latest one")
    run.write_json(IS_LATEST, is_latest)


def _release(settings: ConnectionSettings, manifest: Manifest) -> None:
    """Let the source drop what it kept for the run. The run is published: not being able to is no failure."""
    try:
        open_source(settings).release(manifest.identity)
    except CdcError as error:
        say(f"consolidate: the source still keeps what it kept for this run: {error}")


def _clean(run: Storage) -> None:
    """Remove what only a run in progress needs. The run is published: not being able to is no failure."""
    try:
        for folder in WORK_FOLDERS:
            run.delete_folder(folder)
        run.delete_file(STAGED)
    except (CdcError, OSError) as error:
        say(f"consolidate: work files are left in {run.uri}: {error}")
