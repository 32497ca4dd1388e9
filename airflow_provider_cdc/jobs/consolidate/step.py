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

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.run.commit_record import Decision, decision_of, write_published
from airflow_provider_cdc.core.run.ledger import FilesCommitted
from airflow_provider_cdc.core.run.results import CONSOLIDATE, ConsolidateResult, DeltaResult
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.shards.copy_tables import (
    copy_names,
    rows_of_shards,
    totals_by_copy,
    with_merged,
)
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.core.storage import records
from airflow_provider_cdc.core.storage.folder import Storage
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.jobs.consolidate.publish import publish, record_copies, release_past, release_slot
from airflow_provider_cdc.jobs.consolidate.remove_old_copies import check_own_copies, prune_old_copies
from airflow_provider_cdc.jobs.consolidate.stage import check_commit, stage
from airflow_provider_cdc.jobs.extract_delta.change_feed import gaps_of_latest, log_feed_gaps
from airflow_provider_cdc.jobs.runtime.controller import check_interrupts
from airflow_provider_cdc.jobs.runtime.progress import log, table
from airflow_provider_cdc.jobs.runtime.skipped import log_nulled, log_skipped
from airflow_provider_cdc.jobs.runtime.step import Step, clean, run_step
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings

FILES = "commit/files"


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
        check_commit(step, decision)
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
    log_feed_gaps(result)
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
