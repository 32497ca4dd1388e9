"""Publishes the files that a commit names."""

from __future__ import annotations

from airflow_provider_cdc.core.certificate import certificate_of_copy
from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.shards.copy_tables import CopyTables, copy_names
from airflow_provider_cdc.core.shards.published import published_copies
from airflow_provider_cdc.core.tables.table import Table, TableName
from airflow_provider_cdc.counted import format_count
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.progress import log
from airflow_provider_cdc.jobs.runtime.retry import retry
from airflow_provider_cdc.jobs.runtime.step import sink_of
from airflow_provider_cdc.sinks.base import Publication, PublishedCopy, TableChange
from airflow_provider_cdc.sources.api.registry import open_source
from airflow_provider_cdc.sources.api.source import ConnectionSettings

# Calls to the source after publication: release the slot, record the copies, advance the standing slot.


def release_slot(run: Run, settings: ConnectionSettings) -> None:
    """Drop the slot and publication of the run. The run is published, so a failure does not fail the step."""
    source = open_source(settings)
    try:
        # No later step repeats this work, so retry it here.
        retry("consolidate: release", lambda: release(run.folder, source.release))
    except CdcError as error:
        log(f"consolidate: could not drop the slot and publication of this run: {error}")


def record_copies(run: Run, settings: ConnectionSettings) -> bool:
    """Record the run's copies on the standing slot, and return whether that succeeded.

    The run is published, so a failure does not fail the step. After a failure, the next run uses the record that this
    run made when it began (`note_position`). The next run reads a table in full if the table's copy is exact at a later
    position than that record."""
    manifest, options = run.manifest, run.manifest.options
    if not options.standing_slot:
        return True
    try:
        source = open_source(settings).of_run(run.expected_identity(), manifest.initial)
        is_latest = read_is_latest(run.folder)
        incarnation = run.result_of(SnapshotResult).incarnation if manifest.at_upper else ""
        # The last copy of a part of a table, or of a shard, is recorded separately from the last copy of the table.
        copies: dict[str, dict[str, Position]] = {}
        for entry in manifest.tables:
            of_part = copies.setdefault(_part(entry.table), {})
            if is_latest.get(str(entry.table.copy_name)):
                of_part[str(entry.table.name)] = run.position
        of_lakes = {
            f"{manifest.lake}#{part}" if part else manifest.lake: table_copies for part, table_copies in copies.items()
        }
        retry("consolidate: note_copies", lambda: source.note_copies(options, of_lakes, incarnation))
    except CdcError as error:
        log(f"consolidate: WARNING: could not record this run's copies on the standing slot: {error}")
        return False
    return True


def _part(table: Table) -> str:
    """Return what distinguishes the copies of a table from the copies of the whole table on its own; empty: nothing."""
    merged = f"merged={table.lake_name}" if table.shard is not None else ""
    return "#".join(filter(None, (table.copy_name.part, merged)))


def release_past(run: Run, settings: ConnectionSettings) -> None:
    """Advance the standing slot past the log that it no longer has to keep. The run is already published, so a failure
    does not fail the step. After a failure, the next run advances the slot."""
    options = run.manifest.options
    if not options.standing_slot:
        return
    try:
        open_source(settings).give_up_past(options)
    except CdcError as error:
        hours = format_count(options.standing_slot_hours, "hour")
        log(f"consolidate: could not advance the standing slot; the slot keeps more than {hours} of the log: {error}")


def publish(run: Run, decision: Decision) -> dict[TableName, PublishedCopy]:
    """Publish the files that the commit names. Record in the run's folder which copies are now the latest copies of
    their tables."""
    manifest = run.manifest
    publication = Publication(
        run_id=run.run_id,
        staging=Staging(run.folder),
        tables=tuple(_change(run, decision, copy) for copy in published_copies(manifest, decision)),
        position_key=manifest.position_key,
        position=run.position_text,
        recorded_at=manifest.created_at,
        published_at=decision.published_at,
        source=manifest.source,
        as_of=manifest.options.as_of,
        missed_as_of=manifest.missed_as_of,
        group=manifest.group,
        skipped=(
            *(TableName.parse(name) for name in manifest.skipped),
            *copy_names(entry for entry in manifest.tables if str(entry.table.name) not in decision.files),
        ),
    )
    copies = sink_of(manifest).publish(publication)
    for table_name, copy in copies.items():
        if not copy.is_latest:
            log(
                f"consolidate: WARNING: {table_name} is published, but the latest copy of the table is still a newer "
                "copy (with a later position or of a later history)"
            )
    run.note_latest({str(name): copy.is_latest for name, copy in copies.items()})
    return copies


def _change(run: Run, decision: Decision, copy: CopyTables) -> TableChange:
    entry, names = copy.first, [str(one.table.name) for one in copy.tables]
    own = {name: (*decision.files[name], *decision.kept.get(name, ())) for name in names}
    return TableChange(
        copy.name,
        tuple(file for name in names for file in decision.files[name]),
        tuple(file for name in names for file in decision.kept.get(name, ())),
        copy.base,
        entry.table.selection.condition,
        entry.table.selection.columns,
        None if copy.merged else decision.feeds.get(names[0]),
        run.manifest.history_of(entry.table.name),
        entry.place,
        certificate_of_copy(run, decision, copy).encoded(),
        {name: frozenset(file.base_name for file in files) for name, files in own.items()} if copy.merged else {},
        None if copy.merged else decision.feed_gaps.get(names[0]),
    )
