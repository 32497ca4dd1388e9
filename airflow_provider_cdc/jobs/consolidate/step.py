"""The consolidate step: brings the touched rows to the position of the run, and publishes all tables together.

The step has four phases. A try that begins after a crash continues from the last phase that was reached:

1. The input files are checked, and the new files are staged. This phase can be repeated.
2. The commit fixes the files of all tables. Only one try can create the commit. After that, the run will be
   published in any case, because the later phases need only the commit. Any try can execute these phases, and
   several tries can execute them at once.
3. The sink publishes the files that the commit names. After that, the step is done.
4. The work files, the slot and publication of the run, and older copies (`remove_old_copies`) are removed.

So even a try that resumes late cannot publish a file that the commit does not name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.commit_record import Decision, decision_of, write_published
from airflow_provider_cdc.core.run.ledger import FilesCommitted
from airflow_provider_cdc.core.run.results import CONSOLIDATE, ConsolidateResult, DeltaResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import StagedFile
from airflow_provider_cdc.core.shards.copy_tables import (
    copy_names,
    rows_of_shards,
    skip_whole_merged_tables,
    totals_by_copy,
    with_merged,
)
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import naming
from airflow_provider_cdc.jobs.apply.rewind import Restore, Rewind, RewindOutcome, RewindTask
from airflow_provider_cdc.jobs.certificate.build import build_certificates, versions
from airflow_provider_cdc.jobs.certificate.scrub import scrub
from airflow_provider_cdc.jobs.changes.net_change_files import NetChangeFiles, bucket_ranges
from airflow_provider_cdc.jobs.consolidate.publish import publish, record_copies, release_past, release_slot
from airflow_provider_cdc.jobs.consolidate.remove_old_copies import check_own_copies, prune_old_copies
from airflow_provider_cdc.jobs.extract_delta.change_feed import feed_gaps, gaps_of_latest, say_feed_gaps, stage_feeds
from airflow_provider_cdc.jobs.extract_delta.step import read_net_change
from airflow_provider_cdc.jobs.extract_delta.window_changes import read_changes
from airflow_provider_cdc.jobs.reads.table_files import read_table_files
from airflow_provider_cdc.jobs.reads.unrepresentable_rows import check_remaining, surviving
from airflow_provider_cdc.jobs.roll_forward.plan import BaseFile, look_at_bases, record_damage_on_error, roll_forward
from airflow_provider_cdc.jobs.runtime.controller import check_interrupts
from airflow_provider_cdc.jobs.runtime.progress import Progress, ProgressFile, log, table
from airflow_provider_cdc.jobs.runtime.skipped import add_nulled, check_some_left, log_nulled, log_skipped
from airflow_provider_cdc.jobs.runtime.step import Step, clean, run_step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole
from airflow_provider_cdc.jobs.shards.collisions import check_collisions
from airflow_provider_cdc.jobs.snapshot.reread_passes import read_record
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings
from airflow_provider_cdc.sources.api.window import BUCKETS

FILES = "commit/files"
TASKS_PER_SLOT = 4
REWIND_BYTES = 64 * 2**20
"""Bytes of files per task. A smaller task would cost more than it saves, because the footers rule out most files."""
RESTORE_ROWS = 250_000
"""Number of rows to restore per task. A smaller task would cost more than it saves."""


def consolidate(spark: SparkSession, folder: Storage, settings: ConnectionSettings) -> ConsolidateResult:
    """Bring every table of the run in ``folder`` to its state at the run's position, and publish all tables.

    Returns the result that the run records.

    :raises CopyMismatch: the rows that were read contradict the log.
    :raises ValueNotRepresentable: values that no Arrow type holds would be published.
    :raises PublishIncomplete: publishing stopped half-way; call this function again.
    :raises CommitUnknown: it is not known whether a table was published; call this function again.
    """
    done_before = CONSOLIDATE in Run.load(folder).steps
    result = run_step(CONSOLIDATE, spark, folder, settings, _consolidate)
    run = Run.load(folder)
    if done_before:
        check_own_copies(run)
        # Publish again, because a head may have been removed after an earlier try had completed this step.
        publish(run, decision_of(run))
    write_published(run)
    clean(run)
    # note_copies needs the run's slot to prove that the history is unchanged, so call it before the slot is released.
    noted = record_copies(run, settings)
    release_slot(run, settings)
    if noted:
        # Advance the standing slot only if this run's copies are recorded. Otherwise, the server might drop log that
        # the next run needs.
        release_past(run, settings)
    prune_old_copies(run, open_source(settings))
    return result


def _consolidate(step: Step) -> ConsolidateResult:
    run = step.run
    run.result_of(DeltaResult)
    step.sink.check_source(copy_names(step.tables), step.manifest.source, run.position)
    commit = run.commit or _commit(step)
    decision = decision_of(run)
    if commit.token != step.token and CONSOLIDATE not in run.steps:
        _check_commit(step, decision)
    copies = publish(run, decision)
    own = published_copies(run.manifest, decision)
    result = ConsolidateResult(
        published={str(name): copy.uri for name, copy in copies.items()},
        rows=totals_by_copy(own, decision.rows),
        rewound=totals_by_copy(own, decision.rewound),
        nulled=decision.nulled,
        files_rewritten=decision.files_rewritten,
        files_adopted=decision.files_adopted,
        published_at=decision.published_at,
        skipped={**run.manifest.skipped, **with_merged(step.tables, decision.skipped)},
        position=run.position_text,
        changes=_feed_rows(run, decision),
        superseded=_superseded(run, decision),
        scrubbed=sum(proof.scrubbed for proof in decision.proofs.values()),
        shards=rows_of_shards(own, decision.rows),
        feed_gaps=gaps_of_latest(decision, copies),
    )
    rows = [
        (name, decision.rows[name], decision.rewound[name], len(decision.files_of(name))) for name in decision.files
    ]
    log_skipped(result.skipped)
    log(table(("table", "rows", "keys touched", "files"), rows))
    log_nulled("consolidate: restored as null", result.nulled)
    log(
        f"consolidate: {format_count(result.files_rewritten, 'file')} rewritten, {result.files_adopted:,} kept "
        "as written"
    )
    for name, why in result.superseded.items():
        log(f"consolidate: WARNING: {name}: this copy begins a new history, and supersedes all earlier copies: {why}")
    say_feed_gaps(result)
    for name, count in result.changes.items():
        if count is None and name in decision.feed_gaps:
            continue
        if count is None:
            log(
                f"consolidate: {name}: this is the first copy, so there is no change feed yet. The feed of the next "
                "run begins at this copy"
            )
        else:
            start = decision.feeds[name].start
            log(f"consolidate: {name}: {format_count(count, 'row change')}, from {start} to {result.position}")
    return result


def _feed_rows(run: Run, decision: Decision) -> dict[str, int | None]:
    """Return the number of row changes in the feed of each table; None: the table has no feed."""
    if not run.manifest.options.changes:
        return {}
    return {name: decision.feeds[name].rows if name in decision.feeds else None for name in decision.files}


def _superseded(run: Run, decision: Decision) -> dict[str, str]:
    """Return, by table name, why the earlier history of a table ended. A history ends if the source is set back after
    the last copy."""
    histories = run.manifest.histories
    ended = {name: history.ended_by(run.run_id) for name, history in histories.items() if name in decision.files}
    return {name: f"since the copy of run {one.run_id}, {one.why}" for name, one in ended.items() if one is not None}


def _commit(step: Step) -> FilesCommitted:
    """Stage the files and make the commit, or return the commit that another try has made meanwhile."""
    record = records.write_named(step.folder, FILES, stage(step))
    check_interrupts()
    commit = step.run.record_commit(record, step.token)
    if commit.record != record:
        log("consolidate: a concurrent attempt has committed; this attempt completes its commit")
        step.folder.delete_file(record)
    return commit


def _check_commit(step: Step, decision: Decision) -> None:
    """Check the files that another try staged. This try cannot write them again.

    :raises FileDamaged: a file differs from the commit's record of it.
    """
    checked = []
    for index, entry in enumerate(step.tables):
        name = str(entry.table.name)
        # A concurrent attempt may already have published the files.
        published = step.sink.folders(step.run.run_id, entry.table.copy_name) if name in decision.files else ()
        folder, feed = step.files_of(index).folder, decision.feeds.get(name)
        checked += [Checked(file, name, folder, published) for file in decision.files.get(name, ())]
        # The deletes of kept files may be new. Those of earlier runs are small.
        deletes = [file.deletes for file in decision.kept.get(name, ()) if file.deletes is not None]
        checked += [Checked(file, name, folder, published) for file in deletes]
        for file in feed.files if feed is not None else ():
            checked.append(Checked(file, f"the changes of {name}", None, published))
    require_whole(step, checked)


def stage(step: Step) -> Decision:
    """Rewind or roll forward all tables, and return the files that make up their copies."""
    change = read_net_change(step.run)
    read = read_table_files(step.run)
    names = [str(entry.table.name) for entry in step.tables]
    skipped = skip_whole_merged_tables(step.tables, step.run.result_of(DeltaResult).skipped)
    files = [() if name in skipped else read[name].files for name in names]
    checked = [Checked(file, "the net change of the window") for file in change.files]
    windows = read_changes(step.run)
    checked += [Checked(file, "the changes of the window") for window in windows for file in window.files]
    layers = _layers(step)
    for index, (name, table_files) in enumerate(zip(names, files, strict=True)):
        above = [file for layer in layers.get(index, ()) for file in layer.files]
        folder = step.files_of(index).folder
        checked += [Checked(file, name, folder) for file in [*table_files, *above]]
    require_whole(step, checked)
    odd = {index: read[name].odd for index, name in enumerate(names) if read[name].odd and name not in skipped}
    if step.manifest.options.skips:
        skipped |= {names[index]: why for index, why in surviving(step.folder, change.files, odd).items()}
    else:
        check_remaining(step.folder, change.files, odd)
    skipped = skip_whole_merged_tables(step.tables, skipped)
    copied = [index for index, name in enumerate(names) if name not in skipped]
    with record_damage_on_error(step):
        scrubbed = scrub(step, look_at_bases(step))
    bases, skipped = scrubbed.bases, skip_whole_merged_tables(step.tables, skipped | scrubbed.refused)
    copied = [index for index in copied if names[index] not in skipped]
    check_some_left([names[index] for index in copied], skipped)
    orders = _orders(step, change, files, layers, [index for index in copied if index not in bases])
    touched = sum(change.keys(index) for index in copied)
    searched = sum(len(order.files) for order in orders if isinstance(order, Rewind))
    log(
        f"consolidate: {format_count(touched, 'key')} touched; searching {format_count(searched, 'file')} for "
        "these keys"
    )
    progress = Progress("consolidate", "task", len(orders), len(orders), note=ProgressFile(step.folder).note)
    with record_damage_on_error(step, bases):
        outcomes = roll_forward(step, change, {index: bases[index] for index in copied if index in bases}, layers)
    outcomes += run_tasks(
        step.spark,
        "rewind",
        orders,
        RewindTask(step.staging, step.source, step.tables, change, step.manifest.options.skips),
        lambda outcome: progress.add(1, sum(file.rows for file in outcome.written), 1),
        meanwhile=progress.tick,
    )
    skipped |= {names[outcome.table]: outcome.refused for outcome in outcomes if outcome.refused}
    feeds, refused = stage_feeds(step, windows, [index for index in copied if names[index] not in skipped])
    gaps, refused = feed_gaps(step, [index for index in copied if names[index] not in skipped], refused)
    skipped = skip_whole_merged_tables(step.tables, skipped | {names[index]: why for index, why in refused.items()})
    copied = [index for index in copied if names[index] not in skipped]
    check_some_left([names[index] for index in copied], skipped)
    outcomes = [outcome for outcome in outcomes if outcome.table in copied]
    final, kept_files = _final_files(step, files, layers, bases, outcomes, copied)
    if collisions := check_collisions(step, final, kept_files):
        skipped |= collisions
        copied = [index for index in copied if names[index] not in skipped]
        check_some_left([names[index] for index in copied], skipped)
        outcomes = [outcome for outcome in outcomes if outcome.table in copied]
        final, kept_files = ({index: one[index] for index in copied if index in one} for one in (final, kept_files))
    with record_damage_on_error(step, bases):
        proofs = build_certificates(step, change, scrubbed, final, kept_files)
    replaced = sum(outcome.replaced for outcome in outcomes)
    before = sum(
        len(bases[index]) if index in bases else _count(files[index], layers.get(index, ())) for index in copied
    )
    return Decision(
        files={names[index]: tuple(final[index]) for index in copied},
        rewound={names[index]: change.keys(index) for index in copied},
        nulled=add_nulled((names[outcome.table], outcome.nulled) for outcome in outcomes),
        files_rewritten=replaced,
        files_adopted=before - replaced,
        published_at=datetime.now(UTC).isoformat(timespec="seconds"),
        skipped=skipped,
        kept={names[index]: tuple(table_files) for index, table_files in kept_files.items()},
        feeds={names[index]: feed for index, feed in feeds.items() if index in copied},
        feed_gaps={names[index]: gap for index, gap in gaps.items() if index in copied},
        proofs=proofs,
        versions=versions(step),
    )


def _layers(step: Step) -> dict[int, list[Rewind]]:
    """Return the layers of rows that were read again, by the table's index. Each layer has the rows of one pass. The
    earliest layer is first."""
    layers: dict[int, list[Rewind]] = {}
    if step.manifest.at_upper:
        again = read_record(step.run)
        for index, entry in enumerate(step.tables):
            name = str(entry.table.name)
            layers[index] = [Rewind(index, layer.files.get(name, ()), layer.since) for layer in again.layers]
    return layers


def _count(files: Sequence[StagedFile], layers: Sequence[Rewind]) -> int:
    return len(files) + sum(len(layer.files) for layer in layers)


def _orders(
    step: Step,
    change: NetChangeFiles,
    files: Sequence[Sequence[StagedFile]],
    layers: Mapping[int, Sequence[Rewind]],
    copied: Sequence[int],
) -> list[Rewind | Restore]:
    """Return the orders for tables with touched keys. The largest order is first."""
    orders: list[Rewind | Restore] = []
    for index in copied:
        entry = step.tables[index]
        if not change.keys(index) and not entry.table.eras:
            continue
        if entry.table.keyless:
            orders.append(Rewind(index, tuple(files[index])))
            continue
        # Touched keys often lie close together, so neighbouring files go to different tasks.
        size = sum(file.bytes for file in files[index])
        tasks = min(len(files[index]), step.slots * TASKS_PER_SLOT, 1 + size // REWIND_BYTES)
        orders += [Rewind(index, tuple(files[index][task::tasks])) for task in range(tasks)]
        if index in layers:
            # No layer follows the last layer, so no touched row has to be removed from the last layer.
            orders += [layer for layer in layers[index][:-1] if layer.files]
            continue
        if restored := change.now(index):
            tasks = min(BUCKETS, step.slots * TASKS_PER_SLOT, 1 + restored // RESTORE_ROWS)
            orders += [Restore(index, buckets) for buckets in bucket_ranges(tasks)]
    return sorted(orders, key=_weight, reverse=True)


def _weight(order: Rewind | Restore) -> float:
    # Start with the restore orders, because each of them has work to do. In a rewind order, most files may have no
    # touched rows.
    return sum(file.bytes for file in order.files) if isinstance(order, Rewind) else math.inf


def _final_files(
    step: Step,
    files: Sequence[Sequence[StagedFile]],
    layers: Mapping[int, Sequence[Rewind]],
    bases: Mapping[int, Sequence[BaseFile]],
    outcomes: Sequence[RewindOutcome],
    copied: Sequence[int],
) -> tuple[dict[int, list[StagedFile]], dict[int, list[StagedFile]]]:
    """Return, for each table, the files that this run wrote, and the files that it keeps from the base copy."""
    final: dict[int, list[StagedFile]] = {index: [] for index in copied}
    kept_by_table: dict[int, list[StagedFile]] = {}
    worked_on = {outcome.table for outcome in outcomes}
    for outcome in outcomes:
        final[outcome.table] += [*outcome.adopted, *outcome.written]
    for index in copied:
        entry = step.tables[index]
        if index in bases:
            kept_files = [file for outcome in outcomes if outcome.table == index for file in outcome.kept]
            kept_files = kept_files if index in worked_on else [staged_file.file for staged_file in bases[index]]
            # If the table has rows now, drop the empty file, which only shows the schema.
            kept_by_table[index] = [
                file
                for file in kept_files
                if file.rows or not any(staged_file.rows for staged_file in [*kept_files, *final[index]])
            ]
        elif index not in worked_on:
            final[index] += files[index]
        if index not in bases:
            for layer in layers.get(index, ())[-1:]:
                final[index] += layer.files
        if not final[index] and not kept_by_table.get(index):
            # An empty file shows readers the schema of a table without rows.
            with naming(str(entry.table.name)):
                final[index].append(step.files_of(index).write_empty("staged", "part-empty"))
        final[index].sort(key=lambda file: file.base_name)
    return final, kept_by_table
