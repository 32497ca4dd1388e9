"""The consolidate step: rewinds what the window touched, and publishes all tables at once.

The step has four moments, and a try that begins after a crash goes on from the last one that was reached:

1. The files that the rewind rests on are checked, and what it writes is staged. Until then it may be done again.
2. The commit fixes the files that count, for all tables. Only one try can make it, and from here on the run is
   published, whatever happens: all that follows is done from the commit alone, by any try, or by several at once.
3. All files are put in place, under names that no other try has. The step is done then.
4. Every ``_latest.json`` points to the run, and the work files are removed.

So no try can ever make a file visible that the commit does not name, however late it wakes up.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.manifest import Commit, Manifest
from airflow_provider_cdc.core.records import HINT, read_named, write_named
from airflow_provider_cdc.core.storage import Storage
from airflow_provider_cdc.errors import CdcError, ManifestError
from airflow_provider_cdc.jobs.extract_delta import TASK_ID as EXTRACT_DELTA
from airflow_provider_cdc.jobs.extract_delta import NetChange, read_net_change
from airflow_provider_cdc.jobs.net import BUCKETS, bucket_ranges
from airflow_provider_cdc.jobs.nulled import add_nulled, say_nulled
from airflow_provider_cdc.jobs.patience import persist
from airflow_provider_cdc.jobs.progress import Progress, say, table
from airflow_provider_cdc.jobs.rewind import Outcome, Restore, Rewind, RewindTask
from airflow_provider_cdc.jobs.snapshot import TASK_ID as SNAPSHOT
from airflow_provider_cdc.jobs.snapshot import read_table_files
from airflow_provider_cdc.jobs.step import Step, clean, naming, run_step
from airflow_provider_cdc.jobs.survivors import check_survivors
from airflow_provider_cdc.jobs.tasks import run_tasks
from airflow_provider_cdc.jobs.verify import Checked, require_whole
from airflow_provider_cdc.sinks.base import StagedFile, folder_name
from airflow_provider_cdc.sinks.parquet import ParquetSink, place_of
from airflow_provider_cdc.sources.capabilities import release_run
from airflow_provider_cdc.sources.connection import ConnectionSettings
from airflow_provider_cdc.sources.registry import open_source

TASK_ID = "consolidate"
IS_LATEST = "latest.json"
"""Table → whether this run's copy of it was its latest one when it was announced."""
FILES = "commit/files"
TASKS_PER_SLOT = 4
REWIND_BYTES = 64 * 2**20
"""Bytes of files below which another task costs more than it saves: most files are ruled out by their footers."""
RESTORE_ROWS = 250_000
"""Likewise, of rows to be put back."""


@dataclass(frozen=True)
class Published:
    """What the commit fixes: the files of each table, by its name, and what is told of them."""

    files: dict[str, tuple[StagedFile, ...]]
    rewound: dict[str, int]
    nulled: dict[str, dict[str, int]]
    files_rewritten: int
    files_adopted: int
    published_at: str


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
    clean(run)
    if not manifest.options.keep_slot:
        _release(settings, manifest)
    return found


def _consolidate(step: Step) -> dict[str, Any]:
    names = [entry.table.name for entry in step.tables]
    step.sink.check_source(names, step.manifest.source, step.manifest.initial_position)
    step.found(EXTRACT_DELTA)
    commit = step.manifest.commit or _commit(step)
    if commit.abandoned:
        raise ManifestError(
            "the run began anew while this try was at work",
            where=step.run.uri,
            hint="nothing is to be done: the tasks of the new beginning go on",
        )
    if (found := step.manifest.steps.get(TASK_ID)) is not None:
        return found
    where = step.run.uri_of(commit.record)
    counts = read_named(Published, step.run, commit.record)
    if counts.files.keys() != {str(entry.table.name) for entry in step.tables}:
        raise ManifestError("the commit is not of the tables of this run", where=where, hint=HINT)
    if commit.token != step.token:
        _check_commit(step, counts)
    published = {}
    for entry in step.tables:
        name = str(entry.table.name)
        with naming(name):
            published[name] = step.sink.place(step.run, entry.table.name, step.manifest.run_id, counts.files[name])
    found = {
        "published": published,
        "rows": {name: sum(file.rows for file in own) for name, own in counts.files.items()},
        "rewound": counts.rewound,
        "nulled": counts.nulled,
        "files_rewritten": counts.files_rewritten,
        "files_adopted": counts.files_adopted,
        "published_at": counts.published_at,
    }
    rows = [(name, found["rows"][name], found["rewound"][name], len(own)) for name, own in counts.files.items()]
    say(table(("table", "rows", "keys rewound", "files"), rows))
    say_nulled("consolidate: put back as null", found["nulled"])
    say(f"consolidate: {found['files_rewritten']} files rewritten, {found['files_adopted']} adopted as they were")
    return found


def _commit(step: Step) -> Commit:
    """Rewind, and decide what is published; or learn what another try decided meanwhile."""
    rests_on = step.manifest.rests_on
    try:
        record = write_named(step.run, FILES, _stage(step))
    except Exception as error:
        # Another try that has decided moves files that this one still wants to read.
        step.manifest.refresh(step.run)
        if step.manifest.commit is None:
            raise
        say(f"consolidate: another try was quicker, and is helped out ({type(error).__name__}: {error})")
        return step.manifest.commit
    commit = step.manifest.decide(step.run, Commit(step.token, rests_on, record))
    if commit.record != record:
        say("consolidate: another try was quicker, and is helped out")
        step.run.delete_file(record)
    return commit


def _check_commit(step: Step, counts: Published) -> None:
    """Check what another try staged: this one has not written it, and cannot do it again.

    :raises FileDamaged: a file is not what the commit says.
    """
    checked = []
    for entry in step.tables:
        name, folder = str(entry.table.name), place_of(entry.table.name, step.manifest.run_id)
        checked += [Checked(file, name, f"{folder}/{file.base_name}") for file in counts.files[name]]
    require_whole(step, checked)


def _stage(step: Step) -> Published:
    """Rewind, and say which files count."""
    change = read_net_change(step.run, step.found(EXTRACT_DELTA)["record"])
    read = read_table_files(step.run, step.found(SNAPSHOT)["record"])
    files = [read[str(entry.table.name)].files for entry in step.tables]
    checked = [Checked(file, "the net change of the window") for file in change.files]
    for entry, own in zip(step.tables, files, strict=True):
        checked += [Checked(file, str(entry.table.name)) for file in own]
    require_whole(step, checked)
    odd = {index: read[str(entry.table.name)].odd for index, entry in enumerate(step.tables)}
    check_survivors(step.run, change.files, {index: values for index, values in odd.items() if values})
    orders = _orders(step, change, files)
    touched = sum(change.keys(index) for index in range(len(step.tables)))
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
    final = _final_files(step, files, outcomes)
    return Published(
        files={str(entry.table.name): tuple(own) for entry, own in zip(step.tables, final, strict=True)},
        rewound={str(entry.table.name): change.keys(index) for index, entry in enumerate(step.tables)},
        nulled=add_nulled((str(step.tables[outcome.table].table.name), outcome.nulled) for outcome in outcomes),
        files_rewritten=sum(outcome.replaced for outcome in outcomes),
        files_adopted=sum(len(own) for own in files) - sum(outcome.replaced for outcome in outcomes),
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _orders(step: Step, change: NetChange, files: Sequence[Sequence[StagedFile]]) -> list[Rewind | Restore]:
    """The orders for tables with touched keys, the heaviest first."""
    orders: list[Rewind | Restore] = []
    for index, entry in enumerate(step.tables):
        if not change.keys(index):
            continue
        if entry.table.keyless:
            orders.append(Rewind(index, tuple(files[index])))
            continue
        # Touched keys often lie close together: files that neighbour each other go to different tasks.
        size = sum(file.bytes for file in files[index])
        tasks = min(len(files[index]), step.slots * TASKS_PER_SLOT, 1 + size // REWIND_BYTES)
        orders += [Rewind(index, tuple(files[index][task::tasks])) for task in range(tasks)]
        if befores := change.befores(index):
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
            with naming(str(entry.table.name)):
                schema = step.source.arrow_schema(entry.table)
                name = f"staged/{folder_name(entry.table.name)}/part-empty"
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
        # Nobody else ever would.
        persist("consolidate: release", lambda: release_run(open_source(settings), manifest.run_id))
    except CdcError as error:
        say(f"consolidate: the source still keeps what it kept for this run: {error}")
