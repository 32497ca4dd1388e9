"""Calls to the source after publication: release the slot, record the copies, advance the standing slot."""

from __future__ import annotations

from airflow_provider_cdc.core.positions.position import Position
from airflow_provider_cdc.core.run.release import release
from airflow_provider_cdc.core.run.results import SnapshotResult
from airflow_provider_cdc.core.run.run import Run, read_is_latest
from airflow_provider_cdc.core.tables.table import Table
from airflow_provider_cdc.counted import counted
from airflow_provider_cdc.errors import CdcError
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.retry import persist
from airflow_provider_cdc.sources.api.connection import ConnectionSettings
from airflow_provider_cdc.sources.api.registry import open_source


def release_slot(run: Run, settings: ConnectionSettings) -> None:
    """Drop the slot and publication of the run. The run is published, so a failure does not fail the step."""
    source = open_source(settings)
    try:
        # No later step repeats this work, so retry it here.
        persist("consolidate: release", lambda: release(run.folder, source.release))
    except CdcError as error:
        say(f"consolidate: could not drop the slot and publication of this run: {error}")


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
        incarnation = run.found(SnapshotResult).incarnation if manifest.at_upper else ""
        # The last copy of a part of a table, or of a shard, is recorded separately from the last copy of the table.
        copies: dict[str, dict[str, Position]] = {}
        for entry in manifest.tables:
            of_part = copies.setdefault(_part(entry.table), {})
            if is_latest.get(str(entry.table.copy_name)):
                of_part[str(entry.table.name)] = run.position
        of_lakes = {
            f"{manifest.lake}#{part}" if part else manifest.lake: table_copies for part, table_copies in copies.items()
        }
        persist("consolidate: note_copies", lambda: source.note_copies(options, of_lakes, incarnation))
    except CdcError as error:
        say(f"consolidate: WARNING: could not record this run's copies on the standing slot: {error}")
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
        hours = counted(options.standing_slot_hours, "hour")
        say(f"consolidate: could not advance the standing slot; the slot keeps more than {hours} of the log: {error}")
