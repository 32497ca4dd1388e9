"""Stages the files of all copies: phase 1 of the consolidate step."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.results import DeltaResult
from airflow_provider_cdc.core.shards.copy_tables import (
    skip_whole_merged_tables,
)
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.jobs.apply.rewind import Rewind, RewindTask
from airflow_provider_cdc.jobs.certificate.build import build_certificates, versions
from airflow_provider_cdc.jobs.certificate.scrub import scrub
from airflow_provider_cdc.jobs.changes.net_change_files import read_net_change
from airflow_provider_cdc.jobs.consolidate.rewound_files import count_files, final_files, layers_of, orders_of
from airflow_provider_cdc.jobs.extract_delta.change_feed import feed_gaps, stage_feeds
from airflow_provider_cdc.jobs.extract_delta.window_changes import read_changes
from airflow_provider_cdc.jobs.reads import check_remaining, read_table_files, surviving
from airflow_provider_cdc.jobs.roll_forward.plan import check_bases, record_damage_on_error, roll_forward
from airflow_provider_cdc.jobs.runtime.progress import Progress, ProgressFile, log
from airflow_provider_cdc.jobs.runtime.skipped import add_nulled, check_some_left
from airflow_provider_cdc.jobs.runtime.step import Step
from airflow_provider_cdc.jobs.runtime.tasks import run_tasks
from airflow_provider_cdc.jobs.runtime.verify_files import Checked, require_whole
from airflow_provider_cdc.jobs.shards.collisions import check_collisions


def check_commit(step: Step, decision: Decision) -> None:
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
    layers = layers_of(step)
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
        scrubbed = scrub(step, check_bases(step))
    bases, skipped = scrubbed.bases, skip_whole_merged_tables(step.tables, skipped | scrubbed.refused)
    copied = [index for index in copied if names[index] not in skipped]
    check_some_left([names[index] for index in copied], skipped)
    orders = orders_of(step, change, files, layers, [index for index in copied if index not in bases])
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
    final, kept_files = final_files(step, files, layers, bases, outcomes, copied)
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
        len(bases[index]) if index in bases else count_files(files[index], layers.get(index, ())) for index in copied
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
