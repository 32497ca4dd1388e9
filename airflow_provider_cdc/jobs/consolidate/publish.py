"""Publishes the files that a commit names."""

from __future__ import annotations

from airflow_provider_cdc.core.certificate.certificate import certificate_of
from airflow_provider_cdc.core.run.commit_record import Decision
from airflow_provider_cdc.core.run.run import Run
from airflow_provider_cdc.core.run.staging import Staging
from airflow_provider_cdc.core.tables.table import TableName
from airflow_provider_cdc.jobs.runtime.progress import say
from airflow_provider_cdc.jobs.runtime.step import sink_of
from airflow_provider_cdc.sinks.base import Publication, PublishedCopy, TableChange


def publish(run: Run, decision: Decision) -> dict[TableName, PublishedCopy]:
    """Publish the files that the commit names. Record in the run's folder which copies are now the latest copies of
    their tables."""
    manifest = run.manifest
    publication = Publication(
        run_id=run.run_id,
        staging=Staging(run.folder),
        tables=tuple(
            TableChange(
                entry.table.copy_name,
                decision.files[name],
                decision.kept.get(name, ()),
                entry.base,
                entry.table.selection.condition,
                entry.table.selection.columns,
                decision.feeds.get(name),
                manifest.history_of(entry.table.name),
                entry.place,
                certificate_of(run, decision, entry).encoded(),
            )
            for entry in manifest.tables
            if (name := str(entry.table.name)) in decision.files
        ),
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
            *(entry.table.copy_name for entry in manifest.tables if str(entry.table.name) not in decision.files),
        ),
    )
    copies = sink_of(manifest).publish(publication)
    for table_name, copy in copies.items():
        if not copy.is_latest:
            say(
                f"consolidate: WARNING: {table_name} is published, but the latest copy of the table is still a newer "
                "copy (with a later position or of a later history)"
            )
    run.note_latest({str(name): copy.is_latest for name, copy in copies.items()})
    return copies
